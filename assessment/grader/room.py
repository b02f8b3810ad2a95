"""The folder in which a class is graded, and the end of those that killed graders have left.

A grader that is killed hard cleans up nothing. Each holds the lock of its room as long as it lives, so the next one
knows which rooms are nobody's.
"""

import os
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from assessment.trials.salvage import remove

PREFIX, LOCK = "lockstep-grade-", ".lock"


@contextmanager
def room():
    """Yield the path of a folder of its own, which goes with all that is in it when the block ends."""
    remove_left()
    made = Path(tempfile.mkdtemp(prefix=PREFIX))
    try:
        with FileLock(made / LOCK):
            yield made
    finally:
        remove(made)


def remove_left():
    """Remove the rooms of this user whose graders live no more."""
    for place in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError, Timeout):  # another user's; or somebody is at work in it, or begins to be
            if place.lstat().st_uid == os.getuid() and (place / LOCK).is_file():
                with FileLock(place / LOCK, timeout=0):
                    remove(place)
