"""Write down what a training script does, from inside its processes.

Loaded beside the unchanged script (``beside/sitecustomize.py``). Every event is one line of JSON in the
file of this process under ``$LOCKSTEP_EVIDENCE``, written at once, so that it survives whatever ends the
process. The recorder talks to no other rank, draws no random numbers and changes no value: the script's
results are the same to the last bit. What is written down is said in ``training`` and ``world``.
"""

import faulthandler
import json
import os
import signal
import sys
import time
from functools import wraps

# As they are: what a script calls may be shortened, or tell another time.
sleep, monotonic = time.sleep, time.monotonic


class Recorder:
    """The state of recording in this process."""

    def __init__(self):
        self.pid = os.getpid()
        self.script = os.path.abspath(sys.argv[0])
        folder = os.environ["LOCKSTEP_EVIDENCE"]
        self._file = open(os.path.join(folder, f"{self.pid}.jsonl"), "a", buffering=1, encoding="utf-8")  # noqa: SIM115
        self._stacks = open(os.path.join(folder, f"{self.pid}.stack"), "w")  # noqa: SIM115
        faulthandler.register(signal.SIGUSR1, self._stacks, all_threads=False)
        self.delays = json.loads(os.environ.get("LOCKSTEP_DELAYS", "{}"))
        self.has_asked = False  # whether the script has asked for its rank
        self.has_fetched = False  # whether it has taken an image to train on
        self.steps = 0  # of its optimizers, or passes where torch knows of none
        self.calling = False  # inside a call that is noted
        self.messages = 0  # entered, or waited for
        self.note("start", rank=os.environ.get("RANK"))

    def note(self, event, **facts):
        """Write one event; a process that was forked off (a loader's worker) writes none."""
        if os.getpid() == self.pid:
            self.messages += event in ("collective", "waited")
            self._file.write(json.dumps({"event": event, "time": monotonic()} | facts) + "\n")

    def delay(self, what):
        """Wait as the checker asks: ``LOCKSTEP_DELAYS`` maps ``what:rank`` to seconds, or to a signal that comes then.

        ``what once:rank`` is for the first time only.
        """
        rank = os.environ.get("RANK")
        seconds = self.delays.get(f"{what}:{rank}", 0) or self.delays.pop(f"{what} once:{rank}", 0)
        if isinstance(seconds, str):
            os.kill(os.getpid(), getattr(signal, seconds))
        elif seconds:
            sleep(seconds)
            self.note("delayed", what=what)

    def is_spoilt(self):
        """Say whether this rank's logits in the step that is being taken are to be no numbers."""
        return f"logits {self.steps + 1}:{os.environ.get('RANK')}" in self.delays

    def place(self):
        """Return the line of the script that is being executed, or None."""
        frame = sys._getframe(1)
        while frame is not None:
            if os.path.abspath(frame.f_code.co_filename) == self.script:
                return frame.f_lineno
            frame = frame.f_back
        return None


def announce(recorder, owner, name, facts=lambda *_args, **_kwargs: {}, event="call", called=None, returned=None):
    """Note each call of ``owner.name`` as it begins, as ``called``; not those that it makes itself.

    ``returned`` is shown what comes back of calls that stand in the script itself.
    """
    function = getattr(owner, name)

    @wraps(function)
    def call(*args, **kwargs):
        if recorder.calling:
            return function(*args, **kwargs)
        recorder.note(event, name=called or name, line=recorder.place(), **facts(*args, **kwargs))
        recorder.calling = True
        try:
            came_back = function(*args, **kwargs)
        finally:
            recorder.calling = False
        if returned and os.path.abspath(sys._getframe(1).f_code.co_filename) == recorder.script:
            returned(name, came_back)
        return came_back

    setattr(owner, name, call)
