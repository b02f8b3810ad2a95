"""Whether a run stands still is judged only by what was seen of it."""

import sys
import time
from types import SimpleNamespace

import pytest
from conftest import need

from assessment.forked import ForkedRanks, Idle

SLEEPS = "import time; time.sleep(60)"
COMPUTES = "while True: pass"
# Who starts a process by vfork sleeps as one that waits for a disk does, until that process goes its own way.
WAITS = "import ctypes, time; ctypes.CDLL(None).vfork() or time.sleep(60)"


@pytest.mark.parametrize(("text", "is_idle"), [(SLEEPS, True), (COMPUTES, False), (WAITS, False)])
def test_a_run_is_idle_that_neither_computes_nor_reads(server, tmp_path, text, is_idle):
    need(sys.platform == "linux", "sleeps are told apart by the system")
    script = tmp_path / "script.py"
    script.write_text(text)
    ranks = ForkedRanks(server, [script], 1)
    try:
        time.sleep(1)  # to the script's first line
        assert asked_for(3, Idle(server, 1.5)) == is_idle
    finally:
        ranks.kill()


def test_a_pause_of_the_whole_machine_is_no_idleness():
    computed = [5.0]
    is_idle = Idle(SimpleNamespace(activity=lambda: (computed[0], False)), limit_s=1)
    assert not is_idle()
    time.sleep(1.5)  # nobody looks, as when a virtual machine is stopped and goes on
    assert not is_idle()
    computed[0] += 1
    assert not asked_for(0.8, is_idle)
    assert asked_for(1.5, is_idle)


def asked_for(seconds, is_idle):
    """Ask for ``seconds`` whether it is idle; stop at the first yes."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if is_idle():
            return True
        time.sleep(0.05)
    return False
