"""A process that one talks with may end at any moment; nobody else is ended for it."""

import psutil
import pytest

from assessment.trials.conversation import Conversation
from utils.launch import processes as system


class Ending:
    """A process that is there when it is asked for the first time, and gone from then on."""

    pid = 2**22 + 1  # of no process: the system's numbers end before

    def __init__(self):
        self.asked = 0

    def poll(self):
        self.asked += 1
        return None if self.asked == 1 else 0


@pytest.fixture
def talk():
    found = Conversation(["true"], name="a process")
    found._process = Ending()
    return found


def test_a_process_that_ends_while_it_is_asked_for_is_not_taken_for_the_one_that_asks(talk):
    assert talk.members() == set()


def test_stopping_it_then_ends_nobody(talk):
    talk.stop("it took too long")
    assert psutil.Process().is_running() and talk.stopped == "it took too long"


def test_the_family_of_no_process_is_refused():
    with pytest.raises(TypeError, match="family of no process"):
        system.family(None)
