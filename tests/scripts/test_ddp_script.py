"""``solutions/03_ddp.py``, judged by what N processes must do: as one, every image once, all together."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest
import torch
from conftest import ROOT, TINY
from torch.nn import functional as F
from witness import rows

from assessment.trials.forked_ranks import ForkedRanks
from utils import models
from utils.data import load
from utils.runs import read_metrics

SCRIPT = ROOT / "solutions/03_ddp.py"
WITNESS = ROOT / "tests/support/witness.py"


@pytest.fixture
def train(train, tmp_path):
    """Run the script to its end and return the folder of its record."""
    count = iter(range(100))

    def run(processes, *args, **options):
        folder = tmp_path / f"run{next(count)}"
        train(SCRIPT, processes, "--device", "cpu", *args, run_dir=folder, **options)
        return folder

    return run


def weights(folder):
    return torch.load(folder / "model.pt", weights_only=True)


@pytest.mark.parametrize("processes", [2, 4])
def test_n_processes_take_the_steps_of_one(processes, train):
    """20 steps of N x b images and of one process with N times b: the same weights to rounding."""
    args = (*TINY, "--train-images", 1300)
    apart = train(processes, *args, "--batch-size", 64 // processes, smooth=True)
    alone = train(1, *args, "--batch-size", 64, smooth=True)
    start = train(1, *args, "--batch-size", 64, "--base-lr", 0, smooth=True)
    for name, tensor in weights(alone).items():
        assert (tensor - weights(start)[name]).abs().max() > 1e-3, f"{name} was not trained"
        assert (tensor - weights(apart)[name]).abs().max() < 1e-6, name


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_validation_is_exact_for_the_saved_model(processes, train, digits):
    """1,999 images divide by no number of processes; one process scores the saved weights on all of them.

    BatchNorm's running statistics differ between ranks, so this also shows whose were used.
    """
    args = ("--epochs", 1, "--train-images", 960, "--batch-size", 16, "--precision", "float32", "--seed", processes)
    folder = train(processes, *args)
    test = load("digits", digits, "test")
    network = models.build("wide-resnet-tiny", 1, 10)
    network.load_state_dict(weights(folder))
    network.eval()
    with torch.inference_mode():
        logits = torch.cat([network(images) for images in test.images.split(500)])
    row = read_metrics(folder)[-1]
    assert row["val_accuracy"] == pytest.approx((logits.argmax(1) == test.labels).double().mean().item(), abs=1e-12)
    assert row["val_loss"] == pytest.approx(F.cross_entropy(logits.double(), test.labels).item(), rel=1e-5)
    assert json.loads((folder / "summary.json").read_text())["last_val_accuracy"] == row["val_accuracy"]


@pytest.fixture
def witnessed(server, digits, tmp_path):
    """Run the script under the witness; return the rows of each rank and epoch, and the record's folder."""

    def run(processes, *args):
        notes, folder = tmp_path / "notes", tmp_path / "run"
        notes.mkdir()
        arguments = (notes, SCRIPT, "--device", "cpu", "--data-dir", digits, *args, "--run-dir", folder)
        ranks = ForkedRanks(server, [WITNESS, *arguments], processes)
        try:
            assert ranks.wait(150) and not any(ranks.exits.values()), ranks.failure()
        finally:
            ranks.kill()
        return [read_notes(notes / f"rank{rank}.txt") for rank in range(processes)], folder

    return run


