"""A process that has imported torch, and forks off the ranks of trials: each starts at once.

Importing torch and what an optimizer asks for takes every rank six seconds, a trial itself one. The server does
it once. A forked rank gets the environment that torchrun would give it, its own log, the recorder, and runs the
script as ``__main__`` from top to bottom. It ends with the server, the server with the program that started it.

Client and server speak lines of JSON: an order on standard input, the rank's pid on standard output. How a rank
ended stands in the file ``exit`` of its order.
"""

import atexit
import ctypes
import json
import os
import random
import runpy
import signal
import subprocess
import sys
import tokenize
import traceback
from contextlib import suppress
from pathlib import Path

from utils import processes as system
from utils.errors import UserError
from utils.tether import PR_SET_PDEATHSIG, send_output_to


class ForkServer:
    """The client's side: ``fork`` starts a rank, ``exit_code`` says whether and how it ended."""

    def __init__(self):
        command = system.tethered([sys.executable, "-u", "-m", "assessment.fork_server"])
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self._process = system.start(command, threads=1, **pipes)

    def fork(self, argv, env, log, exit_file):
        """Run the script ``argv[0]`` with ``env`` added to the environment and return its pid."""
        order = {"argv": [str(one) for one in argv], "env": env, "log": str(log), "exit": str(exit_file)}
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
        answer = self._process.stdout.readline()
        if not answer:
            raise UserError("the process that starts trials has ended: run the check again")
        return int(answer)

    def close(self):
        """End the server and every rank that still runs."""
        system.kill(system.family(self._process.pid))
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                pipe.close()
        self._process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def exit_code(exit_file):
    """Return the exit code of a rank (negative for a signal), None while it runs."""
    path = Path(exit_file)
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else None


def serve():
    """Import what ranks need, then fork one off for each order until standard input ends."""
    import torch._dynamo
    import torch.nn.parallel
    import torch.utils.data.distributed  # noqa: F401

    exits = {}

    def reap(*_):
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                with suppress(OSError):  # the run may be over, and its folder gone
                    Path(exits[pid]).write_text(f"{os.waitstatus_to_exitcode(status)}\n")

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        order = json.loads(line)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        server, pid = os.getpid(), os.fork()
        if pid == 0:
            become_rank(order, server)
        exits[pid] = order["exit"]
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        print(pid, flush=True)


def become_rank(order, server):
    """Turn this forked process into a rank that runs the script of ``order``; never returns."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:
        os._exit(1)
    os.environ.update(order["env"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    send_output_to(order["log"])
    sys.argv = order["argv"]
    sys.path[0:0] = [os.path.dirname(sys.argv[0])]
    random.seed()  # a process of its own would draw its own numbers
    code = 1
    try:
        if "LOCKSTEP_EVIDENCE" in os.environ:
            from assessment import recorder, watch_training, watch_world

            own = recorder.Recorder()
            watch_training.watch(own)
            watch_world.watch(own)
        with tokenize.open(sys.argv[0]) as script:
            script.read()  # Python refuses a file whose bytes are no text; runpy alone would not
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if code and end.code != code:
            print(end.code, file=sys.stderr)
    except BaseException as error:
        tell(error, sys.argv[0])
    finally:
        with suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def tell(error, script):
    """Print the traceback of ``error`` from the script's first line on."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != script:
        frame = frame.tb_next
    traceback.print_exception(type(error), error, frame)


if __name__ == "__main__":
    serve()
