"""Chapters 05 to 09: each script takes the steps of the one before, and N processes take those of one."""

import importlib
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT, TINY
from torch.nn.parallel import DistributedDataParallel

from utils.launch import RunError
from utils.novograd import NovoGrad
from utils.runs import read_metrics

SCRIPTS = {path.stem[:2]: path for path in sorted((ROOT / "solutions").glob("0[4-9]_*.py"))}
SHORT = (*TINY, "--train-images", 640)  # ten steps of 64 images
# What each lab adds. Without it, it is the script before; with it, N processes must still take the steps of one.
ADDED = {
    "05": ("--profile-steps", 1),
    "06": ("--lr-scaling", "linear"),
    "07": ("--lr-scaling", "sqrt", "--lr-decay", 0.1, "--momentum", 0.5),
    "08": ("--lr-scaling", "linear", "--lr-decay", 0.1, "--warmup-epochs", 0.5),
    "09": ("--optimizer", "novograd", "--base-lr", 0.003, "--weight-decay", 0.01, "--warmup-epochs", 0.5),
}


@pytest.fixture
def train(train, tmp_path):
    """Train and return the weights, the rows of the metrics and the summary."""
    count = iter(range(100))

    def run(script, processes, *args, **options):
        folder = tmp_path / f"run{next(count)}"
        summary = train(script, processes, *SHORT, *args, run_dir=folder, **options)
        return torch.load(folder / "model.pt", weights_only=True), read_metrics(folder), summary

    return run


def largest_difference(first, second):
    assert first.keys() == second.keys()
    return max((first[name].double() - second[name].double()).abs().max().item() for name in first)


@pytest.mark.parametrize("chapter", ADDED)
def test_n_processes_take_the_steps_of_one_with_what_the_lab_adds(chapter, train):
    alone, (row,), _ = train(SCRIPTS[chapter], 1, *ADDED[chapter], "--batch-size", 64, smooth=True)
    apart, (own_row,), summary = train(SCRIPTS[chapter], 2, *ADDED[chapter], "--batch-size", 32, smooth=True)
    assert largest_difference(alone, apart) < 1e-6
    assert own_row["lr"] == pytest.approx(row["lr"]) and summary["effective_batch"] == 64


def test_without_what_it_adds_each_script_is_the_one_before(train):
    first, *others = (train(script, 2, "--batch-size", 32)[0] for script in SCRIPTS.values())
    for chapter, other in zip(ADDED, others, strict=True):
        assert largest_difference(first, other) < 1e-6, chapter


def test_micro_batches_take_the_steps_of_the_whole_batch_and_count_the_same(train):
    alone, (row,), _ = train(SCRIPTS["05"], 1, "--batch-size", 64, smooth=True)
    args = ("--batch-size", 32, "--micro-batch-size", 12)  # 12, 12 and 8
    apart, (own_row,), summary = train(SCRIPTS["05"], 2, *args, smooth=True)
    assert largest_difference(alone, apart) < 1e-6
    assert own_row["train_loss"] == pytest.approx(row["train_loss"], rel=1e-5)
    assert own_row["train_accuracy"] == row["train_accuracy"] and summary["effective_batch"] == 64


class Delayed(torch.nn.Module):
    """A layer whose forward takes 10 ms on rank 0 and 60 ms on rank 1, by a ``clock`` that nothing else moves on."""

    def __init__(self, clock):
        super().__init__()
        self.layer, self.clock = torch.nn.Linear(4, 3), clock

    def forward(self, inputs):
        self.clock.now += 0.06 if dist.get_rank() == 1 else 0.01
        return self.layer(inputs)


def delayed_profile():
    """Profile a slow rank 1, and messages that take 30 ms."""
    profile, clock = importlib.import_module("solutions.05_batch_size").profile, SimpleNamespace(now=0.0)
    profile.__globals__["time"] = SimpleNamespace(perf_counter=lambda: clock.now)
    parallel = DistributedDataParallel(Delayed(clock))

    def slow_all_reduce(_state, bucket):
        clock.now += 0.03
        dist.all_reduce(bucket.buffer())
        future = torch.futures.Future()
        future.set_result(bucket.buffer() / dist.get_world_size())
        return future

    parallel.register_comm_hook(None, slow_all_reduce)
    return profile(parallel, torch.ones(8, 4), torch.zeros(8, dtype=torch.int64), False, 3)


