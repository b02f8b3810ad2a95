"""Datasets: prepared once, then loaded in milliseconds and shared by all ranks of a machine.

``prepare`` turns a dataset into one file of tensors, ``load`` maps that file into memory: every rank
reads the same pages. A batch is fetched in one indexing call, because a Python loop over images takes
longer than a training step of a small network.
"""

import hashlib
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from filelock import FileLock
from torch.nn import functional as F
from torch.utils.data import Dataset

from utils.data import digits, sources
from utils.errors import UserError
from utils.files import cannot_write, remove_parts, written_whole

DATASETS = ("digits", "digits-rgb", *sources.PUBLISHED)
SPLITS = ("train", "test")


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
    path, fingerprint = _path(name, root), _fingerprint(name)
    if _is_current(path, fingerprint):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path.with_suffix(".lock"))
        lock.acquire()
    except OSError as error:
        raise UserError(cannot_write(path, error)) from error
    try:
        if not _is_current(path, fingerprint):
            remove_parts(path.parent, path.stem)
            store(name, root, *_read(name, root))
    finally:
        lock.release()
    return path


def store(name, root, splits, classes):
    """Write ``splits`` (a name to images uint8 [N, C, H, W] and labels int64 [N]) as the prepared dataset ``name``."""
    content = {"fingerprint": _fingerprint(name), "classes": classes}
    for split, (images, labels) in splits.items():
        content[split] = {"images": images, "labels": labels}
    with written_whole(_path(name, root)) as part:
        torch.save(content, part)


def load(name, root="data", split="train"):
    """Load one split (``train`` or ``test``) of a prepared dataset, memory-mapped, as ``Images``.

    Raises ``UserError`` where it is not prepared: loading never prepares, so that with many ranks it
    is always plain who does.
    """
    if split not in SPLITS:
        raise UserError(f"split {split!r} is unknown; choose one of {', '.join(SPLITS)}")
    path = _path(name, root)
    command = f'python -m utils.data "{name}" --data-dir "{root}"'
    if not path.exists():
        raise UserError(f"{name} is not prepared in {Path(root).absolute()}: run {command}")
    try:
        content = torch.load(path, mmap=True, weights_only=True)
    except (RuntimeError, EOFError, OSError) as error:
        raise UserError(f"{path} is damaged: run {command}") from error
    return Images(content[split]["images"], content[split]["labels"], content["classes"])


def _path(name, root):
    """Return where the tensor file of ``name`` belongs; the file of a folder is named by its path."""
    if name in DATASETS:
        return Path(root) / f"{name}.pt"
    if not name.startswith("folder:"):
        raise UserError(f"dataset {name!r} is unknown; choose one of {', '.join(DATASETS)}, folder:PATH")
    folder = _folder(name)
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:8]
    return Path(root) / f"folder-{re.sub(r'[^A-Za-z0-9_-]', '_', folder.name)}-{digest}.pt"


def _folder(name):
    return Path(name.removeprefix("folder:")).expanduser().absolute()


def _fingerprint(name):
    """Return what must be the same for a prepared file to be used again."""
    if name.startswith("digits"):
        return f"{name} recipe {digits.RECIPE}"
    return sources.folder_fingerprint(_folder(name)) if name.startswith("folder:") else name


def _is_current(path, fingerprint):
    try:
        return torch.load(path, mmap=True, weights_only=True)["fingerprint"] == fingerprint
    except (OSError, EOFError, RuntimeError, KeyError):
        return False


def _read(name, root):
    if name.startswith("digits"):
        splits = {split: digits.draw(name, split, digits.COUNTS[split], digits.SEEDS[split]) for split in SPLITS}
        return splits, digits.CLASSES
    return sources.read_folder(_folder(name)) if name.startswith("folder:") else sources.read_published(name, root)
