"""Start a training script with torchrun from a program or a notebook, watch it, stop it.

    run = launch("solutions/03_ddp.py", "--dataset", "digits", processes=2, run_dir="runs/first")
    run.wait(show=True)

``launch`` returns at once. Whatever happens to the caller, no rank stays behind: a run that is
stopped or interrupted, or whose caller ends or is killed, is gone within five seconds (Linux). ``stop`` ends what ranks
have started as well; what they leave otherwise is theirs to end, as a DataLoader's workers do by themselves.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from utils import runs
from utils.errors import UserError, shortened
from utils.launch import processes as system
from utils.launch.failures import explain_failure, reported_exits
from utils.launch.rank_logs import RankLogs

# Ranks that start again would wait for the addresses of those before them, which torchrun's own store still holds.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
GRACE_S = 3.0  # what a run gets to write down that it was stopped, before it is killed
POLL_S = 0.1

_live = set()  # runs that this program has started and that have not ended


class RunError(Exception):
    """A run failed; the text begins with the output of the rank that failed first, uncut."""


def launch(script, *args, processes=2, run_dir=None, threads=None, env=None, restarts=0):
    """Start ``script`` with ``args`` as ``processes`` ranks on this machine and return a ``Run`` at once.

    ``run_dir`` is handed to the script as ``--run-dir``; without it the run has no metrics to show.
    ``threads`` is what each process computes with (default: the physical cores shared out evenly).
    ``env`` adds to the environment. After a failure torchrun starts all ranks again, at most ``restarts`` times.
    Raises ``UserError`` where the script does not exist, or an argument makes no run.
    """
    if not isinstance(script, (str, Path)):
        raise UserError(f"{shortened(script)} is no script: name the file of one to launch")
    script = Path(script)
    if not script.is_file():
        raise UserError(f"{script.absolute()} does not exist: name a script to launch")
    system.refuse_count("processes", processes)
    if threads is not None:
        system.refuse_count("threads", threads)
    if type(restarts) is not int or restarts < 0:
        raise UserError(f"restarts={restarts!r} makes no run: choose a whole number, 0 or more")
    if not isinstance(env or {}, dict):
        raise UserError(f"env={shortened(env)} is no dictionary: give names and values, as in {{'A': '1'}}")
    for one in [part for pair in (env or {}).items() for part in pair]:
        if not isinstance(one, str) or "\0" in one:
            raise UserError(f"env holds {one!r}: names and values are texts, without the character of number 0")
    wrong = next((name for name in env or {} if not name or "=" in name), None)
    if wrong is not None:
        raise UserError(f"env holds the name {wrong!r}: a name is not empty, and has no = in it")
    if run_dir is not None and (not isinstance(run_dir, (str, Path)) or not str(run_dir)):
        raise UserError(f"run_dir={run_dir!r} names no folder: name one, or leave it out")
    logs = RankLogs(processes)
    record = [] if run_dir is None else ["--run-dir", run_dir]
    worker = system.tethered([sys.executable, "-u", script, *args, *record], logs.path("{rank}"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    torchrun += [f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    # torchrun starts its argument with Python, which the tether needs no second time.
    command = system.tethered([*torchrun, *worker[1:]], logs.path("torchrun"))
    env = (OWN_STORE if restarts else {}) | (env or {})
    run = Run(system.start(command, processes=processes, threads=threads, env=env), logs, run_dir)
    _live.add(run)
    _mind_sigterm()
    return run


class Run:
    """A run that ``launch`` started: ``state``, ``log()``, ``metrics()``, ``wait()``, ``result()``, ``stop()``."""

    def __init__(self, process, logs, run_dir):
        self.processes = logs.processes
        self.run_dir = None if run_dir is None else Path(run_dir)
        self._process, self._logs = process, logs
        self._stop_asked, self._launched = False, time.time()

    def __repr__(self):
        return f"<Run of {self.processes} processes in {self.run_dir}: {self.state}>"

    @property
    def state(self):
        """``running``, ``finished``, ``stopped`` or ``failed``."""
        code = self._process.poll()
        if code is None:
            return "running"
        self._leave()
        state = "stopped" if self._stop_asked else "finished" if code == 0 else "failed"
        if self.run_dir is not None:
            runs.set_state(self.run_dir, state, self._launched)
        return state

    def _leave(self):
        _live.discard(self)
        _mind_sigterm()

    @property
    def pids(self):
        """The numbers of the ranks' processes, in the order of their ranks; fewer where not all have started yet."""
        return system.children(self._process.pid)

    def log(self, rank=0):
        """Return all that ``rank`` has printed so far; ``rank="torchrun"`` gives the launcher's own words."""
        return self._logs.text(rank)

    def metrics(self):
        """Return the rows of ``metrics.csv`` so far, one dictionary for each finished epoch."""
        path = self.run_dir and self.run_dir / "metrics.csv"
        is_own = path and path.exists() and path.stat().st_mtime >= self._launched  # not an earlier run's
        return runs.read_metrics(self.run_dir) if is_own else []

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
                    self._logs.show()
        except KeyboardInterrupt:
            self.stop()
            raise
        finally:
            if show:
                self._logs.show(is_over=self._process.poll() is not None)
        return self.state

    def result(self, timeout=None, show=False):
        """Wait for the end and return the run's ``summary.json`` (None without a ``run_dir``).

        Raises ``RunError`` with the first failing rank's traceback, or where the run was stopped;
        ``TimeoutError`` after ``timeout`` seconds, having stopped it.
        """
        state = self.wait(timeout, show)
        if state == "running":
            self.stop()
            last = "\n".join(f"rank {rank}: {self._logs.last_line(rank)}" for rank in range(self.processes))
            raise TimeoutError(f"not over after {timeout} s, so it was stopped; the last line of each rank:\n{last}")
        if state == "stopped":
            raise RunError("the run was stopped")
        if state == "failed":
            raise RunError(self.failure())
        return None if self.run_dir is None else runs.read_json(self.run_dir / "summary.json")

    def failure(self):
        """Return why the run failed: the output of the rank that failed first, then the others' last lines."""
        exits = reported_exits(self.log("torchrun"))
        return explain_failure(self._logs, exits) if exits else f"torchrun failed:\n{self.log('torchrun').strip()}"

    def stop(self):
        """Stop the run on all ranks and return when every process is gone; within five seconds."""
        if self._process.poll() is not None:
            return
        self._stop_asked = True
        members = system.family(self._process.pid)
        self._process.send_signal(signal.SIGTERM)  # torchrun passes it on to the workers
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            members |= system.family(self._process.pid)
        # Workers live in sessions of their own, so each is ended by its number.
        system.kill(members)
        self._process.wait()
        self._leave()
        if self.run_dir is not None:
            runs.set_state(self.run_dir, "stopped", self._launched)


@atexit.register
def _stop_all():
    for run in list(_live):
        run.stop()


def _mind_sigterm():
    """While runs live, have SIGTERM stop them before it ends a program that leaves that signal to the system."""
    if threading.current_thread() is not threading.main_thread():  # no other thread may say so
        return
    handler = signal.getsignal(signal.SIGTERM)
    if _live and handler is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)
    elif not _live and handler is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_sigterm(number, _frame):
    signal.signal(number, signal.SIG_DFL)
    _stop_all()
    os.kill(os.getpid(), number)
