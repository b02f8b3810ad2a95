"""Places that hold something else than what is looked for are named in one line, and nobody waits for them."""

import json
import os
import shutil

import pytest
import torch
from conftest import ROOT
from programs import run_program
from test_data import idx
from test_runs import run_to_end

from utils.data import load, prepare, store
from utils.errors import UserError
from utils.launch import launch
from utils.runs import run_folder


def test_a_pipe_in_the_place_of_a_prepared_file_is_named(tmp_path):
    os.mkfifo(tmp_path / "digits.pt")
    for act in (prepare, load):
        with pytest.raises(UserError, match=r"digits.pt is a pipe, a socket or a device"):
            act("digits", tmp_path)


@pytest.mark.parametrize(("images", "labels"), [(20, 10), (10, 20)])
def test_images_and_labels_of_different_number_are_refused(images, labels, tmp_path, monkeypatch):
    raw = tmp_path / "FashionMNIST/raw"
    idx(raw / "t10k-images-idx3-ubyte", (10, 28, 28))
    idx(raw / "t10k-labels-idx1-ubyte", (10,))
    idx(raw / "train-images-idx3-ubyte", (images, 28, 28))
    idx(raw / "train-labels-idx1-ubyte", (labels,))
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    with pytest.raises(UserError, match=f"images-idx3-ubyte holds {images} and train-labels.* holds {labels}"):
        prepare("fashion-mnist", tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.pt"))


@pytest.mark.parametrize("name", ["train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"])
def test_a_folder_in_the_place_of_a_published_file_is_named(name, tmp_path, monkeypatch):
    raw = tmp_path / "FashionMNIST/raw"
    for part in ("train", "t10k"):
        idx(raw / f"{part}-images-idx3-ubyte", (10, 28, 28))
        idx(raw / f"{part}-labels-idx1-ubyte", (10,))
    (raw / name).unlink()
    (raw / name).mkdir()
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path))
    with pytest.raises(UserError, match=f"{name} cannot be read"):
        prepare("fashion-mnist", tmp_path / "out")


def test_a_place_of_the_data_that_is_none_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"LOCKSTEP_DATA names .*nowhere, which is no folder"):
        prepare("fashion-mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "told"),
    [("folder:~nobody-of-this-name/x", "write the path in full"), (f"folder:/tmp/{'a' * 5000}", "cannot be read")],
    ids=["no home", "too long"],
)
def test_a_folder_that_cannot_be_asked_for_is_one_line(name, told, tmp_path):
    done = run_program("utils.data", name, "--data-dir", tmp_path)
    assert done.returncode == 1 and told in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_name_that_is_no_utf_8_names_a_folder():
    settings = {"batch_size": 8, "dataset": os.fsdecode(b"folder:/caf\xe9")}
    folder = run_folder("03_ddp.py", settings, {}, 2)
    assert folder != run_folder("03_ddp.py", settings | {"dataset": os.fsdecode(b"folder:/caf\xe8")}, {}, 2)


@pytest.mark.parametrize("content", ["[]", "3", "[" * 100_000], ids=["a list", "a number", "deep"])
def test_settings_that_are_none_are_damaged(content, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text(content)
    code, _, errors = run_to_end("epoch(1.0); finish(record)", tmp_path / "run", 0.1)
    assert code == 1 and "config.json is damaged" in errors
    assert (tmp_path / "run/config.json").read_text() == content


@pytest.mark.parametrize("name", ["config.json", ".lock"])
def test_a_folder_in_the_place_of_a_file_of_the_record_is_named_itself(name, tmp_path):
    (tmp_path / "run" / name).mkdir(parents=True)
    code, _, errors = run_to_end("finish(record)", tmp_path / "run", 0.1)
    assert code == 1 and f"{name}: it is a folder" in errors


@pytest.mark.parametrize(
    ("argument", "told"),
    [
        ({"processes": "2"}, "processes='2' makes no run"),
        ({"processes": 1.5}, "processes=1.5 makes no run"),
        ({"processes": 2**40}, "processes=1099511627776 makes no run: choose a whole number from 1 to 1,024"),
        ({"processes": 2**200}, r"processes=1606\d+\.\.\. makes no run"),
        ({"processes": None}, "processes=None makes no run"),
        ({"threads": 10**9}, "threads=1000000000 makes no run"),
        ({"threads": -3}, "threads=-3 makes no run"),
        ({"env": {"A": 1}}, "env holds 1: names and values are texts"),
        ({"env": {"A\0B": "x"}}, "env holds 'A.x00B'"),
        ({"run_dir": ""}, "run_dir='' names no folder"),
        ({"run_dir": 3}, "run_dir=3 names no folder"),
        ({"processes": True}, "processes=True makes no run"),
        ({"env": {"A=B": "1"}}, "env holds the name 'A=B'"),
        ({"env": ["A=1"]}, r"env=\['A=1'\] is no dictionary"),
        ({"script": None}, "None is no script: name the file"),
    ],
    ids=str,
)
def test_arguments_that_make_no_run_are_one_line(argument, told):
    with pytest.raises(UserError, match=told):
        launch(**{"script": ROOT / "solutions/03_ddp.py"} | argument)


def test_a_script_is_checked_whatever_its_name_ends_in(tmp_path):
    script = tmp_path / "03_ddp"
    script.write_text("this is no program\n")
    done = run_program("assessment.check", script)
    assert done.returncode == 1 and "SyntaxError" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["mine", "--lab", "03"], "mine is a folder: name the script in it"),
        (["03_mine"], "03_mine is a folder: name the script in it"),
        (["none", "--lab", "03"], "none cannot be read: name a lab's script"),
        (["03.py", "--lab", "../x"], "--lab '../x' is no lab: give its number, as in --lab 03"),
        (["03.py", "--lab", "²"], "--lab '²' is no lab"),
        (["mine.py"], "the name mine.py does not say which lab this is: add --lab 03"),
    ],
)
def test_what_names_no_script_of_a_lab_is_one_line(words, told, tmp_path):
    for name in ("mine", "03_mine"):
        (tmp_path / name).mkdir()
    done = run_program("assessment.check", tmp_path / words[0], *words[1:])
    assert done.returncode == 1 and told in done.stderr and len(done.stderr.strip().splitlines()) == 1


