"""Become another Python program, in a process forked off one that has imported torch: it starts at once.

    python -m utils.launch.forking SOCKET

Importing torch, and what its optimizers ask for, takes a process longer than a short training run. The server here
does it once and forks a process for each order that it gets (see ``utils.launch.warm``). The process then does what its
command would do in a process of its own: tied to its parent, with its own output, environment, folder, arguments,
signals and random numbers, its own ``utils`` and its own exit code. torchrun forks its ranks in turn.

Two things differ, and show only where programs are started cold, with ``LOCKSTEP_COLD=1`` or from a terminal: nothing
is torn down after a program's last line and its exit handlers, and texts hash alike in all processes of one server, so
that a set of names has the same order on every rank.
"""

import atexit
import ctypes
import json
import math
import os
import random
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import tokenize
import traceback
import warnings
from contextlib import suppress
from pathlib import Path

from utils.launch.tether import send_output_to, tie_to_parent

TETHER = Path(__file__).with_name("tether.py")
MOST_BYTES = 1 << 20  # of one order
ROOM = " " * 4_000  # an argument that does nothing: in its place a forked process writes its own command line
TORCHRUN = "torch.distributed.run"
POLL_S = 0.02


def parse(command):
    """Return ``(log, module, argv)`` of a tethered Python command, or None where it is none.

    ``module`` is what ``-m`` names, None for a script, whose path is ``argv[0]`` then.
    """
    python, *words = map(str, command)
    words = words[words[:1] == ["-u"] :]
    if python != sys.executable or words[2:3] != [sys.executable] or os.path.basename(words[0]) != TETHER.name:
        return None
    log, words = words[1], words[3:]
    words = words[words[:1] == ["-u"] :]
    if words[:1] == ["-m"]:
        return log, words[1], words[1:]
    return None if not words or words[0].startswith("-") else (log, None, words)


class Forked:
    """A process that this one has forked, with the methods of a ``Popen`` that torchrun asks for."""

    def __init__(self, command, env):
        self.args, self.returncode = command, None
        sys.stdout.flush()
        parent, self.pid = os.getpid(), os.fork()
        if self.pid == 0:
            os.setsid()
            become(command, env, parent)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout=math.inf):
        deadline = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(POLL_S)
        return self.returncode


def become(command, env, parent):
    """Be the tethered ``command`` in this process, which ``parent`` has forked for it; never returns."""
    log, module, argv = parse(command)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # a background job's programs ignore it too
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.environ.clear()
    os.environ.update(env | {"LOCKSTEP_PARENT": str(parent)})
    tie_to_parent()
    if log != "-":
        send_output_to(log.replace("{rank}", os.environ.get("RANK", "")))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=True)
    _be_called(command)
    _draw_own_numbers()
    _compute_with(int(env.get("OMP_NUM_THREADS", 1)))
    for name in [name for name in sys.modules if name.partition(".")[0] == "utils"]:
        del sys.modules[name]  # another folder may have a utils of its own
    sys.argv = argv
    sys.path[0] = os.getcwd() if module else os.path.dirname(os.path.abspath(argv[0]))
    code = _run(module, argv)
    if code == -signal.SIGINT:  # an interrupted interpreter ends by the signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(code & 0xFF)


def _run(module, argv):
    """Run the program to its end, with its exit handlers; return its exit code, -2 where it was interrupted."""
    code = 1
    try:
        if module == TORCHRUN:
            _fork_ranks()
        if module:
            sys.modules.pop(module, None)  # runpy warns of a module that is there before it runs
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            with tokenize.open(argv[0]) as script:
                script.read()  # Python refuses a file whose bytes are no text; runpy alone would not
            runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        error.__traceback__ = _own_part(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    with suppress(Exception):
        threading._shutdown()  # waits for the program's threads, as an interpreter does at its end
    with suppress(Exception):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    return code


def _own_part(frame):
    """Return a traceback without the frames above the program's first line."""
    above = (__file__, runpy.__file__, "<frozen runpy>")
    while frame is not None and frame.tb_frame.f_code.co_filename in above:
        frame = frame.tb_next
    return frame


def _fork_ranks():
    """Let torchrun fork the commands that a tether stands before; others, and all where it has no such place, start."""
    with suppress(ImportError, AttributeError):
        from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler as handler

        popen = handler.Popen
        handler.Popen = lambda args, env, **options: (
            Forked(args, env)
            if parse(args) and not (options.get("stdout") or options.get("stderr"))
            else popen(args=args, env=env, **options)
        )


def _be_called(command):
    """Show the command to ps and to all who look for it, where this system keeps a process's command line."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc_pid_stat(5), counted from field 3
        words = "\0".join(map(str, command[3:])).encode()
        ctypes.memmove(start, words[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _draw_own_numbers():
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _compute_with(threads):
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def serve(orders):
    """Fork a process for each order that comes over the socket ``orders``, until its other end is closed.

    An order is one message: a mapping with ``command``, ``env`` and ``cwd``, and with it four descriptors: standard
    input, output and error of the process, and a pipe for two lines about it, its number and its exit code.
    """
    server, reports = os.getpid(), {}  # and a pipe by process

    def reap(*_):
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                if pid in reports:
                    _say(reports.pop(pid), os.waitstatus_to_exitcode(status))

    signal.signal(signal.SIGCHLD, reap)
    _import_what_takes_long()
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, MOST_BYTES, 4)
        if not order:
            return
        *streams, report = descriptors
        order = json.loads(order)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # none is to end before it is known
        pid = os.fork()
        if pid == 0:
            orders.close()
            for number, descriptor in enumerate(streams):
                os.dup2(descriptor, number)
            for descriptor in (*descriptors, *reports.values()):
                os.close(descriptor)
            os.setsid()
            os.chdir(order["cwd"])
            become(order["command"], order["env"], server)
        reports[pid] = report
        os.write(report, f"{pid}\n".encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        for descriptor in streams:
            os.close(descriptor)


def _say(report, code):
    with suppress(OSError):
        os.write(report, f"{code}\n".encode())
    os.close(report)


def _import_what_takes_long():
    """Import what programs of the course have in common; what cannot be imported they find out themselves."""
    try:
        import torch._dynamo
        import torch.distributed.run  # noqa: F401
        import torchvision  # noqa: F401
    except Exception:
        traceback.print_exc()


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    serve(socket.socket(fileno=int(sys.argv[1])))
