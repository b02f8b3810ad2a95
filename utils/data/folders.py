"""Images of one's own, in folders: PATH/train/<class>/* and PATH/test/<class>/*."""

import hashlib
import os
import re
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from utils.errors import UserError, first_line

CHANNELS = {"L": 1, "RGB": 3}
LEAST, MOST = 10, 1024  # pixels a side: LeNet takes no less; the whole dataset is held in memory


@dataclass(frozen=True)
class Folder:
    """The dataset ``folder:PATH``: greyscale or colour images, all of one size."""

    path: Path

    @property
    def file(self):
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:8]
        return f"folder-{re.sub(r'[^A-Za-z0-9_-]', '_', self.path.name)}-{digest}.pt"

    @property
    def fingerprint(self):
        """A text that changes when a file below the path is added, removed or written again."""
        digest = hashlib.sha256()
        for file, _ in _all_files(self.path):
            facts = _facts(file)
            digest.update(
                f"{file.relative_to(self.path)} {facts.st_size} {facts.st_mtime_ns}\n".encode(errors="replace")
            )
        return digest.hexdigest()

    def read(self, _root):
        """Return splits (name to uint8 [N, C, H, W] and int64 [N]) and class names, which are the folders' names.

        Raises ``UserError`` that names the file where the images do not fit together or cannot be decoded.
        """
        classes = _classes(self.path / "train")
        if different := set(classes) ^ set(_classes(self.path / "test")):
            name = min(different)
            has, lacks = ("train", "test") if name in classes else ("test", "train")
            without = f"{str(self.path / has / name)!r} has no counterpart in {self.path / lacks}"
            raise UserError(f"{without}: both need the same classes")
        files = _all_files(self.path)
        first = _decode(files[0][0])
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            images = np.stack(list(pool.map(lambda item: _matching(item[0], first, files[0][0]), files)))
        images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        labels = torch.tensor([classes.index(file.parent.name) for file, _ in files])
        is_train = torch.tensor([split == "train" for _, split in files])
        splits = {"train": (images[is_train], labels[is_train]), "test": (images[~is_train], labels[~is_train])}
        return splits, classes


def _facts(file):
    """Return the ``stat`` of a plain file; of a pipe, say, one would wait for ever for its first byte."""
    try:
        facts = file.stat()
    except OSError as error:
        why = "is a link that leads nowhere" if file.is_symlink() else f"cannot be read ({error.strerror})"
        raise UserError(f"{file} {why}: replace it or remove it") from error
    if not stat.S_ISREG(facts.st_mode):
        raise UserError(f"{file} is no file with an image: move it out of the dataset")
    return facts


def _entries(folder):
    """Return what lies in ``folder``, without hidden files."""
    try:
        return sorted(entry for entry in folder.iterdir() if entry.name[0] != ".")
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): let yourself read it, or remove it") from error


def _classes(folder):
    try:
        is_there = folder.is_dir()
    except OSError as error:  # its name is too long, say
        raise UserError(f"folder:{str(folder)[:80]}… cannot be read ({error.strerror}): name another") from error
    if not is_there:
        raise UserError(f"{folder} is missing: a folder dataset holds train/<class>/* and test/<class>/*")
    names = [entry.name for entry in _entries(folder) if entry.is_dir()]
    if len(names) == 1:
        raise UserError(f"{folder} has the one class {names[0]!r}: to tell images apart takes two or more")
    if not names:
        raise UserError(f"{folder} has no class folders: a folder dataset holds train/<class>/* and test/<class>/*")
    return names


def _all_files(path):
    """List every image below ``path`` with its split, always in the same order."""
    files = []
    for split in ("train", "test"):
        for name in _classes(path / split):
            inside = _entries(path / split / name)
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
            if not all(LEAST <= side <= MOST for side in image.size):
                told = f"{file} is {image.width}x{image.height}: sides of {LEAST} to {MOST} pixels are taken, scale it"
                raise UserError(told)
            image = image.convert("RGB") if image.mode == "P" else image
            pixels, mode = np.asarray(image), image.mode
    except Image.DecompressionBombError as error:
        raise UserError(f"{file} is far too large: sides of {LEAST} to {MOST} pixels are taken, scale it") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{file} cannot be decoded ({first_line(error)}): replace it or remove it") from error
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
