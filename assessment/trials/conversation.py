"""Talk with a process of one's own in lines of JSON: an order on its standard input, the answer on its output."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

from utils.errors import UserError
from utils.launch import processes as system

LONGEST = 10_000_000  # bytes of one answer
READY_S = 120
SAID = 2_000  # bytes of standard error that are told


class LostError(UserError):
    """The process at the other end has ended, or somebody has ended it; the text says why."""


class Conversation:
    """The side that asks. The process starts with the first order, and again where it has ended by itself.

    It ends with this program. Its first line, of whatever content, says that it is ready. What it says on standard
    error goes where this program's does, and where it ``keeps_apart`` to a file that ``said`` reads.
    """

    def __init__(self, command, *, name, keeps_apart=False):
        self._command, self._name, self._process = command, name, None
        self._errors = tempfile.TemporaryFile() if keeps_apart else None  # noqa: SIM115
        self.stopped = None  # why it was ended for good

    @property
    def pid(self):
        """Return the number of the process, None where none runs."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def members(self):
        """Return the process and all its descendants, none where none runs."""
        pid = self.pid  # read once: it may end at any time
        return set() if pid is None else system.family(pid)

    def said(self):
        """Return the end of what the process has said on standard error, where that is kept apart."""
        if self._errors is None:
            return ""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), SAID, max(0, size - SAID)).decode("utf-8", "replace")

    def ask(self, order, limit):
        """Return the answer to ``order``. Raises ``LostError`` where none comes within ``limit`` seconds."""
        if self.stopped:
            raise LostError(self.stopped)
        if self.pid is None:
            self._begin()
        with suppress(OSError):
            self._process.stdin.write((json.dumps(order) + "\n").encode())
        return self._answer(limit)

    def stop(self, reason):
        """End the process for good: every order from here on raises ``LostError`` with ``reason``."""
        self.stopped = reason
        system.kill(self.members())

    def close(self):
        """End the process and all that it has started."""
        if self._process is None:
            return
        system.kill(system.family(self._process.pid))
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()
        self._process.wait()
        self._process = None

    def _begin(self):
        self.close()
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
        pipes |= {"stderr": self._errors} if self._errors else {}
        self._process = system.start(system.tethered(self._command), threads=1, **pipes)
        self._answer(READY_S)

    def _answer(self, limit):
        line, deadline = b"", time.monotonic() + limit
        while not line.endswith(b"\n"):
            left = max(0, deadline - time.monotonic())
            ready, _, _ = select.select([self._process.stdout], [], [], left)
            part = os.read(self._process.stdout.fileno(), 65536) if ready else b""
            line += part
            if not part or not left or len(line) > LONGEST:
                self.close()
                raise LostError(self.stopped or f"{self._name} has ended, or does not answer")
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            self.close()
            raise LostError(f"{self._name} said what it never says") from None


def answering(answer):
    """Answer each order with ``answer(order, pipe)`` until standard input ends; ``pipe`` is that of the answers.

    What anybody prints meanwhile goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), answers)), file=answers)
