"""Archives that are made to take everything end the reading of themselves, and nothing else."""

import io
import tarfile
import time
import zipfile

import pytest

from assessment.grader.archives import MOST_S, NotGradableError, unpacked, unpacked_apart

SCRIPT = b"print('hello')\n"


def zipped(content, method):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive, archive.open("mine/train.py", "w") as entry:
        for part in content:
            entry.write(part)
    return file.getvalue()


def tarred(header):
    """Return a tar whose script comes after an extended header that holds ``header``."""
    extended, entry = tarfile.TarInfo("header"), tarfile.TarInfo("train.py")
    extended.type, extended.size, entry.size = tarfile.XHDTYPE, len(header), len(SCRIPT)
    blocks = (extended.tobuf(tarfile.USTAR_FORMAT), header, entry.tobuf(tarfile.USTAR_FORMAT), SCRIPT)
    return b"".join(block + bytes(-len(block) % tarfile.BLOCKSIZE) for block in blocks) + bytes(1024)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_the_script_is_the_same_apart(method):
    packed = zipped([SCRIPT], method)
    assert unpacked_apart(packed, ".zip", 1000) == unpacked(packed, ".zip", 1000) == SCRIPT
    assert unpacked_apart(tarred(b""), ".tar", 1000) == SCRIPT


HARMFUL = {
    "gigabytes of zeros": (lambda: zipped([bytes(10**7)] * 100, zipfile.ZIP_BZIP2), ".zip"),
    "overlapping records": (lambda: tarred(b"5 xx\n" * 40_000 + b"="), ".tar"),
    "a megabyte of digits": (lambda: tarred(b"1" * 10**6), ".tar"),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_what_is_made_to_take_everything_takes_little(name):
    make, kind = HARMFUL[name]
    packed = make()
    assert len(packed) < 1_500_000
    began = time.monotonic()
    with pytest.raises(NotGradableError, match=r"cannot be unpacked within|cannot be read|more than"):
        unpacked_apart(packed, kind, 64_000)
    assert time.monotonic() - began < 6 * MOST_S + 5


def test_a_damaged_archive_says_why():
    with pytest.raises(NotGradableError, match=r"it cannot be read .BadZipFile"):
        unpacked_apart(b"no archive", ".zip", 1000)
    with pytest.raises(NotGradableError, match=r"holds no train\.py"):
        unpacked_apart(bytes(10 * tarfile.BLOCKSIZE), ".tar", 1000)
