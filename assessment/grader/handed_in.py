"""Read what one learner handed in, without trusting it: a file, a folder, or an archive with one script in it.

One file is read, at most; nothing is unpacked, no link is followed, and nothing is compiled.
"""

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
from pathlib import PurePosixPath

from assessment.grader.letters import visible_line
from assessment.laws.verdict import listed
from assessment.starters.make import is_untouched

SCRIPT = "train.py"
ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
# What learners hand in as well, and what is not read.
OTHERS = (".ipynb", ".7z", ".rar", ".gz", ".bz2", ".xz", ".zst", ".pyc", ".txt", ".pdf", ".docx")
MOST_ENTRIES, MOST_PACKED, MOST_UNPACKED = 2_000, 5_000_000, 50_000_000  # of an archive


class NotGradableError(Exception):
    """There is nothing that could be run; the text says why, to the learner."""


def read(entry, most_kb):
    """Return the bytes of the script in a folder's ``entry`` and None, or nothing and the problem."""
    try:
        script = _bytes(entry, most_kb * 1000)
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
    packed = io.BytesIO(_plain_file(entry.path, MOST_PACKED))
    return _from_zip(packed, most) if kind == ".zip" else _from_tar(_unpacked(packed, kind), most)


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


def _unpacked(packed, kind):
    """Return the tar archive in ``packed`` as a file of bytes, at most ``MOST_UNPACKED``."""
    if kind.endswith("gz"):
        return io.BytesIO(_limited(gzip.GzipFile(fileobj=packed), MOST_UNPACKED))
    if kind.endswith("bz2"):
        return io.BytesIO(_limited(bz2.BZ2File(packed), MOST_UNPACKED))
    if kind.endswith("xz"):  # its header may ask for 4 GB of memory
        unpacking = lzma.LZMADecompressor(memlimit=2 * MOST_UNPACKED)
        content = unpacking.decompress(packed.read(), MOST_UNPACKED + 1)
        return io.BytesIO(_limited(io.BytesIO(content), MOST_UNPACKED))
    return packed


def _from_tar(packed, most):
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
