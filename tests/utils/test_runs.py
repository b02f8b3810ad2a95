"""A run's record is whole whatever ends the run, and is never mixed with another run's."""

import json

import pytest
import torch
from conftest import ROOT, TINY, until
from programs import Program, run_program

from utils.errors import UserError
from utils.launch import RunError
from utils.runs import COLUMNS, Record, folder_for, read_metrics, run_folder

LAB = ROOT / "solutions/01_one_device.py"
SCRIPT = ROOT / "solutions/03_ddp.py"

RECORD = """
import sys, os, time, torch
from utils.runs import Record, COLUMNS, finish
record = Record(sys.argv[1], {"lr": float(sys.argv[2])}, world_size=1, effective_batch=8)
row = {name: 0.5 for name in COLUMNS if name != "epoch"}
def epoch(value):
    module = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(module.weight, value)
    record.epoch(module, **row)
"""


def run_to_end(code, *args):
    done = run_program("-c", RECORD + code, *args)
    return done.returncode, done.stdout, done.stderr


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def weight(folder):
    return torch.load(folder / "model.pt", weights_only=True)["weight"].item()


def test_a_finished_run_has_the_whole_record(tmp_path):
    code, _, errors = run_to_end("epoch(1.0); epoch(2.0); finish(record)", tmp_path / "run", 0.1)
    assert code == 0, errors
    assert (tmp_path / "run/metrics.csv").read_text().splitlines()[0] == ",".join(COLUMNS)
    assert [row["epoch"] for row in read_metrics(tmp_path / "run")] == [1, 2]
    assert weight(tmp_path / "run") == 2.0
    assert summary(tmp_path / "run")["state"] == "finished" and summary(tmp_path / "run")["epochs"] == 2
    assert json.loads((tmp_path / "run/config.json").read_text()) == {"lr": 0.1, "world_size": 1}


@pytest.mark.parametrize(
    ("ending", "state", "code"),
    [
        ("raise ValueError('oops')", "failed", 1),
        ("sys.exit('one line')", "failed", 1),
        ("os.kill(os.getpid(), 15); time.sleep(300)", "stopped", 143),
        ("os.kill(os.getpid(), 2); time.sleep(300)", "stopped", 130),
    ],
)
def test_whatever_ends_a_run_its_state_says_so(ending, state, code, tmp_path):
    assert run_to_end(f"epoch(1.0); {ending}", tmp_path / "run", 0.1)[0] == code
    assert summary(tmp_path / "run")["state"] == state
    assert weight(tmp_path / "run") == 1.0 and len(read_metrics(tmp_path / "run")) == 1


def test_a_stop_while_an_epoch_is_written_waits_until_it_is_whole(tmp_path):
    """SIGTERM comes between the weights and the row of the same epoch."""
    slow = (
        "save = torch.save\n"
        "def slow(content, path):\n"
        "    save(content, path)\n"
        "    os.kill(os.getpid(), 15); time.sleep(0.2)\n"
        "epoch(1.0); torch.save = slow; epoch(2.0); time.sleep(300)"
    )
    assert run_to_end(slow, tmp_path / "run", 0.1)[0] == 143
    assert weight(tmp_path / "run") == 2.0 and len(read_metrics(tmp_path / "run")) == 2
    assert summary(tmp_path / "run")["state"] == "stopped" and summary(tmp_path / "run")["epochs"] == 2
    assert not list((tmp_path / "run").glob("*.part"))


def test_the_same_settings_write_a_run_anew_and_others_are_refused(tmp_path):
    run_to_end("epoch(1.0); epoch(2.0); finish(record)", tmp_path / "run", 0.1)
    code, _, errors = run_to_end("epoch(3.0); finish(record)", tmp_path / "run", 0.2)
    assert code == 1 and "other settings (lr is 0.1 there, 0.2 here)" in errors
    assert weight(tmp_path / "run") == 2.0 and len(read_metrics(tmp_path / "run")) == 2
    run_to_end("epoch(3.0); finish(record)", tmp_path / "run", 0.1)
    assert weight(tmp_path / "run") == 3.0 and len(read_metrics(tmp_path / "run")) == 1


