"""Run a stranger's processes where they see little, change little and soon come to an end.

A ``Sandbox`` has PIDs, a network (its loopback only) and files of its own: the course's modules and Python to read,
one folder to write to. Debian's bubblewrap makes it, or util-linux' ``unshare`` with ``sandbox_root.py``. What a single
process may take is limited by the system (setrlimit(2)); what all take together, a ``Watch`` limits.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sklearn

from assessment.starters.regions import ROOT
from utils.errors import UserError

BUBBLEWRAP, UNSHARE, NONE = "bubblewrap", "unshare", "none"
MEGABYTE = 1_000_000
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc/hosts", "/etc/ld.so.cache", "/etc/nsswitch.conf")
SYSTEM += ("/etc/localtime", "/etc/alternatives", "/sys/devices/system/cpu")
# Originals of the embedded datasets: what is prepared is all that a script may see of them.
MASKED = Path(sklearn.__file__).parent / "datasets/data/digits.csv.gz"
# Users that are nobody, another for each sandbox: the system counts a user's processes together.
_users = itertools.count((os.getpid() % 4_000_000) * 1000 + 100_000_000)


@dataclass(frozen=True)
class Limits:
    """What a submission may take; each process on its own, or all of its processes together."""

    wall_s: float = 600  # of the trials, and of each training run
    cpu_s: int = 1200  # of one process
    memory_mb: int = 6000  # of one process, and of all together
    processes: int = 500  # with their threads
    open_files: int = 1024
    file_mb: int = 200
    disk_mb: int = 600
    output_mb: int = 5


@cache
def best_kind():
    """Return which kind of sandbox works on this machine: it is tried, not guessed."""
    for kind in (BUBBLEWRAP, UNSHARE):
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                Sandbox(kind, None, Limits()).wrap(["/bin/true"]), timeout=20, capture_output=True, cwd="/"
            )
            if done.returncode == 0:
                return kind
    return NONE


@dataclass(frozen=True)
class Sandbox:
    """One sandbox: ``work`` can be written to, what is in ``readable`` can be read, beside Python and the course.

    ``replaced`` holds pairs: a file, and the place where it is shown instead of the one that is there.
    """

    kind: str
    work: Path | None
    limits: Limits
    readable: tuple = ()
    replaced: tuple = ()
    devices: tuple = ()  # device files that it may use beside those that every program needs

    def wrap(self, command):
        """Return ``command`` as one that runs in this sandbox."""
        limited = self._limited([str(one) for one in command])
        if self.kind == BUBBLEWRAP:
            return self._bubblewrap(limited)
        return self._unshare(limited) if self.kind == UNSHARE else limited

    def _limited(self, command):
        """Return ``command`` under the limits of one process, as nobody in particular and without privileges."""
        limits = self.limits
        cpu = f"{limits.cpu_s}:{limits.cpu_s + 5}"  # at the first a process hears of it, at the second it ends
        numbers = {"cpu": cpu, "data": limits.memory_mb * MEGABYTE, "nofile": limits.open_files, "core": 0}
        numbers["fsize"] = limits.file_mb * MEGABYTE
        if self.kind != NONE:
            numbers["nproc"] = limits.processes
        prlimit = ["prlimit", *(f"--{name}={value}" for name, value in numbers.items())]
        if self.kind == NONE:
            found = shutil.which("prlimit")  # nothing else looks for it: no sandbox's own PATH does
            return [found, *prlimit[1:], *command] if found else command
        if self.kind == BUBBLEWRAP and os.getuid() != 0:
            return [*prlimit, *command]  # bubblewrap has taken all privileges away
        privileges = ["setpriv", "--no-new-privs", "--inh-caps=-all", "--bounding-set=-all"]
        if os.getuid() == 0:  # root is exempt from the limit of processes
            number = str(next(_users))
            privileges += ["--reuid", number, "--regid", number, "--clear-groups"]
        return [*prlimit, *privileges, *command]

    def _places(self):
        """Return the folders and files that can be read."""
        return [*filter(os.path.lexists, SYSTEM), *dict.fromkeys(map(str, (*shown_to_all(), *self.readable)))]

    def _environment(self):
        path = os.pathsep.join([os.path.dirname(sys.executable), "/usr/bin", "/bin"])
        return {
            "PATH": path,
            "HOME": "/tmp",
            "USER": "learner",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "TORCH_CPP_LOG_LEVEL": "ERROR",  # an address without a name is no news in a sandbox
        }

    def _bubblewrap(self, command):
        size = str(256 * 1024 * 1024)
        options = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        # As process 1, so that bubblewrap leaves none beside it that has the grader's environment and descriptors.
        options += ["--as-pid-1", "--die-with-parent", "--new-session", "--hostname", "localhost", "--cap-drop", "ALL"]
        if os.getuid() == 0:
            options += [part for name in ("SETUID", "SETGID", "SETPCAP") for part in ("--cap-add", f"CAP_{name}")]
        else:
            options += ["--unshare-user"]
            # The system counts how many a user has made, and those of the grader's user are few.
            options += ["--disable-userns"] if keeps_from_user_namespaces() else []
        options += ["--proc", "/proc", "--dev", "/dev"]
        for place in ("/dev/shm", "/tmp"):
            options += ["--perms", "1777", "--size", size, "--tmpfs", place]
        made = set()
        for place in self._places():
            if place in SYSTEM and os.path.islink(place):  # another link is shown as the folder that it leads to
                options += ["--symlink", os.readlink(place), place]
            else:
                options += [*_parents(place, made), "--ro-bind", place, place]
        for place in masked():
            options += ["--ro-bind", "/dev/null", place]
        if self.work:
            options += [*_parents(self.work, made), "--bind", str(self.work), str(self.work)]
        for source, place in self.replaced:
            options += ["--ro-bind", str(source), str(place)]
        for place in self.devices:
            options += [*_parents(place, made), "--dev-bind", place, place]
        options += ["--remount-ro", "/", "--remount-ro", "/dev", "--chdir", "/tmp", "--clearenv"]
        for name, value in self._environment().items():
            options += ["--setenv", name, value]
        return [shutil.which("bwrap") or "bwrap", *options, *command]

    def _unshare(self, command):
        plan = {
            "readable": self._places(),
            "work": self.work and str(self.work),
            "replaced": [*(["/dev/null", place] for place in masked())]
            + [[str(one) for one in pair] for pair in self.replaced],
            "devices": self.devices,
            "command": command,
            "environment": self._environment(),
        }
        own_user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
        kinds = ["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", *own_user]
        return [
            shutil.which("unshare") or "unshare",
            *kinds,
            sys.executable,
            str(ROOT / "assessment/grader/sandbox_root.py"),
            json.dumps(plan),
        ]


def shown_to_all():
    """Return the folders that every sandbox shows, beside the system's: Python and the course."""
    python = (sys.prefix, sys.base_prefix)
    return [str(one) for one in (*python, *map(os.path.realpath, python), ROOT / "utils", ROOT / "assessment")]


