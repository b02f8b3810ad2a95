"""Find who handed in what, and who is on the roster: every file in the folder is somebody's, or named as left aside.

A submission is ``<learner>/train.py``, ``<learner>.py``, or an archive ``<learner>.zip`` (``.tar``, ``.tar.gz``, …)
that holds a ``train.py``.
"""

import csv
import hashlib
import os
import re
from collections import Counter
from dataclasses import dataclass, field

from assessment.grader.handed_in import ending, read
from assessment.grader.letters import visible_line
from assessment.laws.verdict import listed
from utils.errors import UserError
from utils.files import refuse_special

NOTHING = "nothing was handed in"
LINE = "\0line"  # of a row in the file: no column can have that name
TWICE = "it was handed in twice, as a folder and as a file"
DIGEST = re.compile(
    "-[0-9a-f]{8}([0-9a-f]{56})?$", re.IGNORECASE
)  # how names for files end that are not the learner's own
# What systems and editors leave in folders of their own accord.
OF_THE_SYSTEM = re.compile(
    rb"\._.*|\.DS_Store|__MACOSX|Thumbs\.db|desktop\.ini|__pycache__|\.git.*|\.~.*", re.IGNORECASE
)


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
    handed_in = {}
    for entry in _entries(folder):
        if _is_anybodys(entry, rows):
            handed_in.setdefault(_learner(entry, rows), []).append(entry)
    keys, found = set(), []
    for name, entries in handed_in.items():
        script, problem = read(entries[0], most_kb) if len(entries) == 1 else (b"", TWICE)
        about = rows.pop(name.decode("utf-8", "replace"), {})
        found.append(Submission(_shown(name), _key(name, keys), script, problem, about))
    for learner, about in rows.items():
        name = os.fsencode(learner)
        found.append(Submission(_shown(name), _key(name, keys), problem=NOTHING, about=about))
    return sorted(found, key=lambda one: one.key)


def left_aside(folder, roster=None):
    """Return a line about the files in ``folder`` that are no learner's, None where there are none."""
    rows = read_roster(roster) if roster else {}
    names = [_shown(entry.name) for entry in _entries(folder) if not _is_anybodys(entry, rows)]
    return f"left aside in {folder}, as no learner's: {listed(names, 20)}" if names else None


def read_roster(path):
    """Return the rows of a roster by learner. Raises ``UserError`` where it has no column ``learner``."""
    refuse_special(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)  # an open quote would swallow the learners behind it
            rows = [row | {LINE: reader.line_num} for row in reader]
            columns = reader.fieldnames or ()
    except UnicodeDecodeError:
        raise UserError(f"{path} is not in UTF-8: save it as CSV in that encoding") from None
    except (OSError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read as CSV ({why}): name a roster") from None
    if "learner" not in columns:
        raise UserError(
            f"{path} has no column learner, which names each folder or file that is handed in; its columns, divided by"
            f" commas: {', '.join(filter(None, columns)) or 'none'}"
        )
    nameless = next((row[LINE] for row in rows if not (row["learner"] or "").strip()), None)
    if nameless:
        raise UserError(f"{path} has no learner in line {nameless}: name one, or delete the line")
    twice = [name for name, count in Counter(row["learner"] for row in rows).items() if count > 1]
    if twice:
        raise UserError(f"{path} has {twice[0]} twice: keep one row for each learner")
    return {row["learner"]: {name: value or "" for name, value in row.items() if name and name != LINE} for row in rows}


def _entries(folder):
    try:
        return sorted(os.scandir(os.fsencode(folder)), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): name the folder with the submissions") from None


def _is_anybodys(entry, rows):
    """Say whether a folder's entry was handed in, rightly or not; ``rows`` are those of the roster by learner."""
    if OF_THE_SYSTEM.fullmatch(entry.name):
        return False
    is_named = os.path.splitext(entry.name)[0].decode("utf-8", "replace") in rows
    return entry.is_dir(follow_symlinks=False) or entry.is_symlink() or bool(ending(entry.name)) or is_named


def _learner(entry, rows):
    """Return the learner's name, as bytes, from what a file or folder is called."""
    name = entry.name
    if entry.is_dir(follow_symlinks=False) or name.decode("utf-8", "replace") in rows:
        return name
    kind = ending(name) or os.path.splitext(name)[1].decode("utf-8", "replace")
    return name[: -len(os.fsencode(kind))] or name if kind else name


def _shown(name):
    """Return a name, which may be any bytes, as it is shown."""
    return visible_line(name.decode("utf-8", "replace"))


def _key(name, taken):
    """Return a name for files, and add it to those that are ``taken``; on no system is it the name of another's."""
    plain = re.sub(rb"[^A-Za-z0-9_.@-]", b"_", name).decode().lstrip(".")[:60] or "_"
    digest = hashlib.sha256(name).hexdigest()
    # What looks like the name that another gets has a digest as well: nobody takes that by calling himself so.
    is_free = plain.encode() == name and not DIGEST.search(plain)
    choices = [plain] if is_free else []
    choices += [f"{plain}-{digest[:8]}", f"{plain}-{digest}"]
    key = next(one for one in choices if one.lower() not in taken)
    taken.add(key.lower())
    return key


def unmatched(found, roster):
    """Return a line about who handed in and is not on the roster, None where there is nobody.

    Names that are spelled differently have two rows: those without a submission are named beside.
    """
    strangers = [one.learner for one in found if not one.about]
    absent = [one.learner for one in found if one.problem == NOTHING]
    missing = f"; on it, and without a submission: {listed(absent, 10)}" if absent else ""
    return f"not on the roster {roster}: {listed(strangers, 10)}{missing}" if strangers else None
