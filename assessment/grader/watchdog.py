"""What all processes of a sandbox take together: memory, disk, files and output, limited by a watch."""

import os
import shutil
import threading
import time
from contextlib import suppress

import psutil

from assessment.grader.sandbox import MEGABYTE
from utils.launch import processes as system

POLL_S, MOST_FILES = 0.25, 20_000
SPARE_MB = 500  # what the machine keeps of its memory and its disk


class Watch:
    """While it is open, stop ``server`` where its processes together take more than ``limits`` allow."""

    def __init__(self, server, limits):
        self.server, self.limits = server, limits
        self._began, self._over = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

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
        members = system.family(self.server.pid) if self.server.pid else ()
        if _sum(members, lambda one: one.num_threads()) > 0.9 * limits.processes:  # the system refuses at the limit
            return f"it started more than {0.9 * limits.processes:.0f} processes and threads"
        most = limits.memory_mb * MEGABYTE
        # Pages that forked processes share are counted once; reading that takes longer, so only in doubt.
        if _sum(members, lambda one: one.memory_info().rss) > most and _sum(members, _own_memory) > most:
            return f"its processes took more than {limits.memory_mb:,} MB of memory"
        work = self.server.work
        if min(psutil.virtual_memory().available, shutil.disk_usage(work).free) < SPARE_MB * MEGABYTE:
            return f"it left this machine less than {SPARE_MB} MB of memory or disk"
        files, taken, printed = _taken(work)
        if printed > limits.output_mb * MEGABYTE:
            return f"it printed more than {limits.output_mb} MB"
        if taken > limits.disk_mb * MEGABYTE or files > MOST_FILES:
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


def _taken(folder):
    """Return how many files and folders there are below ``folder``, their bytes, and those of what was printed.

    Counting ends where there are too many.
    """
    files = taken = printed = 0
    folders = [folder]
    while folders and files <= MOST_FILES:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                found = entry.stat(follow_symlinks=False)
                files, taken = files + 1, taken + found.st_blocks * 512
                printed += found.st_size if entry.name.endswith(".log") else 0
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return files, taken, printed
