"""Start processes that end with this program, and end them together with all that they started."""

import os
import queue
import subprocess
import sys
import threading
from concurrent.futures import Future

import psutil

from utils.devices import physical_cores
from utils.errors import UserError, shortened
from utils.launch import warm
from utils.launch.forking import TETHER

MOST = 1_024  # processes of one run: all are on this machine, and each takes memory before it does anything


def refuse_count(name, count):
    """Raise ``UserError`` where ``count``, which the caller calls ``name``, is no whole number from 1 to ``MOST``."""
    if type(count) is not int or not 1 <= count <= MOST:
        raise UserError(f"{name}={shortened(count)} makes no run: choose a whole number from 1 to {MOST:,}")


def tethered(command, log="-"):
    """Return ``command`` as one that ends when its parent does and prints into the file ``log``.

    ``-`` leaves its output where it is; ``{rank}`` in the name stands for the process's rank.
    """
    return [sys.executable, str(TETHER), str(log), *map(str, command)]


def start(command, *, processes=1, threads=None, env=None, **options):
    """Start ``command``, one of ``processes`` that share this machine, and return its ``Popen``, or what is like it.

    A tethered Python program is forked off one that has imported torch, see ``utils.launch.warm``. Each process gets
    ``threads`` to compute with (default: the physical cores shared out evenly). ``env`` adds to the environment;
    ``options`` go to ``Popen``.
    """
    environment = os.environ | {
        "LOCKSTEP_PARENT": str(os.getpid()),
        "OMP_NUM_THREADS": str(threads or max(1, physical_cores() // processes)),
        "PYTHONUNBUFFERED": "1",
    }
    options = {"stdin": subprocess.DEVNULL, "start_new_session": True} | options | {"env": environment | (env or {})}
    return warm.start(command, options, _starter.start) or _starter.start(command, options)


def warm_up():
    """Have what programs import ready before the first of them starts. Returns at once."""
    warm.warm_up(_starter.start)


def family(pid):
    """Return the process ``pid`` and all its descendants, as far as they still live.

    Raises ``TypeError`` for None, which psutil takes for this very process.
    """
    if pid is None:
        raise TypeError("family of no process: read its number once, and ask whether there is one")
    try:
        process = psutil.Process(pid)
        return {process, *process.children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def children(pid):
    """Return the numbers of the processes that ``pid`` has started and that still run, in the order of their start."""
    try:
        found = psutil.Process(pid).children()
        running = [one for one in found if one.status() != psutil.STATUS_ZOMBIE]
        return [one.pid for one in sorted(running, key=lambda one: (one.create_time(), one.pid))]
    except psutil.NoSuchProcess:
        return []


def kill(members):
    """Kill processes with signal 9 and wait until they are gone."""
    for process in members:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(members, timeout=1)


class _Starter:
    """Start processes from one thread that lives as long as this program does.

    The parent-death signal fires when the thread that started a process ends, and the caller's thread
    may not stay.
    """

    def __init__(self):
        self._orders = queue.SimpleQueue()
        self._thread = None
        self._lock = threading.Lock()

    def start(self, command, options):
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="lockstep-starter", daemon=True)
                self._thread.start()
        started = Future()
        self._orders.put((command, options, started))
        return started.result()

    def _serve(self):
        while True:
            command, options, started = self._orders.get()
            try:
                started.set_result(subprocess.Popen(command, **options))
            except Exception as error:  # the caller gets it; this thread must stay
                started.set_exception(error)


_starter = _Starter()
