"""Turn a process that was forked off into a rank that runs a script, with what torchrun would give it.

As a program it is a ``StandBy``, which no fork has given anything in common with others.
"""

import atexit
import ctypes
import json
import os
import random
import runpy
import signal
import sys
import tokenize
import traceback
from contextlib import suppress
from datetime import timedelta

from assessment.recorder import count, install, probe
from utils.devices import physical_cores
from utils.launch.tether import PR_SET_PDEATHSIG, send_output_to

PR_SET_DUMPABLE = 4


def become_rank(argv, env, log, parent):
    """Run the script ``argv[0]`` as ``__main__`` in this process, which was forked off by ``parent``; never returns.

    ``env`` adds to the environment, output goes to the file ``log``.
    """
    belong_to(parent)
    os.setsid()
    os.environ.update(env)
    let_go_of_the_servers(log)
    if sys.platform == "linux":  # a rank is a process like any other, now that it holds nothing of the server's
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
    random.seed()  # a process of its own would draw its own numbers
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    run(argv, env, {"hash": salted_hash()})


def run(argv, env, names=None):
    """Run the script ``argv[0]``, with ``names`` among its own, and end the process.

    With ``LOCKSTEP_EVIDENCE`` in ``env`` the recorder is at work before the script's first line; with
    ``LOCKSTEP_PROBE`` the script's functions are called instead. With ``LOCKSTEP_COUNTS`` nothing but steps is counted.
    """
    sys.argv = argv
    sys.path[0:0] = [os.path.dirname(argv[0])]
    if torch := sys.modules.get("torch"):
        # A fork leaves torch's pool of threads to be made anew; two threads that do so at once abort the process. Ranks
        # share the cores: more threads than those wait for each other.
        torch.set_num_threads(max(1, physical_cores() // int(env.get("WORLD_SIZE", 1))))
    code = 1
    try:
        recorder = install() if "LOCKSTEP_EVIDENCE" in env else None
        if "LOCKSTEP_COUNTS" in env:
            count(env["LOCKSTEP_COUNTS"])
        with tokenize.open(argv[0]) as script:
            script.read()  # Python refuses a file whose bytes are no text; runpy alone would not
        if "LOCKSTEP_PROBE" in env:
            probe(env["LOCKSTEP_PROBE"], runpy.run_path(argv[0], run_name="probed"), recorder)
        else:
            runpy.run_path(argv[0], names, "__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if code and end.code != code:
            print(end.code, file=sys.stderr)
    except BaseException as error:
        tell(error, argv[0])
    finally:
        with suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class StandBy:
    """A process that imports what ranks need, and waits to be told which rank it is; it ends with ``parent``.

    A rank that was forked has much in common with others, as the order of a set of texts. This one has not: it is
    a program of its own, as torchrun's ranks are.
    """

    def __init__(self, parent):
        read, self._order = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            belong_to(parent)
            os.setsid()
            let_go_of_the_servers(os.devnull)
            os.dup2(read, 0)
            flags = ["-P"] * sys.flags.safe_path + ["-s"] * sys.flags.no_user_site
            os.execv(sys.executable, [sys.executable, *flags, "-u", "-m", __name__])
        os.close(read)

    def become_rank(self, argv, env, log):
        """Have it run the script ``argv[0]`` as ``become_rank`` does."""
        with suppress(BrokenPipeError):  # it was ended: so is the rank then
            os.write(self._order, (json.dumps([argv, env, log]) + "\n").encode())
        self.let_go()

    def let_go(self):
        """Have nothing more to do with it: what was forked off the process that made it is not to tell it anything."""
        os.close(self._order)


def salted_hash():
    """Return ``hash`` as a process of its own would have it, in which texts hash otherwise than in any other."""
    if os.environ.get("PYTHONHASHSEED", "random") != "random":
        return hash
    salt = random.getrandbits(60)

    def has_text(value):
        return any(map(has_text, value)) if isinstance(value, tuple) else isinstance(value, (str, bytes))

    return lambda value: hash(value) ^ salt if has_text(value) else hash(value)


def belong_to(parent):
    """Undo what a fork inherits from the server, and end when the server ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def let_go_of_the_servers(log):
    """Send output to the file ``log``, and keep no standard input: those of the server are not this process's."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    send_output_to(log)


def tell(error, script):
    """Print the traceback of ``error`` from the script's first line on."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename != script:
        frame = frame.tb_next
    traceback.print_exception(type(error), error, frame)


def host_store(parent, port_pipe):
    """Hold the store through which the ranks of one run find each other, as torchrun's agent does; never returns.

    The port, which the system chooses, is written into ``port_pipe``. Strangers' scripts run beside it as the same
    user: it holds nothing that they could use, and as it cannot be dumped the system keeps them from looking into it.
    """
    from torch.distributed import TCPStore

    belong_to(parent)
    let_go_of_the_servers(os.devnull)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    os.write(port_pipe, f"{store.port}\n".encode())
    os.close(port_pipe)
    while True:
        signal.pause()


def import_torch():
    """Import what every rank needs, which takes seconds."""
    import torch._dynamo
    import torch.nn.parallel
    import torch.utils.data.distributed  # noqa: F401


if __name__ == "__main__":
    import_torch()
    argv, env, log = json.loads(sys.stdin.readline() or sys.exit())
    os.environ.update(env)
    let_go_of_the_servers(log)
    run(argv, env)
