"""What a run goes on from is held against what it finds."""

import signal
from types import SimpleNamespace

import pytest
import torch

from utils.errors import UserError
from utils.saver import Saver


@pytest.fixture
def saver(tmp_path):
    """Return a function that makes the ``Saver`` of a run in one folder, which saves behind every step."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def make(resume):
        args = SimpleNamespace(checkpoint_every=0.0, resume=resume, seed=0)
        return Saver(tmp_path, {"model": torch.nn.Linear(2, 1)}, [], args, effective_batch=4)

    yield make
    for number, handler in before.items():
        signal.signal(number, handler)


def taken(saver, batches):
    """Return the batches that are left for a run to learn from."""
    return list(saver.steps(batches, torch.zeros(1), record=None))


def test_a_run_goes_on_behind_the_last_step_that_was_saved(saver):
    assert taken(saver(resume=False), "abcd") == list("abcd")
    assert taken(saver(resume=True), "abcdef") == list("ef")


def test_fewer_batches_than_were_learned_from_are_told(saver):
    """As where images were removed from a folder since."""
    taken(saver(resume=False), "abcd")
    with pytest.raises(UserError, match="was saved behind step 4 of an epoch, which has fewer steps by now"):
        taken(saver(resume=True), "ab")
