"""A process that has imported torch, and forks off the ranks of trials: each starts at once.

Importing torch and what an optimizer asks for takes every rank six seconds, a trial itself one. The server does
it once. It ends with the program that started it, and its ranks end with it. Whatever a rank starts and leaves
behind becomes the server's child (Linux), so that it can end it too.

The server may run in a sandbox: then it, the ranks and their store share a network of their own.
"""

import ctypes
import os
import shutil
import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import psutil

from assessment.trials.conversation import Conversation, LostError, answering
from assessment.trials.rank_process import PR_SET_DUMPABLE, StandBy, become_rank, host_store, import_torch
from assessment.trials.salvage import NotPlainError, salvage
from utils.launch import processes as system

PR_SET_CHILD_SUBREAPER = 36
ANSWER_S, PATIENCE_S = 20, 20
MOST_BYTES = 1_000_000_000


class ForkServer:
    """The client's side. The server starts at the first order, and again where it has ended.

    ``wrap`` turns the server's command into one that runs it in a sandbox, in which only ``work`` can be written
    to. Orders raise ``LostError`` where the server has come to an end. ``another`` makes a context manager that yields
    another server, in a sandbox that knows nothing of this one's. One that ``stands_by`` makes a process ready for a
    run whose ranks are apart.
    """

    def __init__(self, wrap=None, work=None, another=None, stands_by=False):
        # In a sandbox it begins in /tmp, where an earlier run may have put modules: it takes none from there.
        isolated = ["-P", "-s"] if wrap else []
        command = [sys.executable, *isolated, "-u", "-m", "assessment.trials.fork_server", *["stands by"] * stands_by]
        name = "the process that starts trials"
        # Nothing of this program's own is held where strangers' scripts run, nor anything that others' grades go to.
        self._talk = Conversation(wrap(command) if wrap else command, name=name, keeps_apart=wrap is not None)
        self.is_wrapped, self.own = wrap is not None, set()  # and the processes of its own
        self.is_in_run = False
        self.work = work and Path(work)
        self.kept = work and Path(f"{work}-kept")  # beside it, so that no sandbox shows it
        self._another = another
        self.patience_s = PATIENCE_S  # with who reads what was left in the sandbox

    @property
    def pid(self):
        """Return the number of the server's process, None where none runs."""
        return self._talk.pid

    def members(self):
        """Return the server's process and all that it has started, none where it does not run."""
        return self._talk.members()

    def rank_processes(self):
        """Return the processes that are ranks of the run, as long as they run."""
        inside, depth = self._ask("numbers")["ranks"], max(map(len, map(numbers_of, self.own)), default=1)
        found = {one: numbers_of(one) for one in self.members()}
        return {one for one, numbers in found.items() if len(numbers) == depth and numbers[-1] in inside}

    def said(self):
        """Return the end of what the server has said on standard error in a sandbox."""
        return self._talk.said()

    def open_to_ranks(self, folder):
        """Let ranks write into ``folder``, whoever they are in a sandbox."""
        if self.is_wrapped:
            Path(folder).chmod(0o777)

    def show_to_ranks(self, folder):
        """Let ranks find what is in ``folder``, whoever they are in a sandbox."""
        if self.is_wrapped:
            Path(folder).chmod(0o755)

    def settle(self, folder):
        """Once a run has ended, leave in ``folder`` only what can be read without harm.

        Where strangers' scripts run in a sandbox, nothing of theirs may be alive by then. Raises ``LostError`` where
        they left what cannot be read.
        """
        if not self.is_wrapped:
            return
        system.kill(self.members() - self.own)
        if self.members() - self.own:
            self.close()
        try:
            salvage(self.work, folder, MOST_BYTES)
        except NotPlainError as problem:
            raise LostError(str(problem)) from None

    def keep(self, folder):
        """Move ``folder``, which has settled, out of reach of the runs that follow; return where it is then."""
        if not self.is_wrapped:
            return folder
        self.kept.mkdir(mode=0o700, exist_ok=True)
        return Path(shutil.move(folder, self.kept / folder.name))

    def start(self, argvs, envs, logs, are_apart=False):
        """Start one run: a rank for each of ``argvs``, with what its ``envs`` add and its output in one of ``logs``.

        Ranks that ``are_apart`` share nothing that a fork inherits; unless one stands by, they take seconds to begin.
        """
        self.is_in_run = False  # another may have ended with its server
        self._ask("start", argvs=argvs, envs=envs, logs=[str(one) for one in logs], are_apart=are_apart)
        self.is_in_run = True

    def exits(self):
        """Return the exit code of each rank of the run that has ended, by rank; negative for a signal."""
        return {int(rank): code for rank, code in self._ask("exits").items()}

    def signal(self, pids, number):
        """Send a signal to processes, as the server numbers them."""
        self._ask("signal", pids=pids, number=int(number))

    def end(self):
        """End every rank of the run that goes on, and all that the ranks have started."""
        self.is_in_run = False
        if self.pid is None:
            return
        try:
            self._ask("end")
        except LostError:
            self.close()

    def stop(self, reason):
        """End the server for good: every order from here on raises ``LostError`` with ``reason``."""
        self._talk.stop(reason)

    def activity(self):
        """Return how many seconds all that the server has started has computed, and whether one waits for a disk."""
        total, is_reading = 0.0, False
        for one in self.members():
            with suppress(psutil.NoSuchProcess):
                total += sum(one.cpu_times()[:2])
                is_reading |= one.status() == psutil.STATUS_DISK_SLEEP
        return total, is_reading

    def apart(self):
        """Return a context manager that yields the server for a run that is to find nothing of earlier ones'."""
        return self._another() if self._another else nullcontext(self)

    def close(self):
        """End the server and all that it has started."""
        self._talk.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _ask(self, order, **facts):
        if self.pid is None and self.is_in_run:
            self.is_in_run = False
            raise LostError(self._talk.stopped or "the process that starts trials has ended")
        if self.pid is None:
            self._talk.ask({"order": "exits"}, ANSWER_S)
            self.own = self.members()  # nothing of a script's has run yet
        try:
            return self._talk.ask({"order": order} | facts, ANSWER_S)
        except LostError:
            self.is_in_run = False  # with the server its run is lost; the next order starts another
            raise


