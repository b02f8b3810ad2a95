"""Datasets that others have published, read from where torchvision keeps them, whole and unaltered."""

import hashlib
import os
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from utils.errors import UserError, first_line
from utils.files import refuse_special

IDX_FILES = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
PUBLISHED = {  # name: torchvision's class, and the folder that it keeps the files in
    "fashion-mnist": ("FashionMNIST", Path("FashionMNIST/raw")),
    "mnist": ("MNIST", Path("MNIST/raw")),
    "cifar10": ("CIFAR10", Path("cifar-10-batches-py")),
}


@dataclass(frozen=True)
class Published:
    """A dataset that others have published, as torchvision keeps it: ``fashion-mnist``, ``mnist`` or ``cifar10``."""

    name: str

    @property
    def file(self):
        return f"{self.name}.pt"

    @property
    def fingerprint(self):
        return self.name  # what is published does not change

    def read(self, root):
        """Return splits (name to uint8 [N, C, H, W] and int64 [N]) and class names; download what is not there.

        The files are looked for in the folder that ``LOCKSTEP_DATA`` names, then in ``root``; a download goes to a
        temporary folder in ``root``. Raises ``UserError`` for a missing, truncated or altered file and without
        network.
        """
        from torchvision import datasets  # takes seconds to import, which only preparing needs

        class_name, folder = PUBLISHED[self.name]
        dataset_class = getattr(datasets, class_name)
        named = os.environ.get("LOCKSTEP_DATA")
        if named and named != "none" and not Path(named).is_dir():
            raise UserError(f"LOCKSTEP_DATA names {named}, which is no folder: correct it or leave it unset")
        for place in filter(None, (named, root)):
            if (Path(place) / folder).is_dir():
                return _read_torchvision(dataset_class, Path(place), folder)
        with tempfile.TemporaryDirectory(prefix=f".{self.name}.", suffix=".part", dir=root) as download:
            try:
                dataset_class(download, train=True, download=True)
            except (OSError, RuntimeError) as error:
                raise UserError(
                    f"{self.name} could not be downloaded ({first_line(error)}): put its files into"
                    f" {Path(root).absolute() / folder}, or name a folder that holds {folder} in"
                    " LOCKSTEP_DATA; the dataset digits needs no download"
                ) from error
            return _read_torchvision(dataset_class, Path(download), folder)


def _read_torchvision(dataset_class, place, folder):
    if hasattr(dataset_class, "train_list"):
        _check_md5(place / folder, [*dataset_class.train_list, *dataset_class.test_list])
    else:
        _check_idx(place / folder)
    splits, classes = {}, None
    for split, train in (("train", True), ("test", False)):
        dataset = dataset_class(place, train=train, download=False)
        images = torch.as_tensor(dataset.data)
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
        splits[split] = (images, torch.as_tensor(dataset.targets, dtype=torch.int64))
        classes = list(dataset.classes)
    return splits, classes


def _check_idx(folder):
    counts = {}
    for path in (folder / file for file in IDX_FILES):
        try:
            refuse_special(path)
            with open(path, "rb") as file:
                dimensions = file.read(4)[3]
                sizes = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        except FileNotFoundError:
            raise UserError(f"{path} is missing: put the whole file there, unpacked") from None
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror}): put the whole file there, unpacked") from None
        except (IndexError, struct.error):
            raise UserError(f"{path} ends within its header: put the whole file there, unpacked") from None
        expected, found = 4 + 4 * dimensions + int(np.prod(sizes)), path.stat().st_size
        if found != expected:
            raise UserError(f"{path} holds {found:,} bytes, but its header says {expected:,}: put the whole file there")
        counts.setdefault(path.name.partition("-")[0], {})[path.name] = sizes[0]
    for of_split in counts.values():
        if len(set(of_split.values())) > 1:
            told = " and ".join(f"{name} holds {count:,}" for name, count in of_split.items())
            raise UserError(f"{folder}: {told}: put the published files there, unpacked")


def _check_md5(folder, published):
    for file, md5 in published:
        path = folder / file
        if not path.is_file():
            raise UserError(f"{path} is missing, or no file: put the whole file there")
        if hashlib.md5(path.read_bytes()).hexdigest() != md5:
            raise UserError(f"{path} is not the published file (md5 {md5}): put the whole file there")
