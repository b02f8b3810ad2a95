"""Steps of a training run are counted, however a script takes them."""

import pytest

from assessment.recorder.counts import SUFFIX, steps_by_row, steps_taken
from assessment.trials.fork_server import ForkServer
from assessment.trials.forked_ranks import ForkedRanks

NETWORK = """
import torch
from torch import nn
network = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
images = torch.zeros(8, 1, 4, 4)
optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
def backward(part=images):
    network(part).sum().backward()
"""
WAYS = {
    "a step a batch": "for _ in range(5):\n    backward()\n    optimizer.step()\n",
    "micro-batches": "for _ in range(5):\n    for part in images.split(3): backward(part)\n    optimizer.step()\n",
    "two optimizers": (
        "other = torch.optim.Adam(network.parameters())\n"
        "for _ in range(5):\n    backward()\n    optimizer.step()\n    other.step()\n"
    ),
    "two passes a step": "for _ in range(5):\n    backward()\n    backward()\n    optimizer.step()\n",
    "no optimizer": "for _ in range(5):\n    backward()\n    with torch.no_grad(): network[1].weight -= 1\n",
    "layers called one by one": (
        "for _ in range(5):\n    network[1](network[0](images)).sum().backward()\n    optimizer.step()\n"
    ),
    "images by keyword": "for _ in range(5):\n    network(input=images).sum().backward()\n    optimizer.step()\n",
    "judged in between": (
        "for _ in range(5):\n    backward()\n    optimizer.step()\n    with torch.no_grad(): network(images)\n"
    ),
    "weights tried out and put back": (
        "for _ in range(5):\n    backward()\n    with torch.no_grad(): network[1].bias += 1\n    backward()\n"
        "    with torch.no_grad(): network[1].bias -= 1\n    optimizer.step()\n"
    ),
    "a gradient of a function": (
        "from torch.func import functional_call, grad\n"
        "weights = dict(network.named_parameters())\n"
        "for _ in range(5):\n"
        "    found = grad(lambda own: functional_call(network, own, images).sum())(weights)\n"
        "    weights = {name: one - found[name] for name, one in weights.items()}\n"
    ),
}


@pytest.fixture(scope="module")
def server():
    with ForkServer() as one:
        yield one


@pytest.mark.parametrize("way", WAYS)
def test_five_steps_are_counted(way, server, tmp_path):
    (tmp_path / "script.py").write_text(NETWORK + WAYS[way])
    ranks = ForkedRanks(server, [tmp_path / "script.py"], 2, {"LOCKSTEP_COUNTS": str(tmp_path)}, tmp_path)
    assert ranks.wait(60) and ranks.exits == {0: 0, 1: 0}, ranks.failure()
    ranks.kill()
    assert [steps_taken(tmp_path, rank, images=8) for rank in (0, 1)] == [5, 5]


REPORTED = """
import os, sys
from utils.runs import COLUMNS, Record, finish
if os.environ["RANK"] == "0":
    record = Record(sys.argv[1], {}, world_size=1, effective_batch=8)
    def epoch(): record.epoch(network, **{name: 0.5 for name in COLUMNS if name != "epoch"})
"""


@pytest.mark.parametrize("way", ["a step a batch", "two optimizers", "two passes a step", "a gradient of a function"])
def test_steps_are_told_row_by_row(way, server, tmp_path):
    text = NETWORK + REPORTED + "".join(WAYS[way] + "if os.environ['RANK'] == '0': epoch()\n" for _ in range(3))
    (tmp_path / "script.py").write_text(text + "if os.environ['RANK'] == '0': epoch()\n")
    argv = [tmp_path / "script.py", tmp_path / "run"]
    ranks = ForkedRanks(server, argv, 2, {"LOCKSTEP_COUNTS": str(tmp_path)}, tmp_path)
    assert ranks.wait(60) and ranks.exits == {0: 0, 1: 0}, ranks.failure()
    ranks.kill()
    assert [steps_by_row(tmp_path, rank, images=8) for rank in (0, 1)] == [[5, 5, 5, 0], []]
    assert [steps_taken(tmp_path, rank, images=8) for rank in (0, 1)] == [15, 15]


def test_moves_behind_the_back_of_an_optimizer_are_steps(server, tmp_path):
    """Twelve small updates by hand, then a step that moves nothing: a batch of its own size would be one step."""
    script = (
        "optimizer.param_groups[0]['lr'] = 0\n"
        "for _ in range(5):\n    for _ in range(12):\n        backward()\n"
        "        with torch.no_grad(): network[1].bias -= 0.01\n    optimizer.step()\n"
    )
    (tmp_path / "script.py").write_text(NETWORK + script)
    ranks = ForkedRanks(server, [tmp_path / "script.py"], 1, {"LOCKSTEP_COUNTS": str(tmp_path)}, tmp_path)
    assert ranks.wait(60) and ranks.exits == {0: 0}, ranks.failure()
    ranks.kill()
    assert steps_taken(tmp_path, 0, images=8) > 20


def test_what_was_not_seen_is_not_counted(tmp_path):
    assert steps_taken(tmp_path, 0, images=8) is None
    (tmp_path / "0").with_suffix(SUFFIX).write_text("3 17 0.0\n3 17 0.0\n")  # passes of fewer images than a batch has
    assert steps_taken(tmp_path, 0, images=8) is None
    (tmp_path / "0").with_suffix(SUFFIX).write_bytes(b"\xff\nall of them\n\n")
    assert steps_taken(tmp_path, 0, images=8) is None
    (tmp_path / "0").with_suffix(SUFFIX).write_bytes(b"\xff\nstep\n8 1\nstep\n8")
    assert steps_taken(tmp_path, 0, images=8) == 2


@pytest.mark.timeout(60)
def test_what_no_rank_writes_is_no_pass_and_costs_nothing(tmp_path):
    """A script can write into the file: numbers beyond all measure, or a module of its own on each line."""
    path = (tmp_path / "0").with_suffix(SUFFIX)
    path.write_text("9" * 5000 + " 1 1.0\n8 1 0.5\nstep\n")
    assert steps_taken(tmp_path, 0, images=8) == 1 and steps_by_row(tmp_path, 0, images=8) == []
    path.write_text("".join(f"8 {module} 0.5\n" for module in range(300_000)) + "step\n")
    assert steps_taken(tmp_path, 0, images=8) == 1
