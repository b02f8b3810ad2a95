"""What a step sends is counted in steps that are like each other."""

from types import SimpleNamespace

from assessment.laws.accumulation import messages
from assessment.trials.evidence import Rank


def rank_with(sent, steps):
    """Return a rank that sends 5,000 numbers at each time in ``sent`` and steps at each in ``steps``."""
    events = [{"event": "collective", "numel": 5_000, "time": one} for one in sent]
    return Rank(0, events, [SimpleNamespace(time=one) for one in steps])


def test_weights_that_are_sent_before_the_first_step_are_no_gradients_of_it():
    """An epoch of two steps, before which each of ten weights was broadcast."""
    start = [0.1 * number for number in range(10)]
    assert messages(rank_with([*start, 1.5, 2.5], [2.0, 3.0])) == 1
    assert messages(rank_with([*start, 1.5, 2.2, 2.5, 2.7], [2.0, 3.0])) == 3


def test_a_single_step_counts():
    assert messages(rank_with([0.5, 0.7], [1.0])) == 2