def test_a_folder_that_is_being_written_is_refused(tmp_path):
    first = Program("-c", RECORD + "epoch(1.0); print('there', flush=True); time.sleep(300)", tmp_path / "run", 0.1)
    try:
        until(lambda: first.stdout == "there\n", 60, "the first epoch")
        code, _, errors = run_to_end("epoch(2.0); finish(record)", tmp_path / "run", 0.1)
        assert code == 1 and "another run is writing to" in errors
        assert weight(tmp_path / "run") == 1.0
    finally:
        first.kill()


def test_folders_are_named_by_the_settings_that_are_no_default():
    defaults = {"lr": 0.1, "batch_size": 64, "dataset": "digits", "data_dir": "data", "run_dir": None}
    same = {**defaults, "data_dir": "elsewhere", "run_dir": "x"}
    assert str(run_folder("labs/03_ddp.py", same, defaults, 2)) == "runs/03_ddp-2x64"
    names = {
        run_folder("03_ddp.py", defaults | changed, defaults, 2).name
        for changed in ({"lr": 0.2}, {"dataset": "folder:/a/b"}, {"dataset": "folder:/c/b"}, {"dataset": "x" * 300})
    }
    assert len(names) == 4 and "03_ddp-2x64-lr=0.2" in names
    assert all(len(name) < 200 and "/" not in name for name in names)


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("x" * 300, "File name too long; choose another folder with a shorter name"),
        ("a file/run", "a file is a file; choose another folder"),
    ],
    ids=["300 letters", "below a file"],
)
def test_a_folder_that_cannot_be_is_named(folder, told, tmp_path):
    (tmp_path / "a file").touch()
    with pytest.raises(UserError) as error:
        Record(tmp_path / folder, {}, world_size=1, effective_batch=1)
    assert str(error.value).startswith(f"cannot write {tmp_path / folder}") and str(error.value).endswith(told)


def test_other_arguments_get_another_folder():
    first, second = folder_for("lab", "--epochs", 2), folder_for("lab", "--epochs", 3)
    assert first == folder_for("lab", "--epochs", "2") != second and first.parent.name == "runs"


def test_sigterm_stops_a_training_run_on_all_ranks(torchrun, digits, tmp_path):
    """The record is whole up to the last finished epoch, and the model is the one of that epoch."""
    args = ("--data-dir", digits, "--epochs", 500, "--train-images", 512, "--model", "lenet", "--device", "cpu")
    run = torchrun(SCRIPT, *args, processes=2, run_dir=tmp_path / "run")
    until(lambda: len(run.metrics()) >= 3 or run.state != "running", 100, "three epochs")
    run.stop()
    rows = read_metrics(tmp_path / "run")
    assert summary(tmp_path / "run")["state"] == "stopped" == run.state
    assert summary(tmp_path / "run")["epochs"] == len(rows) == rows[-1]["epoch"]
    assert summary(tmp_path / "run")["last_val_accuracy"] == rows[-1]["val_accuracy"]


