"""Runs that are killed, stopped or cut short go on to the weights that they would have had, bit by bit.

``make soak`` kills a run twenty times, at moments spread evenly over its training, and prints a table.
"""

import json
import os
import random
import re
import shutil
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from conftest import ROOT, until

from utils.launch import RunError
from utils.launch import processes as system
from utils.runs import read_metrics

KILLS = 20 if "LOCKSTEP_SOAK" in os.environ else 3
EPOCHS, STEPS = 3, 50  # and steps in each
SHORT = ("--epochs", EPOCHS, "--train-images", 64 * STEPS, "--device", "cpu", "--dropout", 0.2, "--augment", "affine")
TIMES = ("time_s", "epoch_time_s", "images_per_s")
pytestmark = pytest.mark.timeout(200 + 60 * KILLS)


@dataclass(frozen=True)
class Case:
    """A script, how many ranks, and what it is about; ``every_s`` is the time between checkpoints."""

    script: str
    processes: int
    args: tuple = ()
    every_s: float = 0.2

    def command(self, digits):
        path = next((ROOT / "solutions").glob(f"{self.script}_*.py"))
        return (path, "--data-dir", digits, *SHORT, *self.args, "--checkpoint-every", self.every_s)


PLAIN = Case("03", 2, ("--batch-size", 32))
# Three ranks add up in an order of their own; this has all that a run goes on from.
ALL = ("--batch-size", 16, "--optimizer", "novograd", "--base-lr", 0.005, "--warmup-epochs", 2, "--lr-decay", 0.01)
WHOLE = Case("09", 3, (*ALL, "--sync-batchnorm"))
IN_PARTS = Case("05", 2, ("--batch-size", 32, "--micro-batch-size", 12))


@pytest.fixture
def start(torchrun, digits):
    """Start a case in a folder; the run's end is waited for with ``result``."""

    def launched(case, folder, *args, processes=None):
        return torchrun(*case.command(digits), *args, processes=processes or case.processes, run_dir=folder)

    return launched


@pytest.fixture(scope="module")
def undisturbed(digits, tmp_path_factory):
    """Return a function from a case to the folder of a run of it that nobody disturbs."""
    from utils.launch import launch

    folders = {}

    def folder_of(case):
        if case not in folders:
            folders[case] = tmp_path_factory.mktemp("undisturbed") / "run"
            launch(*case.command(digits), processes=case.processes, run_dir=folders[case]).result(timeout=150)
        return folders[case]

    return folder_of


def saved_steps(folder):
    """Return after how many steps there are checkpoints."""
    return sorted(int(path.name.split("-")[1]) for path in Path(folder, "checkpoints").glob("step-*.pt"))


def kill(run, folder, steps, later_s=0.0):
    """Wait for a checkpoint after ``steps`` steps or more, then kill all of the run with signal 9; return where."""
    until(lambda: run.state != "running" or (saved_steps(folder) or [0])[-1] >= steps, 150, f"step {steps}")
    time.sleep(later_s)
    members = system.family(run._process.pid)
    for one in members:
        one.send_signal(signal.SIGKILL)
    run.wait(timeout=60)
    until(lambda: not any(one.is_running() and one.status() != "zombie" for one in members), 30, "the end of all")
    return saved_steps(folder)[-1]


def weights(folder):
    return torch.load(folder / "model.pt", weights_only=True)


def assert_same(folder, other):
    """Two runs have the same weights to the last bit, and the same rows but for the clock."""
    ours, theirs = weights(folder), weights(other)
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []
    rows, expected = read_metrics(folder), read_metrics(other)
    told = [[{name: row[name] for name in row if name not in TIMES} for row in one] for one in (rows, expected)]
    assert told[0] == told[1]
    summaries = [json.loads((one / "summary.json").read_text()) for one in (folder, other)]
    assert summaries[0] | {"device_seconds": 0, "step_ms": 0} == summaries[1] | {"device_seconds": 0, "step_ms": 0}


@pytest.mark.parametrize(
    ("case", "steps"),
    [(PLAIN, 70), pytest.param(WHOLE, 75, marks=pytest.mark.slow), pytest.param(IN_PARTS, 30, marks=pytest.mark.slow)],
    ids=["03", "09", "05"],
)
def test_a_run_that_is_killed_goes_on_to_the_same_weights(case, steps, start, undisturbed, tmp_path):
    where = kill(start(case, tmp_path / "run"), tmp_path / "run", steps)
    assert where < EPOCHS * STEPS, "it was over before it was killed"
    start(case, tmp_path / "run", "--resume").result(timeout=150)
    assert_same(tmp_path / "run", undisturbed(case))


@pytest.mark.slow
def test_a_run_goes_on_from_the_last_step_of_an_epoch(start, undisturbed, tmp_path):
    """Three ranks, whose wrapper has no batch left in that epoch on which to order its messages."""
    case, folder = Case(WHOLE.script, WHOLE.processes, WHOLE.args, every_s=0), tmp_path / "run"
    run, kept = start(case, folder), []
    while run.state == "running" and not kept:
        kept = [(path.name, path.read_bytes()) for path in Path(folder, "checkpoints").glob(f"step-{STEPS:09}-*.pt")]
    run.stop()
    assert kept, "the checkpoint was not seen"
    for path in Path(folder, "checkpoints").iterdir():
        path.unlink()
    for name, content in kept:
        (folder / "checkpoints" / name).write_bytes(content)
    start(case, folder, "--resume").result(timeout=150)
    assert_same(folder, undisturbed(WHOLE))


