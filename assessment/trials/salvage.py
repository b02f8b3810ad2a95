"""Take what a stranger's run has left behind, without following where it leads.

A script may put links, pipes, devices or a million files where its record should be, or another folder in the place
of its own. What is read afterwards is a copy that holds plain files only.
"""

import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

MOST_FILES, DEEPEST = 5_000, 12
CHUNK = 1 << 20
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


class NotPlainError(Exception):
    """What was left behind cannot be taken; the text says why."""


def salvage(root, folder, most_bytes):
    """Replace ``folder``, which lies below ``root``, by a copy of the plain files in it.

    No process that could write there may run any more. Raises ``NotPlainError`` where the folder is not the one that
    was made, or holds too much.
    """
    root, folder = Path(root), Path(folder)
    copy = Path(tempfile.mkdtemp(prefix="salvaged-", dir=root.parent))
    try:
        at = os.open(root, FOLDER)
        for part in folder.relative_to(root).parts:
            at = _below(at, part)
        _Copier(most_bytes).copy(at, copy)
        remove(folder)
        folder.mkdir()
        for path in copy.iterdir():
            shutil.move(path, folder / path.name)
    except OSError as error:
        raise NotPlainError(f"what the run left cannot be read ({error.strerror})") from None
    finally:
        remove(copy)


def remove(folder):
    """Remove ``folder`` and all below it, however deep or hidden, and no file that a link there leads to."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    if subprocess.run(["rm", "-rf", "--", str(folder)], **quiet).returncode and not os.path.islink(folder):
        subprocess.run(["chmod", "-R", "u+rwX", "--", str(folder)], **quiet)  # folders that may not be entered
        subprocess.run(["rm", "-rf", "--", str(folder)], **quiet)


def _below(at, part):
    try:
        return os.open(part, FOLDER, dir_fd=at)
    finally:
        os.close(at)


class _Copier:
    def __init__(self, most_bytes):
        self.bytes_left, self.files_left = most_bytes, MOST_FILES

    def copy(self, source, target, depth=0):
        """Copy the plain files of the folder ``source`` (an open descriptor, closed here) to the path ``target``."""
        try:
            names = os.listdir(source)
            self.files_left -= len(names)
            if self.files_left < 0 or depth > DEEPEST:
                raise NotPlainError(f"the run left more than {MOST_FILES:,} files, or folders {DEEPEST} deep")
            for name in names:
                mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
                if stat.S_ISDIR(mode):
                    (target / name).mkdir()
                    self.copy(os.open(name, FOLDER, dir_fd=source), target / name, depth + 1)
                elif stat.S_ISREG(mode):
                    self._copy_file(os.open(name, FILE, dir_fd=source), target / name)
        finally:
            os.close(source)

    def _copy_file(self, number, target):
        with open(number, "rb") as file, open(target, "wb") as out:
            if not stat.S_ISREG(os.fstat(number).st_mode):
                raise NotPlainError("the run goes on changing what it left")
            while chunk := file.read(CHUNK):
                self.bytes_left -= len(chunk)
                if self.bytes_left < 0:
                    raise NotPlainError("the run left more than can be read")
                out.write(chunk)
