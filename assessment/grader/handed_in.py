"""Read what one learner handed in, without trusting it: a file, a folder, or an archive with one script in it.

One file is read, at most; no link is followed, nothing is compiled, and archives are read in a process apart.
"""

import io
import os
import stat

from assessment.grader.archives import MOST_PACKED, SCRIPT, NotGradableError, limited, unpacked_apart
from assessment.grader.letters import visible_line
from assessment.laws.verdict import listed
from assessment.starters.make import is_untouched

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
# What learners hand in as well, and what is not read.
OTHERS = (".ipynb", ".7z", ".rar", ".gz", ".bz2", ".xz", ".zst", ".pyc", ".txt", ".pdf", ".docx")


def read(entry, most_kb):
    """Return the bytes of the script in a folder's ``entry`` and None, or nothing and the problem."""
    try:
        script = _bytes(entry, most_kb * 1000)
        if not script.strip():
            raise NotGradableError(f"{SCRIPT} is empty")
        if is_untouched(io.TextIOWrapper(io.BytesIO(script), "utf-8", "replace").read()):
            raise NotGradableError("it is the starter as it was handed out")
    except NotGradableError as problem:
        return b"", str(problem)
    except Exception as error:  # a damaged archive has many ways to say so
        return b"", visible_line(f"it cannot be read ({type(error).__name__}: {error})")
    return script, None


def ending(name):
    """Return the ending of a file's name that says how it is read, or why not; "" for any other."""
    known = sorted((".py", *ARCHIVES, *OTHERS), key=len, reverse=True)
    return next((one for one in known if name.lower().endswith(one.encode())), "")


def _bytes(entry, most):
    if entry.is_symlink():
        raise NotGradableError("it is a link; hand in the file itself")
    if entry.is_dir():
        return _from_folder(entry.path, most)
    kind = ending(entry.name)
    if kind == ".py":
        return _plain_file(entry.path, most)
    if kind not in ARCHIVES:
        name = visible_line(entry.name.decode("utf-8", "replace"))
        raise NotGradableError(f"{name!r} is not read: hand in {SCRIPT}, or one of {', '.join(ARCHIVES)} that holds it")
    return unpacked_apart(_plain_file(entry.path, MOST_PACKED), kind, most)


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
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise NotGradableError(f"{SCRIPT} is no file")
    with open(number, "rb") as file:
        return limited(file, most)