def test_the_profile_tells_waiting_from_communicating(ranks_of):
    fast, slow = ranks_of(2)(delayed_profile)
    assert fast == pytest.approx({"computing": 10, "waiting": 50, "communicating": 30})
    assert slow == pytest.approx({"computing": 60, "waiting": 0, "communicating": 30})


def test_a_profile_is_written_down_with_the_cost_and_leaves_the_saved_weights_alone(train):
    plain, _, _ = train(SCRIPTS["05"], 2, "--batch-size", 32)
    profiled, (row,), summary = train(SCRIPTS["05"], 2, "--batch-size", 32, "--profile-steps", 3)
    assert list(summary["step_ms"]) == ["computing", "waiting", "communicating"]
    assert summary["step_ms"]["computing"] > 0
    assert summary["device_seconds"] == pytest.approx(2 * row["time_s"])
    assert largest_difference(plain, profiled) == 0


@pytest.mark.parametrize(
    ("scaling", "rate"), [("none", 0.01), ("sqrt", 0.01 * 8**0.5), ("linear", 0.08)], ids=["none", "sqrt", "linear"]
)
def test_the_rate_follows_the_effective_batch(scaling, rate, train):
    """Two processes with 64 images each are 8 reference batches of 16."""
    args = ("--base-lr", 0.01, "--reference-batch", 16, "--lr-scaling", scaling)
    _, (row,), _ = train(SCRIPTS["06"], 2, *args, "--batch-size", 64)
    assert row["lr"] == pytest.approx(rate)


def test_the_rate_decays_and_warms_up_step_by_step(train):
    """Ten steps of 64 an epoch: the rate written down after an epoch is that of the step to come, the tenth."""
    args = ("--base-lr", 0.01, "--batch-size", 64, "--lr-scaling", "linear", "--epochs", 3, "--warmup-epochs", 2)
    _, rows, _ = train(SCRIPTS["08"], 1, *args)
    assert [row["lr"] for row in rows] == pytest.approx([0.015, 0.02, 0.02])  # from 0.01, half way, there
    _, rows, _ = train(SCRIPTS["08"], 1, *args, "--lr-decay", 0.1)
    assert [row["lr"] for row in rows] == pytest.approx([0.015 / 2, 0.02 / 3, 0.02 / 4])
    _, rows, _ = train(SCRIPTS["08"], 1, *args, "--reference-batch", 128)
    assert [row["lr"] for row in rows] == pytest.approx([0.005] * 3)  # below the reference nothing warms up


def random_steps(make, steps=6):
    made = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, generator=made)) for shape in ((5, 3), (7,))]
    optimizer = make(parameters)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=made)
        optimizer.step()
    return parameters


def test_the_optimizers_of_the_labs_are_those_of_torch_and_of_utils():
    by_hand = importlib.import_module("solutions.07_momentum").SGD
    novograd = importlib.import_module("solutions.09_novograd").NovoGrad
    options = {"lr": 0.1, "betas": (0.95, 0.98), "weight_decay": 0.01}
    for one, other in (
        (lambda weights: by_hand(weights, 0.1, 0.9), lambda weights: torch.optim.SGD(weights, 0.1, 0.9)),
        (lambda weights: novograd(weights, **options), lambda weights: NovoGrad(weights, **options)),
    ):
        for found, expected in zip(random_steps(one), random_steps(other), strict=True):
            assert (found - expected).abs().max() < 1e-5


def test_a_batch_that_no_process_can_fill_ends_in_one_line(train):
    with pytest.raises(RunError, match="--batch-size 641 is more than a process has images") as error:
        train(SCRIPTS["09"], 1, "--batch-size", 641)
    assert "Traceback" not in str(error.value)
