"""Read one script out of an archive, in a process that may take little: to unpack can be made to take for ever.

An archive of 400 bytes may hold gigabytes in one block of bzip2, and a tar's headers are read by regular expressions
that a line of digits keeps busy for hours. Nothing is written to the disk, and no member's name is a path here.
"""

import base64
import bz2
import gzip
import io
import json
import lzma
import resource
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import PurePosixPath
from textwrap import shorten

SCRIPT = "train.py"
MOST_ENTRIES, MOST_PACKED, MOST_UNPACKED = 2_000, 5_000_000, 50_000_000
OF_THE_SYSTEM = "__MACOSX"  # a folder in which an archiver keeps what it knows of files
MOST_MEMORY, MOST_S = 400_000_000, 10  # bytes of the process that unpacks, and seconds that it computes


class NotGradableError(Exception):
    """There is nothing that could be run; the text says why, to the learner."""


def unpacked_apart(packed, kind, most):
    """Return the bytes of the script, at most ``most``, in the archive ``packed`` whose name ends in ``kind``.

    Raises ``NotGradableError`` with the reason where there is none to be had.
    """
    command = [sys.executable, "-P", "-s", __file__, kind, str(most)]
    try:
        done = subprocess.run(command, input=packed, capture_output=True, timeout=6 * MOST_S, check=False)
        told = json.loads(done.stdout) if done.returncode == 0 else {}
    except subprocess.TimeoutExpired:
        told = {}
    if "script" in told:
        return base64.b64decode(told["script"])
    limits = f"within {MOST_S} s and {MOST_MEMORY // 1_000_000} MB of memory"
    raise NotGradableError(told.get("problem") or f"the archive cannot be unpacked {limits}")


def unpacked(packed, kind, most):
    """Return the same here."""
    file = io.BytesIO(packed)
    return _from_zip(file, most) if kind == ".zip" else _from_tar(_unpacked(file, kind), most)


def limited(file, most):
    content = file.read(most + 1)
    if len(content) > most:
        raise NotGradableError(f"it has more than {most // 1000} kB: a script, not trained weights, is handed in")
    return content


def _from_zip(packed, most):
    with zipfile.ZipFile(packed) as archive:
        entries = archive.infolist()
        chosen = _chosen([entry.filename for entry in entries])
        entry = entries[chosen]
        if entry.is_dir():
            raise NotGradableError(f"{SCRIPT} in the archive is a folder; hand in the file itself")
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise NotGradableError(f"{SCRIPT} in the archive is a link; hand in the file itself")
        with archive.open(entry) as file:
            return limited(file, most)


def _unpacked(packed, kind):
    """Return the tar archive in ``packed`` as a file of bytes, at most ``MOST_UNPACKED``."""
    if kind.endswith("gz"):
        return io.BytesIO(limited(gzip.GzipFile(fileobj=packed), MOST_UNPACKED))
    if kind.endswith("bz2"):
        return io.BytesIO(limited(bz2.BZ2File(packed), MOST_UNPACKED))
    if kind.endswith("xz"):  # its header may ask for 4 GB of memory
        unpacking = lzma.LZMADecompressor(memlimit=2 * MOST_UNPACKED)
        content = unpacking.decompress(packed.read(), MOST_UNPACKED + 1)
        return io.BytesIO(limited(io.BytesIO(content), MOST_UNPACKED))
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
        return limited(archive.extractfile(entry), most)


def _chosen(names):
    """Return which of an archive's entries is the script: the one that lies least deep."""
    if len(names) > MOST_ENTRIES:
        raise NotGradableError(f"the archive holds more than {MOST_ENTRIES} files")
    paths = [PurePosixPath(name.replace("\\", "/")) for name in names]
    leading = next((path for path in paths if path.is_absolute() or ".." in path.parts), None)
    if leading is not None:
        raise NotGradableError(f"the archive holds {shorten(str(leading), 200)!r}, which leads out of it")
    named = {at: path for at, path in enumerate(paths) if path.name == SCRIPT and OF_THE_SYSTEM not in path.parts}
    depths = {at: len(path.parts) for at, path in named.items()}
    found = [at for at, depth in depths.items() if depth == min(depths.values())]
    if len(found) != 1:
        raise NotGradableError(f"the archive holds {len(found) or 'no'} {SCRIPT}; it must hold one")
    return found[0]


def main():
    """Unpack what standard input holds and print it, or why it cannot be, as JSON."""
    kind, most = sys.argv[1], int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S))
    try:
        told = {"script": base64.b64encode(unpacked(sys.stdin.buffer.read(), kind, most)).decode()}
    except NotGradableError as problem:
        told = {"problem": str(problem)}
    except MemoryError:
        told = {}
    except Exception as error:  # a damaged archive has many ways to say so
        told = {"problem": f"it cannot be read ({type(error).__name__}: {error})"}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
