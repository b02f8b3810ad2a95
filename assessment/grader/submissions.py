"""Find what was handed in, and read it without trusting it.

A submission is ``<learner>/train.py``, ``<learner>.py``, or an archive ``<learner>.zip`` (``.tar``, ``.tar.gz``,
``.tgz``) that holds a ``train.py``. One file is read, at most; nothing is unpacked, no link is followed.
"""

import csv
import gzip
import hashlib
import io
import os
import re
import stat
import tarfile
import zipfile
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from assessment.laws.verdict import listed
from assessment.starters.make import is_untouched
from utils.errors import UserError

SCRIPT, NOTHING = "train.py", "nothing was handed in"
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz")
MOST_ENTRIES, MOST_PACKED, MOST_UNPACKED = 2_000, 5_000_000, 50_000_000  # of an archive


class NotGradableError(Exception):
    """There is nothing that could be run; the text says why, to the learner."""


@dataclass(frozen=True)
class Submission:
    """What one learner handed in: ``script`` is its bytes, or ``problem`` says why there are none to run."""

    learner: str  # as it is shown
    key: str  # as files are named
    script: bytes = b""
    problem: str | None = None
    about: dict = field(default_factory=dict)  # the learner's row of the roster


def find(folder, most_kb, roster=None):
    """Return the ``Submission`` of each learner in ``folder``, and of those who are in ``roster`` alone, by name.

    ``roster`` is a CSV file with the column ``learner`` (the name of the folder or file), and any of ``name``,
    ``id``, ``email``, ``login``, ``section``, ``canvas_id``. Raises ``UserError`` where either cannot be read.
    """
    rows = read_roster(roster) if roster else {}
    try:
        entries = sorted(os.scandir(os.fsencode(folder)), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): name the folder with the submissions") from None
    found = {}
    for entry in entries:
        name = _learner(entry)
        if name is None:
            continue
        learner, key = name.decode("utf-8", "replace"), _key(name)
        if key in found:
            found[key] = replace(found[key], script=b"", problem="it was handed in twice, as a folder and as a file")
            continue
        found[key] = Submission(learner, key, *_read(entry, most_kb), about=rows.pop(learner, {}))
    for learner, about in rows.items():
        key = _key(os.fsencode(learner))
        found[key] = Submission(learner, key, problem=NOTHING, about=about)
    return [found[key] for key in sorted(found)]


def read_roster(path):
    """Return the rows of a roster by learner. Raises ``UserError`` where it has no column ``learner``."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read as CSV ({why}): name a roster") from None
    if not rows or "learner" not in rows[0]:
        raise UserError(
            f"{path} has no column learner, which names each folder or file that is handed in; its columns, divided by"
            f" commas: {', '.join(filter(None, rows[0])) if rows else 'none'}"
        )
    twice = [name for name, count in Counter(row["learner"] for row in rows).items() if count > 1]
    if twice:
        raise UserError(f"{path} has {twice[0]} twice: keep one row for each learner")
    return {row["learner"]: {name: value or "" for name, value in row.items() if name} for row in rows}


def _learner(entry):
    """Return the learner's name from a folder's entry, None for what is no submission."""
    name = entry.name
    if name.startswith((b".", b"_")):
        return None
    if entry.is_dir(follow_symlinks=False):
        return name
    for ending in (".py", *sorted(ARCHIVES, key=len, reverse=True)):
        if name.lower().endswith(ending.encode()):
            return name[: -len(ending)] or None
    return name if entry.is_symlink() else None


def _key(name):
    """Return a name for files, different for different learners; ``name`` may be any bytes."""
    plain = re.sub(rb"[^A-Za-z0-9_.@-]", b"_", name).decode().lstrip(".")[:60] or "_"
    return plain if plain.encode() == name else f"{plain}-{hashlib.sha256(name).hexdigest()[:8]}"


def _read(entry, most_kb):
    """Return a script's bytes and None, or nothing and the problem."""
    try:
        script = _bytes(entry, most_kb * 1000)
        _refuse_no_program(script)
    except NotGradableError as problem:
        return b"", str(problem)
    except Exception as error:  # a damaged archive has many ways to say so
        return b"", f"it cannot be read ({type(error).__name__}: {error})"
    return script, None