def test_a_pipe_is_no_script(tmp_path):
    os.mkfifo(tmp_path / "03_mine.py")
    done = run_program("assessment.check", tmp_path / "03_mine.py")
    assert done.returncode == 1 and "03_mine.py is a pipe" in done.stderr


def test_a_record_that_somebody_removes_ends_the_run(tmp_path):
    code, _, errors = run_to_end(
        "import shutil; epoch(1.0); shutil.rmtree(sys.argv[1]); epoch(2.0); finish(record)", tmp_path / "run", 0.1
    )
    assert code == 1 and "has been removed or moved while the run went on" in errors
    assert not (tmp_path / "run").exists()


def test_a_record_whose_numbers_alone_are_removed_says_failed(tmp_path):
    code, _, _ = run_to_end(
        "epoch(1.0); os.unlink(sys.argv[1] + '/metrics.csv'); epoch(2.0); finish(record)", tmp_path / "run", 0.1
    )
    assert code == 1 and json.loads((tmp_path / "run/summary.json").read_text())["state"] == "failed"
    shutil.rmtree(tmp_path / "run")


def test_a_pipe_in_the_place_of_settings_is_named(tmp_path):
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run/config.json")
    code, _, errors = run_to_end("finish(record)", tmp_path / "run", 0.1)
    assert code == 1 and "config.json is a pipe, a socket or a device" in errors


@pytest.mark.parametrize("name", ["metrics.csv", "model.pt", "summary.json"])
def test_files_of_somebody_else_are_not_written_over(name, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).write_text("mine")
    code, _, errors = run_to_end("epoch(1.0); finish(record)", tmp_path / "run", 0.1)
    assert code == 1 and f"{name} is of no run of the course: choose another --run-dir" in errors
    assert (tmp_path / "run" / name).read_text() == "mine" and not (tmp_path / "run/config.json").exists()


@pytest.mark.parametrize(
    ("images", "labels"),
    [((4, 1, 12, 12), [0, 1, 2, 7]), ((4, 12, 12), [0, 1, 2, 1]), ((3, 1, 12, 12), [0] * 4), ((0, 1, 12, 12), [])],
    ids=["unknown class", "no channels", "too few", "none"],
)
def test_prepared_images_that_make_no_dataset_are_named(images, labels, tmp_path):
    content = torch.zeros(images, dtype=torch.uint8), torch.tensor(labels, dtype=torch.int64)
    store("digits", tmp_path, dict.fromkeys(("train", "test"), content), ["a", "b", "c"])
    with pytest.raises(UserError, match=r"digits.pt holds images and labels that do not belong together"):
        load("digits", tmp_path)


def test_a_folder_of_one_class_is_told_so(tmp_path):
    for split in ("train", "test"):
        (tmp_path / "one" / split / "cat").mkdir(parents=True)
    with pytest.raises(UserError, match="has the one class 'cat'"):
        prepare(f"folder:{tmp_path / 'one'}", tmp_path)


@pytest.mark.parametrize(
    ("line", "told"), [(("folder:",), "folder: names no folder"), (("digits", "--data-dir", ""), "--data-dir is empty")]
)
def test_a_folder_without_a_name_is_no_folder(line, told, tmp_path):
    done = run_program("utils.data", *line)
    assert done.returncode == 1 and told in done.stderr and len(done.stderr.strip().splitlines()) == 1
