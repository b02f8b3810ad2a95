"""Which images a script fetches, by their places in the dataset: an image that is changed afterwards is still known.

Seen are rows that are taken out of the very tensors that ``load`` returned (with an index, a slice or by
``index_select``, which is what ``Images`` does), and the indices that a loader deals to its workers. Rows of a tensor
that a script has computed from them (all images as numbers from 0 to 1) are not.
"""

import ctypes
from functools import wraps

import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from utils import data

TP_AS_SEQUENCE, SQ_ITEM = 13, 3  # words before them in PyTypeObject and in PySequenceMethods


def watch(recorder):
    """Begin to watch what is fetched from the images of both splits."""
    splits = {}  # address of the memory -> (split, its first image, bytes of an image)
    take, select, load = torch.Tensor.__getitem__, torch.Tensor.index_select, data.load

    @wraps(load)
    def loaded(*args, **kwargs):
        found = load(*args, **kwargs)
        split = kwargs.get("split", args[2] if len(args) > 2 else "train")
        images = found.images
        splits[images.untyped_storage().data_ptr()] = split, images.data_ptr(), images[:1].nbytes
        return found

    def note(tensor, index):
        """Note the rows of ``tensor`` at ``index``, if it is a view of a split's images."""
        if type(tensor) is not torch.Tensor or tensor.dim() != 4 or tensor.dtype != torch.uint8 or not splits:
            return
        known = splits.get(tensor.untyped_storage().data_ptr())
        if known is None:
            return
        split, first, size = known
        if split == "train":
            recorder.has_fetched = True
            recorder.delay(f"loading {recorder.steps + 1}")
        at, step = (tensor.data_ptr() - first) // size, tensor.stride(0) * tensor.element_size() // size
        rows = at + step * torch.arange(len(tensor))
        recorder.note("fetch", split=split, rows=take(rows, index).reshape(-1).tolist())

    def taken(tensor, index):
        rows = index[0] if isinstance(index, tuple) and index else index
        if not isinstance(rows, str):
            note(tensor, rows)
        return take(tensor, index)

    def selected(tensor, dim, index):
        if dim == 0:
            note(tensor, index)
        return select(tensor, dim, index)

    data.load = data.datasets.load = loaded
    replace_getitem(torch.Tensor, wraps(take)(taken))
    torch.Tensor.index_select = wraps(select)(selected)
    torch.index_select = wraps(torch.index_select)(lambda input, dim, index: selected(input, dim, index))
    watch_workers(recorder)


def replace_getitem(kind, function):
    """Give the class ``kind`` a ``__getitem__`` that is written in Python, which C is to see nothing of.

    With one, instances count as sequences for C: ``torch.tensor([loss, 3])`` asks a loss for its length. So the slot
    that Python fills for that is emptied again (``sq_item``, docs.python.org/3/c-api/typeobj.html).
    """
    word = ctypes.sizeof(ctypes.c_void_p)
    sequence = ctypes.c_void_p.from_address(id(kind) + TP_AS_SEQUENCE * word).value
    item = ctypes.c_void_p.from_address(sequence + SQ_ITEM * word)
    was = item.value
    kind.__getitem__ = function
    item.value = was


def watch_workers(recorder):
    """Note the indices that a loader deals to its workers, which fetch ahead of the training."""
    deal = _MultiProcessingDataLoaderIter._next_index

    @wraps(deal)
    def dealt(loader):
        index = deal(loader)
        if isinstance(index, list) and all(isinstance(one, int) for one in index):
            recorder.note("fetch", of=len(loader._dataset), rows=index)  # the dataset is a wrapper's, perhaps
        return index

    _MultiProcessingDataLoaderIter._next_index = dealt