def test_a_failed_run_says_failed(torchrun, digits, tmp_path):
    """Rank 1 dies by signal 9 in the middle of training; rank 0, which torchrun then ends, is not to blame."""
    code = f"""
import os, runpy, signal, sys, threading, time
from utils.runs import read_metrics
def die():
    while len(read_metrics({str(tmp_path / "run")!r})) < 2:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
if os.environ["RANK"] == "1":
    threading.Thread(target=die, daemon=True).start()
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""
    path = tmp_path / "dies.py"
    path.write_text(code)
    args = ("--data-dir", digits, "--epochs", 5000, "--train-images", 512, "--model", "lenet", "--device", "cpu")
    run = torchrun(path, *args, processes=2, run_dir=tmp_path / "run")
    with pytest.raises(RunError, match="rank 1 failed first, ended by signal 9"):
        run.result(timeout=60)
    assert summary(tmp_path / "run")["state"] == "failed"


def test_a_run_that_is_refused_leaves_the_record_of_the_other_alone(torchrun, train, digits, tmp_path):
    args = ("--epochs", 5000, "--train-images", 512, "--model", "lenet", "--device", "cpu")
    first = torchrun(SCRIPT, "--data-dir", digits, *args, processes=1, run_dir=tmp_path / "run")
    until(lambda: len(first.metrics()) >= 2 or first.state != "running", 100, "two epochs")
    with pytest.raises(RunError, match="another run is writing to"):
        train(SCRIPT, 1, *args, run_dir=tmp_path / "run")
    assert first.state == "running" and summary(tmp_path / "run")["state"] == "running"
    first.stop()
    assert summary(tmp_path / "run")["state"] == "stopped"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--dataset", "nonsense"), "dataset 'nonsense' is unknown"),
        (("--batch-size", 20_000), "--batch-size 20000 is more than"),
        (("--train-images", 20_000), "--train-images 20000 is out of range"),
        (("--width", 0.001), "leaves lenet a layer without channels"),
    ],
)
def test_bad_input_to_a_script_is_one_line(arguments, complaint, digits, tmp_path):
    run = run_program(LAB, "--data-dir", digits, "--run-dir", tmp_path / "run", *TINY, *arguments)
    assert run.returncode == 1 and complaint in run.stderr
    assert len(run.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_03_without_torchrun_says_how_to_start(digits):
    run = run_program(SCRIPT)
    assert run.returncode == 1 and run.stderr.startswith("start this script with torchrun: torchrun --standalone")


GOES_ON = """
config = {"lr": 0.1, "batch_size": int(sys.argv[3]), "resume": True, "checkpoint_every": float(sys.argv[3])}
state = torch.load(sys.argv[4], weights_only=True)
record = Record(sys.argv[1], config, world_size=8 // int(sys.argv[3]), effective_batch=8, goes_on_from=state)
"""


def test_a_record_goes_on_from_what_it_held(tmp_path):
    """Whatever was written since, and also after a kill: rows, weights and summary are again of the same epoch."""
    folder, kept = tmp_path / "run", tmp_path / "state.pt"
    begin = """
record = Record(sys.argv[1], {"lr": 0.1, "batch_size": 8}, world_size=1, effective_batch=8)
epoch(1.0); torch.save(record.state(), sys.argv[3]); epoch(2.0); epoch(3.0)
os.kill(os.getpid(), 9)
"""
    first = RECORD.replace("record = Record", "unused = lambda: Record")
    done = run_program("-c", first + begin, folder, 0.1, kept)
    assert done.returncode == -9 and len(read_metrics(folder)) == 3
    done = run_program("-c", first + GOES_ON + "os._exit(0)", folder, 0.1, 4, kept)
    assert done.returncode == 0, done.stderr
    assert [row["epoch"] for row in read_metrics(folder)] == [1] and weight(folder) == 1.0
    assert summary(folder)["epochs"] == 1 and summary(folder)["world_size"] == 2
    assert summary(folder)["state"] == "running"
    done = run_program("-c", first + GOES_ON + "epoch(4.0); finish(record)", folder, 0.1, 8, kept)
    assert done.returncode == 0, done.stderr
    assert [row["epoch"] for row in read_metrics(folder)] == [1, 2] and weight(folder) == 4.0
    assert summary(folder)["state"] == "finished"


def test_other_settings_do_not_go_on(tmp_path):
    begin = """
record = Record(sys.argv[1], {"lr": 0.2, "batch_size": 8}, world_size=1, effective_batch=8)
epoch(1.0); torch.save(record.state(), sys.argv[3]); os._exit(0)
"""
    first = RECORD.replace("record = Record", "unused = lambda: Record")
    run_program("-c", first + begin, tmp_path / "run", 0.1, tmp_path / "state.pt")
    done = run_program("-c", first + GOES_ON, tmp_path / "run", 0.1, 8, tmp_path / "state.pt")
    told = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and "holds a run with other settings (lr is 0.2 there, 0.1 here)" in told
    assert weight(tmp_path / "run") == 1.0
