"""Read a dataset from where its authors put it: torchvision's layout, or folders of images."""

import hashlib
import os
import struct
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from utils.errors import UserError

IDX_FILES = [f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
CHANNELS = {"L": 1, "RGB": 3}
PUBLISHED = {  # name: torchvision's class, and the folder that it keeps the files in
    "fashion-mnist": ("FashionMNIST", Path("FashionMNIST/raw")),
    "mnist": ("MNIST", Path("MNIST/raw")),
    "cifar10": ("CIFAR10", Path("cifar-10-batches-py")),
}


def read_published(name, root):
    """Read ``fashion-mnist``, ``mnist`` or ``cifar10``, and download it when it is not there.

    The files are looked for in the folder that ``LOCKSTEP_DATA`` names, then in ``root``; a download
    goes to a temporary folder in ``root``. Returns splits (name to uint8 [N, C, H, W] and int64 [N])
    and class names. Raises ``UserError`` for a missing, truncated or altered file and without network.
    """
    from torchvision import datasets  # takes seconds to import, which only preparing needs

    class_name, folder = PUBLISHED[name]
    dataset_class = getattr(datasets, class_name)
    for place in filter(None, (os.environ.get("LOCKSTEP_DATA"), root)):
        if (Path(place) / folder).is_dir():
            return _read_torchvision(dataset_class, Path(place), folder)
    with tempfile.TemporaryDirectory(prefix=f".{name}.", suffix=".part", dir=root) as download:
        try:
            dataset_class(download, train=True, download=True)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"{name} could not be downloaded ({_first_line(error)}): put its files into"
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
    for path in (folder / file for file in IDX_FILES):
        try:
            with open(path, "rb") as file:
                dimensions = file.read(4)[3]
                sizes = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
        except FileNotFoundError:
            raise UserError(f"{path} is missing: put the whole file there, unpacked") from None
        except (IndexError, struct.error):
            raise UserError(f"{path} ends within its header: put the whole file there, unpacked") from None
        expected, found = 4 + 4 * dimensions + int(np.prod(sizes)), path.stat().st_size
        if found != expected:
            raise UserError(f"{path} holds {found:,} bytes, but its header says {expected:,}: put the whole file there")


def _check_md5(folder, published):
    for file, md5 in published:
        path = folder / file
        if not path.exists():
            raise UserError(f"{path} is missing: put the whole file there")
        if hashlib.md5(path.read_bytes()).hexdigest() != md5:
            raise UserError(f"{path} is not the published file (md5 {md5}): put the whole file there")


def folder_fingerprint(path):
    """Return a text that changes when a file below ``path`` is added, removed or written again."""
    digest = hashlib.sha256()
    for file, _ in _all_files(Path(path)):
        facts = file.stat()
        digest.update(f"{file.relative_to(path)} {facts.st_size} {facts.st_mtime_ns}\n".encode(errors="replace"))
    return digest.hexdigest()


def read_folder(path):
    """Read ``path/train/<class>/*`` and ``path/test/<class>/*``: greyscale or colour, all of one size.

    Returns as ``read_published``; classes are the folders' names in alphabetical order. Raises
    ``UserError`` that names the file where the images do not fit together or cannot be decoded.
    """
    path = Path(path)
    classes = _classes(path / "train")
    if different := set(classes) ^ set(_classes(path / "test")):
        name = min(different)
        has, lacks = ("train", "test") if name in classes else ("test", "train")
        raise UserError(f"{path / has / name} has no counterpart in {path / lacks}: both need the same classes")
    files = _all_files(path)
    first = _decode(files[0][0])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        images = np.stack(list(pool.map(lambda item: _matching(item[0], first, files[0][0]), files)))
    images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor([classes.index(file.parent.name) for file, _ in files])
    is_train = torch.tensor([split == "train" for _, split in files])
    splits = {"train": (images[is_train], labels[is_train]), "test": (images[~is_train], labels[~is_train])}
    return splits, classes


def _classes(folder):
    if not folder.is_dir():
        raise UserError(f"{folder} is missing: a folder dataset holds train/<class>/* and test/<class>/*")
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
    if not names:
        raise UserError(f"{folder} has no class folders: a folder dataset holds train/<class>/* and test/<class>/*")
    return names


def _all_files(path):
    """List every image below ``path`` with its split, always in the same order."""
    files = []
    for split in ("train", "test"):
        for name in _classes(path / split):
            inside = sorted(file for file in (path / split / name).iterdir() if file.name[0] != ".")
            if not inside:
                raise UserError(f"{path / split / name} is empty: put the images of the class there, or remove it")
            files += [(file, split) for file in inside]
    return files


def _decode(file):
    """Return the pixels of ``file``: uint8 [H, W, 1] or [H, W, 3]."""
    if file.suffix.lower() not in Image.registered_extensions():
        raise UserError(f"{file} is not an image (by the end of its name): move it out of the dataset")
    try:
        with Image.open(file) as image:
            image = image.convert("RGB") if image.mode == "P" else image
            pixels, mode = np.asarray(image), image.mode
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{file} cannot be decoded ({_first_line(error)}): replace it or remove it") from error
    if mode not in CHANNELS:
        raise UserError(f"{file} has the pixel format {mode}: save it as 8-bit greyscale (L) or colour (RGB)")
    return pixels.reshape(*pixels.shape[:2], CHANNELS[mode])


def _matching(file, first, first_file):
    """Decode ``file`` and insist that it has the shape of the ``first`` image."""
    pixels = _decode(file)
    if pixels.shape != first.shape:
        raise UserError(
            f"{file} is {_kind(pixels)} where {first_file} is {_kind(first)}: convert one to match the others"
        )
    return pixels


def _kind(pixels):
    height, width, channels = pixels.shape
    return f"{width}x{height} {'greyscale' if channels == 1 else 'colour'}"


def _first_line(error):
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
