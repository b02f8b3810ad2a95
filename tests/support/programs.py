"""Programs in processes forked off one that has imported torch: each starts at once.

    started = Program("utils.data", "digits", "--data-dir", folder)      # as python -m utils.data ... does
    done = run_program(ROOT / "solutions/01_one_device.py", "--epochs", 1)  # as python solutions/01_one_device.py
    started = Program("-c", "print('here')")

Importing torch takes most of a short program's time, and a whole core. What differs from a start by the shell:
modules that the course has in common are imported already.
"""

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Nothing of the course itself: its modules are to be imported in the process whose environment they may look at.
PRELOADED = ["torch", "torch._dynamo", "torch.nn.parallel", "torchvision.datasets", "sklearn.datasets"]


def fork_context():
    """Return the ``multiprocessing`` context of the one server from which all processes of the tests are forked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


class Program:
    """A program that runs: a module's name, a script's path, or ``-c`` and its text, with arguments.

    ``environment`` replaces that of the tests, ``cwd`` is the course's folder. Output is read from files, as it comes.
    """

    def __init__(self, name, *args, environment=None, cwd=ROOT):
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep-program-")
        self._outputs = [Path(self._folder.name) / end for end in ("out", "err")]
        for path in self._outputs:
            path.touch()
        words = [str(one) for one in (name, *args)]
        environment = dict(os.environ if environment is None else environment)
        arguments = (words, environment, str(cwd), [str(path) for path in self._outputs])
        self._process = fork_context().Process(target=_become, args=arguments, daemon=True)
        self._process.start()
        self.pid = self._process.pid

    @property
    def stdout(self):
        return self._outputs[0].read_text()

    @property
    def stderr(self):
        return self._outputs[1].read_text()

    @property
    def is_running(self):
        return self._process.is_alive()

    def send_signal(self, number):
        """Send a signal to the program."""
        if self.is_running:
            os.kill(self.pid, number)

    def wait(self, timeout=60):
        """Wait for the end and return what ``subprocess.run`` would; kill a program that takes ``timeout`` seconds."""
        self._process.join(timeout)
        if self.is_running:
            self.kill()
            raise subprocess.TimeoutExpired("the program", timeout, self.stdout, self.stderr)
        return subprocess.CompletedProcess("the program", self._process.exitcode, self.stdout, self.stderr)

    def kill(self):
        """End the program at once."""
        self.send_signal(signal.SIGKILL)
        self._process.join()


def run_program(name, *args, timeout=120, **options):
    """Run a program to its end and return what ``subprocess.run`` would."""
    return Program(name, *args, **options).wait(timeout)


def _become(words, environment, cwd, outputs):
    """Be the program in this process, down to its signals and its exit code; never return."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, path in zip((1, 2), outputs, strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    name, *arguments = words
    sys.path[0:0] = [os.path.dirname(name) if name.endswith(".py") else cwd]
    code = 1
    try:
        _run(name, arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _run(name, arguments):
    if name == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    elif name.endswith(".py"):
        sys.argv = [name, *arguments]
        runpy.run_path(name, run_name="__main__")
    else:
        sys.argv = [name, *arguments]
        runpy.run_module(name, run_name="__main__", alter_sys=True)
