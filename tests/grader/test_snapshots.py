"""The weights of every epoch are copied as the record says that it is over, and nothing of a stranger's is trusted."""

import os
import time

import torch
from conftest import until
from programs import Program

from assessment.grader.snapshots import Snapshots

WRITER = """
import sys, time, torch
from utils.runs import Record, COLUMNS, finish
record = Record(sys.argv[1], {}, world_size=1, effective_batch=8)
for epoch in range(1, 6):
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(module.weight, epoch)
    record.epoch(module, **{name: 0.5 for name in COLUMNS if name != "epoch"})
    time.sleep(0.5)
finish(record)
"""


def test_each_epoch_has_its_own_weights(tmp_path):
    with Snapshots(tmp_path / "run", tmp_path, 1_000_000) as snapshots:
        done = Program("-c", WRITER, tmp_path / "run").wait()
    assert done.returncode == 0, done.stderr
    found = {at: torch.load(path, weights_only=True)["weight"].item() for at, path in snapshots.paths.items()}
    assert found == {at: float(at) for at in range(1, 6)}


def copied(tmp_path, most=1000):
    with Snapshots(tmp_path / "run", tmp_path, most) as snapshots:
        time.sleep(0.2)
    return {at: path.read_bytes() for at, path in snapshots.paths.items()}


def left(tmp_path, rows=1):
    """Write weights and a record with so many rows, as if a run had."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/model.pt").write_bytes(b"weights")
    (tmp_path / "run/metrics.csv").write_text("epoch\n" + "1\n" * rows)
    return tmp_path / "run"


def test_what_is_there_at_the_end_is_copied(tmp_path):
    left(tmp_path, rows=3)
    assert copied(tmp_path) == {3: b"weights"}


def test_weights_that_were_written_after_the_row_are_not_taken_for_its_own(tmp_path):
    run = left(tmp_path)
    os.utime(run / "model.pt", (time.time() + 5, time.time() + 5))
    assert copied(tmp_path) == {}


def test_no_link_no_pipe_and_nothing_large_is_read(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"another's")
    run = left(tmp_path)
    assert copied(tmp_path, most=3) == {}
    (run / "model.pt").unlink()
    (run / "model.pt").symlink_to(secret)
    assert copied(tmp_path) == {}
    (run / "model.pt").unlink()
    os.mkfifo(run / "model.pt")
    assert copied(tmp_path) == {}
    run.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere/model.pt").unlink()
    (tmp_path / "elsewhere/model.pt").write_bytes(b"weights")
    run.symlink_to(tmp_path / "elsewhere")
    assert copied(tmp_path) == {}


def test_it_looks_again_until_there_is_something(tmp_path):
    with Snapshots(tmp_path / "run", tmp_path, 1000) as snapshots:
        time.sleep(0.2)
        left(tmp_path)
        until(lambda: snapshots.paths, 20, "the copy")
    assert snapshots.paths.keys() == {1}