def _bytes(entry, most):
    if entry.is_symlink():
        raise NotGradableError("it is a link; hand in the file itself")
    if entry.is_dir():
        return _from_folder(entry.path, most)
    name = entry.name.lower()
    if name.endswith(b".py"):
        return _plain_file(entry.path, most)
    packed = io.BytesIO(_plain_file(entry.path, MOST_PACKED))
    return _from_zip(packed, most) if name.endswith(b".zip") else _from_tar(packed, most, name.endswith(b"gz"))


def _from_folder(path, most):
    try:
        return _plain_file(os.path.join(path, SCRIPT.encode()), most)
    except FileNotFoundError:
        there = [os.fsdecode(name).encode("utf-8", "replace").decode() for name in sorted(os.listdir(path))]
        what = f"; it holds {listed(map(repr, there))}" if there else ", which is empty"
        raise NotGradableError(f"there is no {SCRIPT} in the folder{what}") from None


def _plain_file(path, most):
    """Read a file that is no link, no pipe and no device, at most ``most`` bytes."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        why = "is a link; hand in the file itself" if os.path.islink(path) else f"cannot be read ({error.strerror})"
        raise NotGradableError(f"{SCRIPT} {why}") from None
    with open(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise NotGradableError(f"{SCRIPT} is no file")
        return _limited(file, most)


def _limited(file, most):
    content = file.read(most + 1)
    if len(content) > most:
        raise NotGradableError(f"it has more than {most // 1000} kB: a script, not trained weights, is handed in")
    return content


def _from_zip(packed, most):
    with zipfile.ZipFile(packed) as archive:
        entries = archive.infolist()
        chosen = _chosen([entry.filename for entry in entries])
        entry = entries[chosen]
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise NotGradableError(f"{SCRIPT} in the archive is a link; hand in the file itself")
        with archive.open(entry) as file:
            return _limited(file, most)


def _from_tar(packed, most, is_compressed):
    if is_compressed:
        packed = io.BytesIO(_limited(gzip.GzipFile(fileobj=packed), MOST_UNPACKED))
    with tarfile.open(fileobj=packed, mode="r:") as archive:
        entries = []
        for entry in archive:
            entries.append(entry)
            if len(entries) > MOST_ENTRIES:
                break
        entry = entries[_chosen([one.name for one in entries])]
        if not entry.isfile():
            raise NotGradableError(f"{SCRIPT} in the archive is a link or no file; hand in the file itself")
        return _limited(archive.extractfile(entry), most)


def _chosen(names):
    """Return which of an archive's entries is the script: the one that lies least deep."""
    if len(names) > MOST_ENTRIES:
        raise NotGradableError(f"the archive holds more than {MOST_ENTRIES} files")
    paths = [PurePosixPath(name.replace("\\", "/")) for name in names]
    leading = next((path for path in paths if path.is_absolute() or ".." in path.parts), None)
    if leading is not None:
        raise NotGradableError(f"the archive holds {str(leading)!r}, which leads out of it")
    depths = {at: len(path.parts) for at, path in enumerate(paths) if path.name == SCRIPT}
    found = [at for at, depth in depths.items() if depth == min(depths.values())]
    if len(found) != 1:
        raise NotGradableError(f"the archive holds {len(found) or 'no'} {SCRIPT}; it must hold one")
    return found[0]


def _refuse_no_program(script):
    """Refuse what Python cannot read as a program, and the starter as it was handed out."""
    try:
        compile(script, SCRIPT, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise NotGradableError(f"it is no Python program: {error.msg}, line {error.lineno or '?'}") from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise NotGradableError(f"it is no Python program: {error}") from None
    if is_untouched(io.TextIOWrapper(io.BytesIO(script), "utf-8", "replace").read()):
        raise NotGradableError("it is the starter as it was handed out")


def unmatched(found, roster):
    """Return a line about who handed in and is not on the roster, None where there is nobody.

    Names that are spelled differently have two rows: those without a submission are named beside.
    """
    strangers = [one.learner for one in found if not one.about]
    absent = [one.learner for one in found if one.problem == NOTHING]
    missing = f"; on it, and without a submission: {listed(absent, 10)}" if absent else ""
    return f"not on the roster {roster}: {listed(strangers, 10)}{missing}" if strangers else None
