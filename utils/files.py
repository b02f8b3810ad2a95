"""Files that are written whole or not at all."""

import errno
import os
import shutil
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

from utils.errors import UserError

MEGABYTE = 1_000_000


@contextmanager
def written_whole(path):
    """Yield a temporary path beside ``path``; what is written there becomes ``path`` in one step.

    Whoever reads ``path`` sees the old file or the whole file that replaces it, never a part. When
    the block raises, the temporary file is removed; ``OSError`` becomes a ``UserError`` that names
    the folder, and so does a writer's ``RuntimeError`` on a disk that is full.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        # torch.save reports a full disk as a RuntimeError of its file writer, without the errno.
        if isinstance(error, OSError) or "inline_container" in str(error):
            raise UserError(cannot_write(path, error)) from error
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def cannot_write(path, error):
    """Say in one line why ``path`` could not be written and what to do about it."""
    reason, number = getattr(error, "strerror", None), getattr(error, "errno", None)
    if reason is None or number == errno.ENOSPC:
        free = shutil.disk_usage(_there(path)).free / MEGABYTE
        return f"cannot write {path}: the disk has {free:,.0f} MB left; free some space or choose another folder"
    if number in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        what = Path(path) if Path(path).exists() else _there(path)
        kind = "folder" if what.is_dir() else "file" if what.is_file() else "device or a pipe"
        return f"cannot write {path}: {'it' if what == Path(path) else what} is a {kind}; choose another folder"
    if number == errno.ENAMETOOLONG:
        return f"cannot write {path}: {reason}; choose another folder with a shorter name"
    return f"cannot write {path}: {reason}; choose another folder that you may write to"


def refuse_special(path):
    """Raise ``UserError`` where ``path`` is a pipe, a socket or a device: who opens one may wait for ever."""
    path = Path(path)
    with suppress(OSError):  # what cannot be asked for cannot be opened either: that is told there
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UserError(f"{path} is a pipe, a socket or a device: remove it or name another place")


def _there(path):
    """Return the nearest folder, or file, above ``path`` that there is."""
    above = Path(path).absolute().parent
    while True:
        with suppress(OSError):  # a name may be too long to ask for
            if above.exists():
                return above
        above = above.parent


def remove_parts(folder, stem):
    """Remove what killed writers and downloads of ``stem`` left in ``folder``; call it while nobody writes."""
    for leftover in Path(folder).glob(f".{stem}.*.part"):
        with suppress(OSError):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
