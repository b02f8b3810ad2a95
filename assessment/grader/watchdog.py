"""What all processes of a sandbox take together: memory, disk, files and output, limited by a watch.

Memory is counted by the kernel where it lets us have a control group; elsewhere, and the disk always, by looking at
processes and folders. Counted are then also what has no name: memory files, and files that are open and deleted. Not
seen are those that nobody holds open: in flight between two processes, or mapped and closed. For those the machine's
own memory and disk are watched.
"""

import os
import shutil
import threading
import time
from contextlib import suppress

import psutil

from assessment.grader.sandbox import MEGABYTE
from assessment.trials.conversation import LostError

POLL_S, MOST_FILES, DEEPEST = 0.25, 20_000, 50
SPARE_MB = 500  # what the machine keeps of its memory and its disk


class Watch:
    """While it is open, stop ``server`` where its processes together take more than ``limits`` allow.

    ``group`` is the ``ControlGroup`` that counts their memory, None where there is none.
    """

    def __init__(self, server, limits, group=None):
        self.server, self.limits, self.group = server, limits, group
        self._began, self._over = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        if self.group:  # before anything of a script's has begun
            self.group.take(one.pid for one in self.server.members())
        self._thread.start()
        return self

    def __exit__(self, _kind, problem, _traceback):
        self._over.set()
        self._thread.join()
        if isinstance(problem, LostError) and self.group and self.group.has_refused:
            raise LostError(self._much_memory()) from problem  # the kernel was quicker than the watch

    def _much_memory(self):
        return f"its processes took more than {self.limits.memory_mb:,} MB of memory"

    def _look(self):
        while not self._over.wait(POLL_S):
            try:
                reason = self._excess()
            except Exception as problem:  # whoever blinds the watch is stopped
                reason = f"its processes and files could not be watched ({type(problem).__name__}: {problem})"
            if reason:
                self.server.stop(reason)
                return

    def _excess(self):
        """Return what is taken in excess, None where nothing is."""
        limits = self.limits
        if time.monotonic() - self._began > limits.wall_s:
            return f"it took more than the {limits.wall_s:.0f} s that one submission has"
        members = self.server.members()
        if _sum(members, lambda one: one.num_threads()) > 0.9 * limits.processes:  # the system refuses at the limit
            return f"it started more than {0.9 * limits.processes:.0f} processes and threads"
        most, work = limits.memory_mb * MEGABYTE, self.server.work
        if self.group:
            self.group.take(one.pid for one in members)
            if self.group.has_refused:
                return self._much_memory()
        in_memory, on_disk = _nameless(members, work)
        # Pages that forked processes share are counted once; reading that takes longer, so only in doubt.
        is_much = _sum(members, lambda one: one.memory_info().rss) + in_memory > most
        if is_much and _sum(members, _own_memory) + in_memory > most:
            return self._much_memory()
        if min(psutil.virtual_memory().available, shutil.disk_usage(work).free) < SPARE_MB * MEGABYTE:
            return f"it left this machine less than {SPARE_MB} MB of memory or disk"
        files, taken, printed, depth = _taken(work)
        if printed > limits.output_mb * MEGABYTE:
            return f"it printed more than {limits.output_mb} MB"
        if depth > DEEPEST:
            return f"it made folders more than {DEEPEST} deep"
        if taken + on_disk > limits.disk_mb * MEGABYTE or files > MOST_FILES:
            return f"it wrote more than {limits.disk_mb:,} MB or {MOST_FILES:,} files"
        return None


def _sum(members, number):
    """Return the sum of ``number`` over processes, as far as they still live."""
    total = 0
    for one in members:
        with suppress(psutil.Error):
            total += number(one)
    return total


def _own_memory(process):
    try:
        return process.memory_full_info().pss
    except psutil.AccessDenied:
        return process.memory_info().rss


def _nameless(members, work):
    """Return the bytes of open files without a name that ``members`` hold: in memory, and on the disk of ``work``."""
    held, disk = {}, os.stat(work).st_dev
    for one in members:
        folder = f"/proc/{one.pid}/fd"
        with suppress(OSError):  # it has ended, or is one of those that the system hides
            for number in os.listdir(folder):
                with suppress(OSError):
                    if os.readlink(f"{folder}/{number}").endswith(" (deleted)"):
                        found = os.stat(f"{folder}/{number}")
                        held[found.st_dev, found.st_ino] = found.st_blocks * 512
    on_disk = sum(size for (device, _), size in held.items() if device == disk)
    return sum(held.values()) - on_disk, on_disk


def _taken(folder):
    """Return how many files and folders are below ``folder``, their bytes, those of what was printed, and the depth.

    Counting ends where there are too many, or too deep.
    """
    files = taken = printed = deepest = 0
    folders = [(folder, 0)]
    while folders and files <= MOST_FILES and deepest <= DEEPEST:
        below, depth = folders.pop()
        deepest = max(deepest, depth)
        # One that may not be read blinds the watch: that is told, and ends the run.
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(below) as entries:
            for entry in entries:
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:  # gone or renamed meanwhile: the others count
                    continue
                files, taken = files + 1, taken + found.st_blocks * 512
                printed += found.st_size if entry.name.endswith(".log") else 0
                if entry.is_dir(follow_symlinks=False):
                    folders.append((entry.path, depth + 1))
    return files, taken, printed, deepest
