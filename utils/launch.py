"""Start a training script with torchrun from a program or a notebook, watch it, stop it.

    run = launch("solutions/03_ddp.py", "--dataset", "digits", processes=2, run_dir="runs/first")
    run.wait(show=True)

``launch`` returns at once. Whatever happens to the caller, no process stays behind: a run that is
stopped or interrupted, or whose caller ends or is killed, is gone within five seconds (Linux).
"""

import atexit
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from concurrent.futures import Future
from pathlib import Path

import psutil

from utils import runs
from utils.devices import physical_cores
from utils.errors import UserError
from utils.failures import explain_failure

TETHER = Path(__file__).with_name("tether.py")
GRACE_S = 3.0  # what a run gets to write down that it was stopped, before it is killed
POLL_S = 0.1

_live = weakref.WeakSet()


class RunError(Exception):
    """A run failed; the text begins with the output of the rank that failed first, uncut."""


def launch(script, *args, processes=2, run_dir=None, threads=None, env=None):
    """Start ``script`` with ``args`` as ``processes`` ranks on this machine and return a ``Run`` at once.

    ``run_dir`` is handed to the script as ``--run-dir``; without it the run has no metrics to show.
    ``threads`` is what each process computes with (default: the physical cores shared out evenly).
    ``env`` adds to the environment. Raises ``UserError`` where the script does not exist.
    """
    script = Path(script)
    if not script.is_file():
        raise UserError(f"{script.absolute()} does not exist: name a script to launch")
    if processes < 1:
        raise UserError(f"processes={processes} makes no run: choose 1 or more")
    logs = tempfile.TemporaryDirectory(prefix="lockstep-")
    worker = [str(TETHER), f"{logs.name}/rank{{rank}}.log", sys.executable, "-u", str(script), *map(str, args)]
    if run_dir is not None:
        worker += ["--run-dir", str(run_dir)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, str(TETHER), f"{logs.name}/torchrun.log", *torchrun, *worker]
    environment = os.environ | {
        "LOCKSTEP_PARENT": str(os.getpid()),
        "OMP_NUM_THREADS": str(threads or max(1, physical_cores() // processes)),
        "PYTHONUNBUFFERED": "1",
    }
    process = _starter.start(command, environment | (env or {}))
    run = Run(process, logs, processes, run_dir)
    _live.add(run)
    return run


class Run:
    """A run that ``launch`` started: ``state``, ``log()``, ``metrics()``, ``wait()``, ``result()``, ``stop()``."""

    def __init__(self, process, logs, processes, run_dir):
        self.processes = processes
        self.run_dir = None if run_dir is None else Path(run_dir)
        self._process, self._logs = process, logs
        self._stop_asked = False
        self._shown = {}

    def __repr__(self):
        return f"<Run of {self.processes} processes in {self.run_dir}: {self.state}>"

    @property
    def state(self):
        """``running``, ``finished``, ``stopped`` or ``failed``."""
        code = self._process.poll()
        if code is None:
            return "running"
        state = "stopped" if self._stop_asked else "finished" if code == 0 else "failed"
        if self.run_dir is not None:
            runs.set_state(self.run_dir, state)
        return state

    def log(self, rank=0):
        """Return all that ``rank`` has printed so far; ``rank="torchrun"`` gives the launcher's own words."""
        path = self._log_path(rank)
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def metrics(self):
        """Return the rows of ``metrics.csv`` so far, one dictionary for each finished epoch."""
        return [] if self.run_dir is None else runs.read_metrics(self.run_dir)

    def wait(self, timeout=None, show=False):
        """Wait until the run ends, or ``timeout`` seconds, and return its state.

        ``show`` prints what the ranks print, as it comes. An interrupt (Ctrl-C, the notebook's stop
        button) stops the run on all ranks before it passes on.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while self.state == "running" and (deadline is None or time.monotonic() < deadline):
                time.sleep(POLL_S)
                if show:
                    self._show()
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            if show:
                self._show()
        return self.state

    def result(self, timeout=None):
        """Wait for the end and return the run's ``summary.json`` (None without a ``run_dir``).

        Raises ``RunError`` with the first failing rank's traceback, or where the run was stopped;
        ``TimeoutError`` after ``timeout`` seconds, having stopped it.
        """
        state = self.wait(timeout)
        if state == "running":
            self.stop()
            last = "\n".join(f"rank {rank}: {self._last_line(rank)}" for rank in range(self.processes))
            raise TimeoutError(
                f"the run did not end within {timeout} s and was stopped; each rank's last line:\n{last}"
            )
        if state == "stopped":
            raise RunError("the run was stopped")
        if state == "failed":
            logs = {rank: self._log_path(rank) for rank in range(self.processes)}
            raise RunError(explain_failure(logs, self.log("torchrun")))
        return None if self.run_dir is None else runs.read_json(self.run_dir / "summary.json")

    def stop(self):
        """Stop the run on all ranks and return when every process is gone; within five seconds."""
        if self._process.poll() is not None:
            return
        self._stop_asked = True
        family = _family(self._process.pid)
        self._process.send_signal(signal.SIGTERM)  # torchrun passes it on to the workers
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            family |= _family(self._process.pid)
        # Workers live in sessions of their own, so each is ended by its number.
        for process in family:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(family, timeout=1)
        self._process.wait()
        if self.run_dir is not None:
            runs.set_state(self.run_dir, "stopped")

    def _log_path(self, rank):
        return Path(self._logs.name) / ("torchrun.log" if rank == "torchrun" else f"rank{rank}.log")

    def _last_line(self, rank):
        lines = self.log(rank).strip().splitlines()
        return lines[-1] if lines else "(nothing printed)"

    def _show(self):
        """Print the whole lines that have come since the last call; ranks above 0 with their number."""
        for rank in range(self.processes):
            text = self.log(rank)[self._shown.get(rank, 0) :]
            whole = text[: text.rfind("\n") + 1] if self._process.poll() is None else text
            self._shown[rank] = self._shown.get(rank, 0) + len(whole)
            for line in whole.splitlines():
                print(line if rank == 0 else f"[rank {rank}] {line}", flush=True)


def _family(pid):
    """Return the process ``pid`` and all its descendants, as far as they still live."""
    try:
        process = psutil.Process(pid)
        return {process, *process.children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


class _Starter:
    """Start processes from one thread that lives as long as this program does.

    The parent-death signal fires when the thread that started a process ends, and a run may be
    launched from a thread that does not stay.
    """

    def __init__(self):
        self._orders = queue.SimpleQueue()
        self._thread = None
        self._lock = threading.Lock()

    def start(self, command, environment):
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="lockstep-starter", daemon=True)
                self._thread.start()
        started = Future()
        self._orders.put((command, environment, started))
        return started.result()

    def _serve(self):
        while True:
            command, environment, started = self._orders.get()
            try:
                started.set_result(
                    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
                )
            except OSError as error:
                started.set_exception(error)


_starter = _Starter()


@atexit.register
def _stop_all():
    for run in list(_live):
        run.stop()
