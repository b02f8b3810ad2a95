"""Datasets: prepared once, then loaded in milliseconds and shared by all ranks of a machine.

``prepare`` turns a dataset into one file of tensors, ``load`` maps that file into memory: every rank
reads the same pages. A batch is fetched in one indexing call, because a Python loop over images takes
longer than a training step of a small network.
"""

import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError

import torch
from filelock import FileLock
from torch.nn import functional as F
from torch.utils.data import Dataset

from utils.data.digits import Digits
from utils.data.folders import Folder
from utils.data.published import PUBLISHED, Published
from utils.errors import UserError, first_line
from utils.files import cannot_write, refuse_special, remove_parts, written_whole

DIGITS = ("digits", "digits-rgb")
DATASETS = (*DIGITS, *PUBLISHED)
SPLITS = ("train", "test")
# What torch, and looking into what it loaded, make of a file that is damaged or holds something else.
NOT_OURS = (OSError, EOFError, RuntimeError, UnpicklingError, LookupError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True)
class Images(Dataset):
    """Images uint8 [N, C, H, W], their labels int64 [N] and the names of the classes."""

    images: torch.Tensor
    labels: torch.Tensor
    classes: list

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index], self.labels[index]

    def __getitems__(self, indices):
        """Fetch a whole batch at once; a ``DataLoader`` calls this with the indices of its sampler.

        ``index_select`` copies an image as one block of memory, ``images[indices]`` pixel by pixel.
        """
        indices = torch.as_tensor(indices)
        return self.images.index_select(0, indices), self.labels.index_select(0, indices)

    def first(self, count):
        """Return the dataset cut to its first ``count`` images. Raises ``UserError`` if it has fewer."""
        if not 0 < count <= len(self):
            raise UserError(f"--train-images {count} is out of range: the dataset has {len(self):,} images")
        return replace(self, images=self.images[:count], labels=self.labels[:count])

    def shrunk(self, factor):
        """Return the dataset with squares of ``factor`` x ``factor`` pixels averaged: 28x28 become 14x14 by 2."""
        if factor == 1:
            return self
        pooled = F.avg_pool2d(self.images.float(), factor).round_()
        return replace(self, images=pooled.to(torch.uint8))


def whole_batch(batch):
    """Hand a batch on as it is: the ``collate_fn`` for ``Images``, whose batches need no stacking."""
    return batch


def prepare(name, root="data"):
    """Make the dataset ``name`` ready under ``root`` and return the path of its tensor file.

    Safe when many processes call it at once (one works, the others wait), when it is killed (the file
    is written whole or not at all) and when called again (it returns at once, or prepares anew where
    the images of a ``folder:`` have changed). Raises ``UserError`` with one line that names the file
    and what to do.
    """
    dataset = source(name)
    path, fingerprint = Path(root) / dataset.file, dataset.fingerprint
    if _is_current(path, fingerprint):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        Path(lock.lock_file).touch()  # where no file can be, the lock would wait for ever
        lock.acquire()
    except OSError as error:
        raise UserError(cannot_write(path, error)) from error
    try:
        if not _is_current(path, fingerprint):
            remove_parts(path.parent, path.stem)
            store(name, root, *dataset.read(root))
    finally:
        lock.release()
    return path


def store(name, root, splits, classes):
    """Write ``splits`` (a name to images uint8 [N, C, H, W] and labels int64 [N]) as the prepared dataset ``name``."""
    content = {"fingerprint": source(name).fingerprint, "classes": classes}
    for split, (images, labels) in splits.items():
        images, labels = images.contiguous(), labels.contiguous()
        content[split] = {"images": images, "labels": labels, "checksum": checksum(images, labels)}
    with written_whole(Path(root) / source(name).file) as part:
        torch.save(content, part)


def load(name, root="data", split="train"):
    """Load one split (``train`` or ``test``) of a prepared dataset, memory-mapped, as ``Images``.

    Raises ``UserError`` where it is not prepared: loading never prepares, so that with many ranks it
    is always plain who does.
    """
    if split not in SPLITS:
        raise UserError(f"split {split!r} is unknown; choose one of {', '.join(SPLITS)}")
    path = Path(root) / source(name).file
    command = f'python -m utils.data "{name}" --data-dir "{root}"'
    if not path.exists():
        raise UserError(f"{name} is not prepared in {Path(root).absolute()}: run {command}")
    refuse_special(path)
    try:
        content = dict(torch.load(path, mmap=True, weights_only=True))
        held, classes = content[split], content["classes"]
        images, labels, is_whole = held["images"], held["labels"], held["checksum"]
        is_whole = is_whole == checksum(images, labels)
        fits = images.dim() == 4 and len(images) == len(labels) > 0 and 0 <= labels.min() <= labels.max() < len(classes)
    except NOT_OURS as error:
        raise UserError(f"{path} is damaged, or none of the course's: remove it and run {command}") from error
    if is_whole and not fits:
        raise UserError(f"{path} holds images and labels that do not belong together: remove it and run {command}")
    if not is_whole:
        raise UserError(f"{path} is damaged, its bytes are not those that were written: remove it and run {command}")
    return Images(images, labels, classes)


def checksum(images, labels):
    """Return a number that changes with any byte of the two tensors (CRC-32)."""
    return zlib.crc32(labels.numpy(), zlib.crc32(images.numpy()))


def source(name):
    """Return the dataset ``name``: the ``file`` that it is prepared in, its ``fingerprint``, and ``read(root)``.

    A prepared file is used again as long as the fingerprint is the same. Raises ``UserError`` for an unknown name.
    """
    if name in DIGITS:
        return Digits(name)
    if name in PUBLISHED:
        return Published(name)
    if name.strip() == "folder:":
        raise UserError("folder: names no folder: write its path behind the colon")
    if name.startswith("folder:"):
        path = Path(name.removeprefix("folder:"))
        try:
            return Folder(path.expanduser().absolute())
        except RuntimeError as error:  # nobody of that name has a home
            raise UserError(f"{name} cannot be found ({first_line(error)}): write the path in full") from error
    raise UserError(f"dataset {name!r} is unknown; choose one of {', '.join(DATASETS)}, folder:PATH")


def _is_current(path, fingerprint):
    """Say whether a file was prepared from what the fingerprint is of, by this version of the course."""
    refuse_special(path)
    try:
        content = dict(torch.load(path, mmap=True, weights_only=True))
        return content["fingerprint"] == fingerprint and all("checksum" in content[split] for split in SPLITS)
    except NOT_OURS:
        return False
