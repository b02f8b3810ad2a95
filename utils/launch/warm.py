"""Start Python programs warm: forked off a process that has imported torch, where a start takes seconds of a core.

``start`` gives what ``subprocess.Popen`` would. The process off which programs are forked starts with the first of
them and ends with this one. A program starts cold where its environment differs from that process's in what is read
as torch is imported, with ``LOCKSTEP_COLD=1``, where there is a GPU (CUDA does not outlive a fork), and on systems
other than Linux.
"""

import atexit
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress

from utils.launch.forking import ROOM, TETHER, parse

READ_AT_IMPORT = (
    "ATEN",
    "CUDA",
    "DNNL",
    "GOMP",
    "KMP",
    "LD_",
    "MALLOC",
    "MKL",
    "ONEDNN",
    "OPENBLAS",
    "PYTHON",
    "TORCH",
)
# What says where a process stands, and how ranks meet, is read later; the folder of a cache is set by torch itself when
# it is imported.
NOT_READ = ("PYTHONUNBUFFERED", "TORCHELASTIC_", "TORCHINDUCTOR_CACHE_DIR", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE")
OPTIONS = {"stdin", "stdout", "stderr", "text", "bufsize", "start_new_session", "env"}


class WarmProcess:
    """A program that was forked off the server: what the course uses of a ``Popen``."""

    def __init__(self, args, report, stdin, stdout):
        self.args, self.stdin, self.stdout, self.returncode = args, stdin, stdout, None
        self._report, self._told, self._lock = report, b"", threading.Lock()

    @property
    def pid(self):
        """The process's number; waits until there is one. 0, which nobody has, where the server ended before that."""
        while b"\n" not in self._told and self.returncode is None:
            self._read(None)
        return int(self._told.partition(b"\n")[0] or 0)

    def poll(self):
        """Return the exit code, negative for a signal, or None while the program runs."""
        while self._read(0):
            pass
        return self.returncode

    def wait(self, timeout=None):
        """Return the exit code, once there is one. Raises ``subprocess.TimeoutExpired`` after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self._read(left)
        return self.returncode

    def send_signal(self, number):
        """Send a signal to a program that runs."""
        if self.poll() is None and self.pid:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self):
        """Ask the program to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self):
        """End the program."""
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout):
        """Take in what the server reports within ``timeout`` seconds; return whether anything came."""
        with self._lock:
            if self.returncode is not None or not select.select([self._report], [], [], timeout)[0]:
                return False
            part = self._report.recv(64)
            self._told += part
            if not part or self._told.count(b"\n") == 2:
                code = self._told.partition(b"\n")[2] if part else b""
                self.returncode = int(code or -signal.SIGKILL)  # programs end with their server
                self._report.close()
            return True


class _Server:
    """The process off which programs are forked, as seen from this one."""

    def __init__(self, environment, start_cold):
        self._owner, self._lock = os.getpid(), threading.Lock()
        self._imported_with = _read_at_import(environment)
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        number = theirs.fileno()
        serving = [sys.executable, "-u", "-m", "utils.launch.forking", str(number), ROOM]
        # A folder of its own: MKL does not load where this program's folder is gone by then.
        options = {"stdin": subprocess.DEVNULL, "start_new_session": True, "cwd": TETHER.parents[2]}
        own = environment | {"OMP_NUM_THREADS": "1", "LOCKSTEP_PARENT": str(os.getpid())}
        self._process = start_cold(
            [sys.executable, str(TETHER), "-", *serving], options | {"env": own, "pass_fds": [number]}
        )
        theirs.close()

    def suits(self, environment):
        """Say whether a program with this environment can be forked off."""
        return self._imported_with == _read_at_import(environment)

    @property
    def is_alive(self):
        return self._owner == os.getpid() and self._process.poll() is None

    def end(self):
        """End the server, and with it every program that it has forked."""
        if self.is_alive:
            self._process.kill()
            self._process.wait()

    def start(self, command, *, env, stdin, stdout=None, stderr=None, text=False, bufsize=-1, start_new_session):
        """Let the server fork off ``command``; the options are those of ``Popen``. Raises ``OSError`` if it cannot."""
        with ExitStack() as sent:  # what is the server's is closed here, once it has it
            report, to_report = socket.socketpair()
            sent.enter_context(to_report)
            fed = heard = None
            if stdin == subprocess.PIPE:
                stdin, fed = _pipe(bufsize)
            else:
                stdin = open(os.devnull, "rb")  # noqa: SIM115 (closed with the others)
            sent.enter_context(stdin)
            if stdout == subprocess.PIPE:
                heard, stdout = _pipe(bufsize)
                sent.enter_context(stdout)
            streams = [stdin.fileno(), stdout.fileno() if stdout else 1, stderr.fileno() if stderr else 2]
            order = {"command": [str(one) for one in command], "env": env, "cwd": os.getcwd()}
            with self._lock:
                socket.send_fds(self._orders, [json.dumps(order).encode()], [*streams, to_report.fileno()])
        if text:
            fed, heard = (pipe and io.TextIOWrapper(pipe) for pipe in (fed, heard))
        return WarmProcess(command, report, fed, heard)


_server = None
_lock = threading.Lock()


def start(command, options, start_cold):
    """Start ``command`` and return its ``WarmProcess``; None where it is to be started cold.

    ``options`` are those of ``Popen``, with the whole ``env``; ``start_cold`` is what starts the server.
    """
    env = options["env"]
    if not _is_wanted(env) or parse(command) is None or set(options) - OPTIONS:
        return None
    server = _running_server(start_cold)
    if not server.suits(env):
        return None
    try:
        return server.start(command, **options)
    except OSError:  # it has just ended, or the environment is too long for one message
        return None


def warm_up(start_cold):
    """Start the server, where programs would be forked off one; ``start_cold`` is what starts it."""
    if _is_wanted(os.environ):
        _running_server(start_cold)


def _is_wanted(environment):
    if sys.platform != "linux" or environment.get("LOCKSTEP_COLD") == "1":
        return False
    import torch  # here, since whoever starts cold need not wait for it

    return not torch.cuda.is_available()


def _running_server(start_cold):
    global _server
    with _lock:
        if _server is None or not _server.is_alive:
            _server = _Server(os.environ, start_cold)
        return _server


@atexit.register
def _end_server():
    if _server is not None:
        _server.end()


def _pipe(bufsize):
    return [os.fdopen(end, mode, bufsize) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True)]


def _read_at_import(environment):
    relevant = {name: told for name, told in environment.items() if name.startswith(READ_AT_IMPORT)}
    return {name: told for name, told in relevant.items() if not name.startswith(NOT_READ)}
