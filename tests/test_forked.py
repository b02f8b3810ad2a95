"""Whether a run stands still is judged only by what was seen of it."""

import time
from types import SimpleNamespace

from assessment.forked import Idle


def test_a_run_is_idle_after_its_limit_and_not_after_a_pause_of_the_whole_machine():
    computed = [5.0]
    is_idle = Idle(SimpleNamespace(cpu_s=lambda: computed[0]), limit_s=1)
    assert not is_idle()
    time.sleep(1.5)  # nobody looks, as when a virtual machine is stopped and goes on
    assert not is_idle()
    computed[0] += 1
    assert not asked_for(0.8, is_idle)
    assert asked_for(1.5, is_idle)


def test_who_computes_a_little_is_not_idle():
    computed = [5.0]

    def a_little():
        computed[0] += 0.02
        return computed[0]

    assert not asked_for(1.5, Idle(SimpleNamespace(cpu_s=a_little), limit_s=0.6))


def asked_for(seconds, is_idle):
    """Ask for ``seconds`` whether it is idle; stop at the first yes."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if is_idle():
            return True
        time.sleep(0.05)
    return False