def refuse_shown(places):
    """Raise ``UserError`` where one of ``places`` (by what they are called) lies where every script may read it."""
    shown = [Path(os.path.realpath(one)) for one in (*shown_to_all(), *SYSTEM) if os.path.isdir(one)]
    for what, place in places.items():
        real = Path(os.path.realpath(place))
        around = next((one for one in shown if one in (real, *real.parents)), None)
        if around is not None:
            raise UserError(f"{what} {place} lies in {around}, which every submission can read: choose another folder")


def masked():
    """Return the paths, as sandboxes show them, of what is not to be read there."""
    return list(dict.fromkeys([str(MASKED), os.path.realpath(MASKED)]))


@cache
def keeps_from_user_namespaces():
    """Say whether this bubblewrap can keep a sandbox from making user namespaces (version 0.8 and later)."""
    try:
        told = subprocess.run(["bwrap", "--help"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return False
    return "--disable-userns" in told.stdout + told.stderr


def _parents(place, made):
    """Return the options that make the folders above ``place``, to be entered by anybody."""
    options = []
    for parent in reversed(Path(place).parents):
        if str(parent) not in ("/", "/tmp") and parent not in made:
            made.add(parent)
            options += ["--perms", "0755", "--dir", str(parent)]
    return options


def lacks(kind):
    """Return what an instructor is told where there is no sandbox, None where there is one."""
    if kind != NONE:
        return None
    there = [name for name in ("bwrap", "unshare") if shutil.which(name)]
    why = f"{' and '.join(there)} may not be used here" if there else "neither bubblewrap nor unshare is installed"
    return (
        f"there is no sandbox for scripts of strangers: {why}; install bubblewrap (apt install bubblewrap), or add"
        " --no-sandbox to run them with the rights that you have"
    )
