"""A control group of the kernel's (cgroups(7)): the memory of all processes of a sandbox, counted where it is given.

Unlike looking at processes, it misses nothing: memory that is mapped and closed, files in memory that are passed from
process to process. Not everybody may make one: root may, and users whose session hands the control of memory on, as
systemd's do.
"""

import itertools
import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

MOUNTS, OWN = Path("/proc/self/mounts"), Path("/proc/self/cgroup")
# What a group is told and asked, in both versions of the interface.
LIMITS = ("memory.max", "memory.limit_in_bytes")
EVENTS = ("memory.events", "memory.oom_control")
PREFIX = "lockstep-"
_numbers = itertools.count()


class ControlGroup:
    """The group in ``folder``; where its processes take more than ``memory`` bytes together, the kernel ends some."""

    def __init__(self, folder, memory):
        self.folder = folder
        (limit,) = [folder / name for name in LIMITS if (folder / name).exists()]
        limit.write_text(str(memory))
        for name, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):  # of the second version
            if (folder / name).exists():
                (folder / name).write_text(value)

    def take(self, pids):
        """Take processes in that are not in it yet; what they start from then on is in it as well."""
        inside = set((self.folder / "cgroup.procs").read_text().split())
        for pid in pids:
            if str(pid) not in inside:
                with suppress(OSError):  # it has ended
                    (self.folder / "cgroup.procs").write_text(str(pid))

    @property
    def has_refused(self):
        """Say whether the kernel has ended a process, because there was no more memory to be had."""
        (events,) = [self.folder / name for name in EVENTS if (self.folder / name).exists()]
        counts = dict(line.split() for line in events.read_text().splitlines())
        return int(counts.get("oom_kill", 0)) > 0


@contextmanager
def control_group(memory):
    """Yield a ``ControlGroup`` for ``memory`` bytes, None where none is to be had; it is gone when the block ends."""
    folder = next((made for place in _places() if (made := _made(place))), None)
    try:
        yield ControlGroup(folder, memory) if folder else None
    finally:
        if folder:
            _remove(folder)


def _places():
    """Yield folders of groups in which this process may perhaps make another: its own first."""
    own = dict(line.split(":", 2)[1:] for line in OWN.read_text().splitlines())
    for line in MOUNTS.read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup2" and "" in own:
            place = Path(mount + own[""])
            yield place
            if own[""] != "/":
                yield place.parent  # where systemd lets a user divide what the session has
        elif kind == "cgroup" and "memory" in options.split(","):
            yield from (Path(mount + path) for names, path in own.items() if "memory" in names.split(","))


def _remove(folder):
    """Remove a group once the system has ended its processes."""
    for _ in range(50):
        try:
            return folder.rmdir()
        except OSError:
            time.sleep(0.1)


def _made(place):
    """Return a group made in ``place``, None where that may not be or where it would not control memory."""
    folder = place / f"{PREFIX}{os.getpid()}-{next(_numbers)}"
    for left in place.glob(f"{PREFIX}*"):  # by graders that were killed
        if not psutil.pid_exists(int(left.name.split("-")[1])):
            with suppress(OSError):
                left.rmdir()
    try:
        folder.mkdir()
    except OSError:
        return None
    if any((folder / name).exists() and os.access(folder / name, os.W_OK) for name in LIMITS):
        return folder
    with suppress(OSError):
        folder.rmdir()
    return None
