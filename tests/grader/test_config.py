"""What is wrong in a config.json is told in one line, with its place, before anybody is graded."""

import json
from dataclasses import fields

import pytest
from programs import run_program

from assessment.grader.sandbox import Limits
from assessment.task import CONFIG, LIMITS, assignment, read_config
from utils.errors import UserError

GOOD = json.loads(CONFIG.read_text(encoding="utf-8"))


def changed(tmp_path, *place, value=None, name=None):
    """Write the course's config with the value at ``place`` changed, its key renamed, or gone; return its path."""
    config = json.loads(json.dumps(GOOD))
    inner = config
    for key in place[:-1]:
        inner = inner[key]
    old = inner.pop(place[-1])
    if value is not None or name is not None:
        inner[name or place[-1]] = old if value is None else value
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(
    ("place", "change", "told"),
    [
        (["model"], {"value": "wide-resnet-tny"}, "model is 'wide-resnet-tny'; choose one of lenet"),
        (["patience"], {"name": "patiense"}, "there is no patiense; did you mean patience?"),
        (["patience"], {"value": "two"}, "patience is 'two'; it must be a whole number of 1 or more"),
        (["batch_size"], {"value": 0}, "batch_size is 0; it must be a whole number of 1 or more"),
        (["hidden_images"], {"value": True}, "hidden_images is True"),
        (["processes"], {}, "processes is missing"),
        (["limits", "memory_mb"], {"value": 1}, "limits: memory_mb is 1; it must be a whole number of 1000 or more"),
        (["limits", "processes"], {"value": 1}, "limits: processes is 1; it must be a whole number of 50 or more"),
        (["limits"], {"value": 3}, "limits is 3; it must be a list of names and values"),
        (["limits", "cpu_s"], {"name": "cpus"}, "limits: there is no cpus; did you mean cpu_s?"),
        (["datasets", "digits-rgb", "target"], {}, "datasets, digits-rgb: target is missing"),
        (["datasets", "digits-rgb", "target"], {"value": 80}, "target is 80; it must be a number from 0 to 1"),
        (["datasets", "digits-rgb", "target"], {"value": 0.9}, "the target 0.9 is above the distinction"),
        (["datasets", "cifar10", "minutes"], {"value": 0}, "minutes is 0; it must be a number above 0"),
        (["dataset"], {"value": "cifar"}, "sets no target for cifar: choose one of digits-rgb, cifar10"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, place, change, told):
    path = changed(tmp_path, *place, **change)
    with pytest.raises(UserError) as raised:
        read_config(path)
    assert told in str(raised.value) and str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_that_is_none_is_told_in_a_line(tmp_path):
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "deep.json").write_text('{"a":' * 50_000)
    nothing = ((tmp_path / name, "is no JSON") for name in ("config.json", "deep.json"))
    for path, told in (*nothing, (tmp_path / "none", "No such file")):
        with pytest.raises(UserError, match=told):
            read_config(path)


def test_a_dataset_may_ask_for_another_network(tmp_path):
    entry = GOOD["datasets"]["cifar10"] | {"model": "wide-resnet"}
    path = changed(tmp_path, "datasets", value=GOOD["datasets"] | {"cifar10": entry})
    assert assignment("cifar10", path).model == "wide-resnet" and assignment(config=path).model == GOOD["model"]


def test_every_limit_may_be_set():
    assert {one.name for one in fields(Limits)} == LIMITS.keys()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--out", "{class}/grades"], "would be taken for submissions"),
        (["--out", "{class}"], "would be taken for submissions"),
        (["--out", ""], "it is empty: name a folder"),
        (["--out", "/proc/grades"], "cannot write /proc/grades"),
        (["--out", "/dev/null"], "cannot write /dev/null: it is a device or a pipe"),
        (["--data-dir", ""], "it is empty: name a folder"),
        (["--again", "nobody"], "--again names nobody"),
        (["--roster", "{class}/none.csv"], "cannot be read as CSV"),
    ],
)
def test_a_wrong_command_grades_nobody(tmp_path, more, told):
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "anna.py").write_text("print('here')\n")
    more = [one.replace("{class}", str(folder)) for one in more]
    done = run_program("assessment.grade", folder, "--out", tmp_path / "grades", *more)
    assert done.returncode in (1, 2) and told in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == 2 or len(done.stderr.strip().splitlines()) == 1  # argparse tells the usage as well
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["anna.py", "class"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda out: (out / ".lock").mkdir(parents=True), ".lock: it is a folder"),
        (lambda out: out.mkdir() or (out / ".kept").write_text(""), "is a file; choose another folder"),
        (lambda out: (out / ".kept").mkdir(parents=True) or (out / ".kept/.seed").write_text("x"), ".seed is damaged"),
    ],
    ids=["a folder as lock", "a file as what is kept", "a damaged seed"],
)
def test_a_folder_of_grades_that_holds_something_else_is_told_in_a_line(tmp_path, made, told):
    (tmp_path / "class").mkdir()
    (tmp_path / "class/anna.py").write_text("print('here')\n")
    made(tmp_path / "grades")
    done = run_program("assessment.grade", tmp_path / "class", "--out", tmp_path / "grades")
    assert done.returncode == 1 and told in done.stderr and len(done.stderr.strip().splitlines()) == 1