def read_notes(path):
    epochs = {}
    for line in path.read_text().splitlines():
        if line.startswith("epoch "):
            epochs[int(line.split()[1])] = seen = []
        else:
            seen.append(line.split())
    return epochs


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_shares_are_disjoint_and_together_the_data_less_the_remainder(processes, witnessed, digits):
    images, batch = 1_000, 32
    args = ("--epochs", 3, "--model", "lenet", "--train-images", images, "--batch-size", batch)
    seen, _ = witnessed(processes, *args)
    every_row = set(rows(load("digits", digits, "train").images[:images]))
    assert len(every_row) == images
    steps = images // (processes * batch)
    orders, left_out = [], []
    for epoch in (1, 2, 3):
        batches = [rank[epoch] for rank in seen]
        assert [[len(rows) for rows in share] for share in batches] == [[batch] * steps] * processes
        together = [row for share in batches for rows in share for row in rows]
        assert len(set(together)) == len(together) == steps * processes * batch
        assert set(together) <= every_row
        orders.append(tuple(together))
        left_out.append(frozenset(every_row - set(together)))
    assert len(set(orders)) == 3, "the order is the same in two epochs"
    assert len(set(left_out)) == 3, "the same images are left out in two epochs"


def test_all_ranks_stop_in_the_same_epoch(witnessed):
    """The ranks' own shares would reach the target in different epochs; the reduced number is one."""
    args = ("--epochs", 30, "--target-accuracy", 0.5, "--patience", 3, "--train-images", 1_000, "--batch-size", 16)
    seen, folder = witnessed(2, *args)
    metrics = read_metrics(folder)
    assert [len(rank) for rank in seen] == [len(metrics)] * 2
    reached = [row["val_accuracy"] >= 0.5 for row in metrics]
    assert len(metrics) < 30 and reached[-3:] == [True] * 3
    assert not any(reached[at : at + 3] == [True] * 3 for at in range(len(reached) - 3))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["target_reached"] and summary["state"] == "finished" and summary["effective_batch"] == 32


def test_weights_of_two_processes_load_in_one(train):
    state = weights(train(2, *TINY, "--train-images", 256))
    models.build("lenet", 1, 10).load_state_dict(state)
    assert not [name for name in state if name.startswith("module.")]


@pytest.mark.slow
def test_real_fashion_mnist_reaches_four_in_five(torchrun, real_data, digits, tmp_path):
    args = ("--train-images", 6_000, "--epochs", 6, "--target-accuracy", 0.8, "--patience", 1, "--device", "cpu")
    run = torchrun(SCRIPT, "--dataset", "fashion-mnist", "--data-dir", digits, *args, run_dir=tmp_path / "run")
    summary = run.result(timeout=280)
    assert summary["target_reached"] and summary["best_val_accuracy"] >= 0.8


def test_a_little_real_fashion_mnist_reaches_three_in_five(train, real_data):
    args = ("--dataset", "fashion-mnist", "--train-images", 2_000, "--batch-size", 16, "--epochs", 8)
    folder = train(2, *args, "--target-accuracy", 0.6, "--patience", 1)
    assert json.loads((folder / "summary.json").read_text())["target_reached"]


def test_in_a_terminal_rank_0_shows_a_bar_and_a_line_an_epoch_and_the_others_nothing(digits, tmp_path):
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))  # else its width is 0
    arguments = ["--data-dir", digits, "--run-dir", tmp_path / "run", *TINY[2:], "--epochs", 2, "--train-images", 2_000]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", SCRIPT, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # torchrun prints a warning where it is not set
    run = subprocess.Popen(map(str, command), stdin=end, stdout=end, stderr=end, env=environment)
    os.close(end)
    shown = b""
    try:
        while chunk := read_terminal(terminal):
            shown += chunk
        assert run.wait(timeout=10) == 0
    finally:
        run.terminate()
        os.close(terminal)
    text = shown.decode()
    whole_lines = [line.split("\r")[-1] for line in text.replace("\r\n", "\n").split("\n")]
    assert [line.split(":")[0] for line in whole_lines if "val accuracy" in line] == ["epoch 1", "epoch 2"]
    assert re.search(r"epoch 1: +\d+%\|", text) and "it/s" in text
    assert text.count("epoch 1:   0%|") == 1  # one bar, not one a rank


def read_terminal(terminal):
    """Return what comes next from the terminal, or nothing when the last process has left it."""
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux says EIO where others say end of file
        return b""
