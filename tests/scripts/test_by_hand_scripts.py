"""Chapters 02 and 04: scripts that average and synchronise by hand train what one process trains."""

import pytest
import torch
from conftest import ROOT, TINY

from utils.launch import RunError
from utils.runs import read_metrics

ONE, BY_HAND, SYNC = (
    ROOT / "solutions" / f"{name}.py" for name in ("01_one_device", "02_from_scratch", "04_sync_batchnorm")
)
EXACT = (*TINY, "--train-images", 1_300)
WIDE = (*EXACT, "--model", "wide-resnet-tiny", "--train-images", 800)


@pytest.fixture
def train(train, tmp_path):
    """Train and return the weights and the rows of the metrics."""
    count = iter(range(100))

    def run(script, processes, *args, **options):
        folder = tmp_path / f"run{next(count)}"
        train(script, processes, *args, run_dir=folder, **options)
        return torch.load(folder / "model.pt", weights_only=True), read_metrics(folder)

    return run


def largest_difference(first, second):
    assert first.keys() == second.keys()
    return max((first[name].double() - second[name].double()).abs().max().item() for name in first)


def test_workers_of_any_load_end_with_the_weights_of_one_device(train):
    one, (row,) = train(ONE, 1, *EXACT, "--batch-size", 64, smooth=True)
    for loads in ("1", "1,0.5", "0,1,0.3", "3,1,1,2"):
        processes = loads.count(",") + 1
        shares = ("--worker-load", loads, "--global-batch-size", 64)
        apart, (own_row,) = train(BY_HAND, processes, *EXACT, *shares, smooth=True)
        assert largest_difference(one, apart) < 1e-6, loads
        for name in ("train_loss", "train_accuracy", "val_loss", "val_accuracy"):
            assert own_row[name] == pytest.approx(row[name], abs=1e-5), (loads, name)


@pytest.mark.slow
def test_running_statistics_are_those_of_all_images(train):
    """At rate 0 the first layer sees the same on one process and on three; means then combine exactly."""
    args = (*WIDE, "--base-lr", 0, "--global-batch-size", 30)
    alone, _ = train(BY_HAND, 1, *args)
    apart, _ = train(BY_HAND, 3, *args, "--worker-load", "3,2,1")
    first = next(name for name in alone if name.endswith("running_mean"))
    assert (alone[first] - apart[first]).abs().max() < 1e-5
    variance = first.replace("mean", "var")
    assert (apart[variance] / alone[variance] - 1).abs().max() < 0.01


@pytest.mark.parametrize(
    ("loads", "told"),
    [
        ("1", "give 2 numbers, one a process"),
        ("1,-1", "none negative"),
        ("0,0", "not all 0"),
        ("1,x", "give numbers"),
        ("1,nan", "give 2 numbers"),
    ],
)
def test_impossible_loads_end_in_one_line(train, loads, told):
    with pytest.raises(RunError) as error:
        train(BY_HAND, 2, *EXACT, "--worker-load", loads)
    assert f"--worker-load {loads}: " in str(error.value) and told in str(error.value)
    assert "Traceback" not in str(error.value)


@pytest.mark.slow
def test_with_synchronised_batchnorm_ranks_take_the_steps_of_one(train):
    """Many layers of BatchNorm make much of rounding: 4e-6 at this rate. Statistics of own shares make 9e-2."""
    args = (*WIDE, "--base-lr", 0.01)
    plain, _ = train(SYNC, 1, *args, "--batch-size", 32, smooth=True)
    for processes in (1, 2, 4):
        ours, _ = train(SYNC, processes, *args, "--batch-size", 32 // processes, "--sync-batchnorm", smooth=True)
        assert largest_difference(plain, ours) < 1e-4, processes
    local, _ = train(SYNC, 2, *args, "--batch-size", 16, smooth=True)
    assert largest_difference(plain, local) > 1e-2
