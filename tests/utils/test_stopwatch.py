"""Steps of ranks are taken in turn, and what happens within one lies where it happened."""

import pytest
import torch.distributed as dist
from torch import nn

from utils.notebook import stopwatch

ROUNDS = 3


class Small(nn.Module):
    """A network for uint8 images of 28 x 28 pixels."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(784, 10)

    def forward(self, images):
        return self.layer(images.flatten(1) / 255)


def taken_in_turn():
    calls = []
    found = stopwatch.in_turn(
        {name: lambda name=name: calls.append(name) for name in ("one", "two")}, ROUNDS, slowest=True
    )
    return calls, sorted(found), min(found.values()) > 0


def step_by_step():
    model = Small()

    def average():
        for weight in model.parameters():
            dist.all_reduce(weight.grad)

    spans = stopwatch.traced(lambda: stopwatch.gradients(model, 8, after=average))
    return (
        [kind for kind, _, _ in spans],
        spans,
        stopwatch.hidden(spans),
        all(weight.grad is not None for weight in model.parameters()),
    )


def test_all_ranks_take_each_action_in_turn_the_warm_up_included(ranks_of):
    for calls, names, is_measured in ranks_of(2)(taken_in_turn):
        assert calls == ["one", "two"] * (stopwatch.WARM_UP + ROUNDS) and names == ["one", "two"] and is_measured


def test_messages_sent_behind_backward_lie_behind_it(ranks_of):
    for kinds, spans, hidden, has_gradients in ranks_of(2)(step_by_step):
        assert kinds == ["forward", "all-reduce", "all-reduce", "backward"] and has_gradients
        (_, begin, length) = spans[-1]
        assert all(start >= begin + length for kind, start, _ in spans if kind == "all-reduce") and hidden == 0


@pytest.mark.parametrize(
    ("messages", "share"),
    [([(0, 4)], 0.0), ([(10, 10)], 1.0), ([(25, 10)], 0.5), ([(12, 2), (28, 6)], 0.5), ([(8, 4)], 0.5)],
    ids=["before", "under", "half", "two", "begun before"],
)
def test_the_hidden_share_is_what_lies_under_backward(messages, share):
    spans = [("forward", 0, 10), *(("all-reduce", *one) for one in messages), ("backward", 10, 20)]
    assert stopwatch.hidden(spans) == pytest.approx(share)