class Serving:
    """The server's side: a method for each order."""

    def __init__(self, stands_by):
        self.ranks, self.codes = {}, {}  # rank by pid, exit code by rank
        self.pid = os.getpid()
        self.ready = StandBy(self.pid) if stands_by else None
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # ranks are not to reach into the server

    def obey(self, facts, answers):
        """Return the answer to one order."""
        order = facts.pop("order")
        return self.start(answers, **facts) if order == "start" else getattr(self, order)(**facts)

    def start(self, answers, argvs, envs, logs, are_apart):
        self.ranks, self.codes = {}, {}
        self.reap()  # who stands by may have been ended
        read, write = os.pipe()
        if os.fork() == 0:
            self.let_go(answers)
            host_store(self.pid, write)
        os.close(write)
        port = os.read(read, 16).decode().strip()
        os.close(read)
        for rank, (argv, env, log) in enumerate(zip(argvs, envs, logs, strict=True)):
            env |= {"MASTER_PORT": port}
            if are_apart and rank:  # the first is apart from the others, if those are from each other
                ready, self.ready = self.ready or StandBy(self.pid), None
                ready.become_rank(argv, env, log)
                pid = ready.pid
            elif (pid := os.fork()) == 0:
                self.let_go(answers)
                become_rank(argv, env, log, self.pid)
            self.ranks[pid] = rank
        return {}

    def let_go(self, answers):
        """Close, in a process that was forked off, what only the server speaks through."""
        answers.close()
        if self.ready:
            self.ready.let_go()

    def exits(self):
        self.reap()
        return self.codes

    def reap(self):
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in self.ranks:
                    self.codes[self.ranks.pop(pid)] = os.waitstatus_to_exitcode(status)
                elif self.ready and pid == self.ready.pid:
                    self.ready = None

    def numbers(self):
        return {"ranks": list(self.ranks)}

    def signal(self, pids, number):
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        return {}

    def end(self):
        for _ in range(100):
            children = psutil.Process().children(recursive=True)
            children = [one for one in children if self.ready is None or one.pid != self.ready.pid]
            if not children:
                break
            system.kill(children)
            self.reap()
        self.ranks = {}
        return {}


def numbers_of(process):
    """Return the numbers of a process, from the one here to that in the innermost namespace that it lives in."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{process.pid}/status").read_text(errors="replace").splitlines()  # names are any bytes
        return [int(one) for one in next(line for line in lines if line.startswith("NSpid:")).split()[1:]]
    return [process.pid]


def serve(stands_by):
    """Import what ranks need, then obey one order after the other until standard input ends."""
    serving = Serving(stands_by)
    import_torch()
    answering(serving.obey)


if __name__ == "__main__":
    serve(sys.argv[1:] == ["stands by"])