@pytest.mark.slow
def test_kills_at_any_moment_change_nothing(start, undisturbed, tmp_path):
    """Evenly spread over training, and a little later than a checkpoint, so that steps are lost."""
    moments, print_row = random.Random(1), "{:>5}  {:>8}  {:>17}  {}".format
    print("\n" + print_row("kill", "saved at", "in the middle", "weights"))
    middle = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        steps, later_s = round((number + 0.5) * 0.9 * EPOCHS * STEPS / KILLS), moments.uniform(0, 0.3)
        for _ in range(5):
            if (where := kill(start(PLAIN, folder), folder, steps, later_s)) < EPOCHS * STEPS:
                break
            # A quick machine was at the end before the signal: no kill, so once more and sooner.
            steps, later_s = steps - 10, later_s / 4
            shutil.rmtree(folder)  # or its last checkpoint would be taken for one of the next run
        assert where < EPOCHS * STEPS, "it was over before it was killed"
        start(PLAIN, folder, "--resume").result(timeout=150)
        assert_same(folder, undisturbed(PLAIN))
        middle += where % STEPS > 0
        print(print_row(number + 1, where, f"of epoch {where // STEPS + 1}" if where % STEPS else "no", "the same"))
    assert middle >= KILLS / 2


def test_a_run_that_is_stopped_goes_on_from_the_step_at_which_it_was(start, undisturbed, tmp_path):
    """The interval is an hour, so the checkpoint is that of SIGTERM; it stands in the middle of an epoch."""
    case = Case("03", 2, PLAIN.args, every_s=3600)
    folder = tmp_path / "run"
    run = start(case, folder)
    until(lambda: run.state != "running" or read_metrics(folder), 100, "the first epoch")
    time.sleep(0.2)
    run.stop()
    assert run.state == "stopped" and json.loads((folder / "summary.json").read_text())["state"] == "stopped"
    (steps,) = saved_steps(folder)
    assert steps < EPOCHS * STEPS
    start(case, folder, "--resume").result(timeout=150)
    assert_same(folder, undisturbed(PLAIN))


@pytest.mark.slow
def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(start, undisturbed, tmp_path):
    folder = tmp_path / "run"
    kill(start(PLAIN, folder), folder, 60)
    last = max((folder / "checkpoints").glob("step-*.pt"))
    last.write_bytes(last.read_bytes()[:-100])
    run = start(PLAIN, folder, "--resume")
    run.result(timeout=150)
    assert f"{last} is damaged: going on from the checkpoint before it" in run.log(0)
    assert_same(folder, undisturbed(PLAIN))


def test_a_run_goes_on_in_another_number_of_processes(start, tmp_path):
    """Two of 32 images, then one of 64: the same steps to rounding, where nothing looks at one share alone."""
    still = ("--dropout", 0, "--augment", "none", "--precision", "float32", "--model", "lenet", "--base-lr", 0.01)
    case = Case("03", 2, (*still, "--batch-size", 32))
    folder, whole = tmp_path / "run", tmp_path / "whole"
    start(case, whole).result(timeout=150)
    kill(start(case, folder), folder, 60)
    with pytest.raises(RunError, match="takes 64 images a step, this one would take 96: choose a --batch-size"):
        start(case, folder, "--resume", processes=3).result(timeout=100)
    run = start(case, folder, "--resume", "--batch-size", 64, processes=1)
    summary = run.result(timeout=150)
    assert "1 processes go on where 2 were" in run.log(0) and summary["world_size"] == 1
    assert [row["epoch"] for row in read_metrics(folder)] == [*range(1, EPOCHS + 1)]
    ours, theirs = weights(folder), weights(whole)
    assert max((ours[name] - theirs[name]).abs().max().item() for name in theirs) < 3e-3


@pytest.mark.slow
def test_a_finished_run_has_nothing_left_to_do(start, tmp_path):
    start(PLAIN, tmp_path / "run").result(timeout=150)
    before = weights(tmp_path / "run")
    run = start(PLAIN, tmp_path / "run", "--resume")
    assert run.result(timeout=100)["state"] == "finished"
    assert not re.search("epoch", run.log(0)) and len(read_metrics(tmp_path / "run")) == EPOCHS
    assert all(torch.equal(before[name], one) for name, one in weights(tmp_path / "run").items())


@pytest.mark.slow
def test_without_resume_a_run_begins_anew(start, undisturbed, tmp_path):
    """And what an earlier one has saved is gone: nothing later goes on from it by mistake."""
    folder = tmp_path / "run"
    kill(start(PLAIN, folder), folder, 60)
    run = start(PLAIN, folder)
    until(lambda: run.state != "running" or 0 < (saved_steps(folder) or [0])[-1] < 50, 100, "a checkpoint of its own")
    assert run.state == "running"
    run.result(timeout=150)
    assert_same(folder, undisturbed(PLAIN))
