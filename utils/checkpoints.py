"""What a run goes on from: its last checkpoints on disk, and the random states of a rank.

A checkpoint is one file that ``torch.load(..., weights_only=True)`` reads. It is written whole or not at all, by one
process, and its name ends in a digest of its bytes: what was damaged since is known by it. The last two are kept, so
that there is one before it to go on from.
"""

import hashlib
import io
import random
import re
import sys
from pathlib import Path

import numpy as np
import torch

from utils.errors import UserError
from utils.files import cannot_write, remove_parts, written_whole

KEPT = 2
NAME = re.compile(r"step-(\d{9})-([0-9a-f]{16})\.pt")


class Checkpoints:
    """The checkpoints of one run in ``folder``; one process writes them, rank 0 of the run."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def save(self, step, state):
        """Write ``state``, a dictionary of tensors and plain values, as it is after ``step`` steps; return its path.

        Older ones than the last two are removed once this one is whole. Raises ``UserError`` where the disk takes none.
        """
        content = io.BytesIO()
        torch.save(state, content)
        path = self.folder / f"step-{step:09}-{_digest(content.getbuffer())}.pt"
        with written_whole(path) as part:
            part.write_bytes(content.getbuffer())
        for old in [one for one in self._paths() if one != path][KEPT - 1 :]:
            _remove(old)
        return path

    def latest(self, is_one=lambda _state: True):
        """Return what was saved last, or before it where that is damaged, which standard error says; None without any.

        Damaged is as well what is no file, and a dictionary that is not ``is_one``. Raises ``UserError`` where there
        are checkpoints and none can be read.
        """
        damaged = []
        for path in self._paths():
            content = _read(path)
            if isinstance(content, dict) and is_one(content):
                return content
            damaged.append(path)
            print(f"{path} is damaged: going on from the checkpoint before it", file=sys.stderr)
            _set_aside(path)  # it is none of the last two, of which one is to be whole
        if damaged:
            raise UserError(f"no checkpoint in {self.folder} can be read: start anew, without --resume")
        return None

    def remove(self):
        """Remove all checkpoints, and what killed writers have left of theirs."""
        for path in self._paths():
            _remove(path)
        remove_parts(self.folder, "step-*")

    def _paths(self):
        """Return the files of all checkpoints, the latest first."""
        found = {path: NAME.fullmatch(path.name) for path in self.folder.glob("step-*.pt")}
        return sorted((path for path, match in found.items() if match), key=_step, reverse=True)


def _step(path):
    return int(NAME.fullmatch(path.name)[1]), path.lstat().st_mtime_ns  # a link may lead nowhere


def _read(path):
    """Return what a checkpoint holds, None where it is no file or its bytes are not those that were written."""
    if not path.is_file():  # who opens a pipe waits for ever
        return None
    content = path.read_bytes()
    if _digest(content) != NAME.fullmatch(path.name)[2]:
        return None
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception:  # of many kinds: the digest is right, so somebody else has written it
        return None


def _remove(path):
    """Remove a checkpoint; a folder with the name of one is somebody's, and stays under another name."""
    if path.is_dir() and not path.is_symlink():
        _set_aside(path)
    else:
        path.unlink(missing_ok=True)


def _set_aside(path):
    """Give what is no checkpoint a name that says so. Raises ``UserError`` where that cannot be."""
    aside = path.with_suffix(".damaged")
    try:
        path.replace(aside)
    except OSError as error:  # what has that name is a folder with something in it, or nothing may be renamed here
        raise UserError(cannot_write(aside, error)) from error


def _digest(content):
    return hashlib.sha256(content).hexdigest()[:16]


def random_states(*generators):
    """Return the state of all that this process draws numbers from: Python, NumPy, torch and ``generators``."""
    numpy = np.random.get_state(legacy=False)
    key, pos = torch.from_numpy(numpy["state"]["key"].astype(np.int64)), numpy["state"]["pos"]
    return {
        "python": random.getstate(),
        "numpy": {"key": key, "pos": pos, "has_gauss": numpy["has_gauss"], "gauss": numpy["gauss"]},
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
        "own": [one.get_state() for one in generators],
    }


def restore_random_states(states, *generators):
    """Draw on as the process did whose ``random_states`` these are."""
    random.setstate(states["python"])
    told = states["numpy"]
    state = {"key": told["key"].numpy().astype(np.uint32), "pos": told["pos"]}
    rest = {name: told[name] for name in ("has_gauss", "gauss")}
    np.random.set_state({"bit_generator": "MT19937", "state": state} | rest)
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state(states["cuda"])
    for one, state in zip(generators, states["own"], strict=True):
        one.set_state(state)
