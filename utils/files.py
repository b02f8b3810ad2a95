"""Files that are written whole or not at all."""

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
    folder = Path(path).absolute().parent
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if getattr(error, "strerror", None) and "No space" not in error.strerror:
        reason = error.strerror
    else:
        reason = f"the disk has {free / MEGABYTE:,.0f} MB left"
    return f"cannot write {path}: {reason}; free some space or choose another folder that you may write to"


def remove_parts(folder, stem):
    """Remove what killed writers and downloads of ``stem`` left in ``folder``; call it while nobody writes."""
    for leftover in Path(folder).glob(f".{stem}.*.part"):
        with suppress(OSError):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
