"""What is wrong in a config.json is told in one line, with its place, before anybody is graded."""

import json
import os
import resource
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from conftest import ROOT, need
from programs import run_program

from assessment.grader import compiling
from assessment.grader.own_limits import MOST_BYTES, refuse_too_much
from assessment.grader.sandbox import NONE, Limits, best_kind, refuse_shown
from assessment.task import ASSIGNMENT, CONFIG, LIMITS, TARGETS, assignment, read_config
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
        (["patience"], {"value": "two"}, "patience is 'two'; it must be a whole number from 1 to 10,000"),
        (["batch_size"], {"value": 0}, "batch_size is 0; it must be a whole number from 1 to 65,536"),
        (["hidden_images"], {"value": True}, "hidden_images is True"),
        (["processes"], {}, "processes is missing"),
        (["limits", "memory_mb"], {"value": 1}, "limits: memory_mb is 1; it must be a whole number from 1,000 to"),
        (["limits", "processes"], {"value": 1}, "limits: processes is 1; it must be a whole number from 50 to"),
        (
            ["processes"],
            {"value": 600},
            "limits: processes is 500; 600 processes have up to 20 threads each",
        ),
        (["limits"], {"value": 3}, "limits is 3; it must be a list of names and values"),
        (["limits", "cpu_s"], {"name": "cpus"}, "limits: there is no cpus; did you mean cpu_s?"),
        (["datasets", "digits-rgb", "target"], {}, "datasets, digits-rgb: target is missing"),
        (["datasets", "digits-rgb", "target"], {"value": 80}, "target is 80; it must be a number from 0 to 1"),
        (["datasets", "digits-rgb", "target"], {"value": 0.9}, "the target 0.9 is above the distinction"),
        (["datasets", "cifar10", "minutes"], {"value": 0}, "minutes is 0; it must be a number above 0"),
        (["datasets", "cifar10", "minutes"], {"value": 1e9}, "it must be a number above 0, and 100,000 at most"),
        (["batch_size"], {"value": 10**10}, "batch_size is 10000000000; it must be a whole number from 1 to 65,536"),
        (["limits", "wall_s"], {"value": float("inf")}, "wall_s is inf; it must be a number from 10 to 10,000,000"),
        (["model"], {"value": "x" * 10**6}, "choose one of lenet"),
        (["dataset"], {"value": "cifar"}, "sets no target for cifar: choose one of digits-rgb, cifar10"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, place, change, told):
    path = changed(tmp_path, *place, **change)
    with pytest.raises(UserError) as raised:
        read_config(path)
    assert told in str(raised.value) and str(path) in str(raised.value) and "\n" not in str(raised.value)
    assert len(str(raised.value)) < 1000


@pytest.mark.parametrize("name", [*ASSIGNMENT, *TARGETS, *LIMITS])
def test_no_number_is_below_all_sense_or_above_it(name, tmp_path):
    tables = (([], ASSIGNMENT), (["datasets", "cifar10"], TARGETS), (["limits"], LIMITS))
    for place in [place for place, known in tables if name in known]:
        for value in (-1, -1e300, 10**1000, 1e300, float("inf"), float("nan")):
            with pytest.raises(UserError, match=f"{name} is .*; it must be a"):
                read_config(changed(tmp_path, *place, name, value=value))


def test_a_file_that_is_none_is_told_in_a_line(tmp_path):
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "deep.json").write_text('{"a":' * 50_000)
    nothing = ((tmp_path / name, "is no JSON") for name in ("config.json", "deep.json"))
    for path, told in (*nothing, (tmp_path / "none", "No such file")):
        with pytest.raises(UserError, match=told):
            read_config(path)


def test_what_is_no_file_is_told_in_a_line_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(UserError, match=r"is a pipe, a socket or a device: name a config\.json that is a file"):
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
        (["--out", "{class}/../loop"], "loop is a link that leads to itself"),
        (["--config", "/dev/zero"], "is a pipe, a socket or a device"),
        (["--data-dir", ""], "it is empty: name a folder"),
        (["--again", "nobody"], "--again names nobody"),
        (["--roster", "{class}/none.csv"], "cannot be read as CSV"),
    ],
)
def test_a_wrong_command_grades_nobody(tmp_path, more, told):
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "anna.py").write_text("print('here')\n")
    (tmp_path / "loop").symlink_to("loop")
    more = [one.replace("{class}", str(folder)) for one in more]
    done = run_program("assessment.grade", folder, "--out", tmp_path / "grades", *more)
    assert done.returncode in (1, 2) and told in done.stderr and "Traceback" not in done.stderr
    assert done.returncode == 2 or len(done.stderr.strip().splitlines()) == 1  # argparse tells the usage as well
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["anna.py", "class", "loop"]


CHECKED = """
import resource, sys
from assessment.grader.own_limits import refuse_too_much
from assessment.grader.sandbox import Limits
from utils.errors import one_line_errors
name, most, kind = sys.argv[1:]
resource.setrlimit(getattr(resource, name), (int(most), int(most)))
with one_line_errors():
    refuse_too_much(kind, Limits())
"""


@pytest.mark.parametrize(
    ("name", "most", "told"),
    [
        ("RLIMIT_DATA", MOST_BYTES - 1, "a process may take 7,999 MB of memory here (ulimit -H -d), and the grader"),
        ("RLIMIT_DATA", MOST_BYTES, ""),
        ("RLIMIT_CORE", 0, ""),
    ],
)
def test_a_grader_that_may_take_too_little_says_so(name, most, told):
    _, before = resource.getrlimit(getattr(resource, name))
    need(before in (resource.RLIM_INFINITY, most) or before > most, "the tests may take less themselves")
    command = [sys.executable, "-c", CHECKED, name, str(most), best_kind()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == bool(told) and told in done.stderr and done.stderr.count("\n") == bool(told)


def test_limits_that_the_system_does_not_grant_are_told_before_anybody_is_graded():
    kind = best_kind()
    need(kind != NONE, "no sandbox works on this machine")
    refuse_too_much(kind, Limits())
    with pytest.raises(UserError, match=r"cannot be set here \(prlimit: .*: lower them in its config.json"):
        refuse_too_much(kind, Limits(open_files=10**12))


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda out: (out / ".lock").mkdir(parents=True), ".lock: it is a folder"),
        (lambda out: out.mkdir() or (out / ".kept").write_text(""), "is a file; choose another folder"),
        (lambda out: (out / ".kept").mkdir(parents=True) or (out / ".kept/.seed").write_text("x"), ".seed is damaged"),
        (lambda out: (out / ".kept").mkdir(parents=True) or (out / ".kept/.seed").write_text("9" * 30), "is damaged"),
    ],
    ids=["a folder as lock", "a file as what is kept", "a damaged seed", "a seed that is too long"],
)
def test_a_folder_of_grades_that_holds_something_else_is_told_in_a_line(tmp_path, made, told):
    (tmp_path / "class").mkdir()
    (tmp_path / "class/anna.py").write_text("print('here')\n")
    made(tmp_path / "grades")
    done = run_program("assessment.grade", tmp_path / "class", "--out", tmp_path / "grades")
    assert done.returncode == 1 and told in done.stderr and len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("below", ["assessment/handed-in", "utils", f"{Path(sys.prefix)}/grades"], ids=["a", "b", "c"])
def test_nothing_may_lie_where_every_submission_can_read_it(tmp_path, below):
    place = ROOT / below
    with pytest.raises(UserError, match="which every submission can read: choose another folder"):
        refuse_shown({"--out": place})
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(UserError, match=f"--roster {tmp_path}/link lies in"):
        refuse_shown({"--out": tmp_path, "--roster": tmp_path / "link"})
    refuse_shown({"--out": tmp_path, "the folder of submissions": ROOT / "handed-in"})


def test_grades_are_not_kept_where_every_submission_can_read_them(tmp_path):
    need(best_kind() != NONE, "there is no sandbox here")
    (tmp_path / "anna.py").write_text("pass")
    out = ROOT / "assessment/grades-of-a-test"
    command = [sys.executable, "-m", "assessment.grade", tmp_path, "--out", out]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "--out" in done.stderr and "every submission can read" in done.stderr
    assert not out.exists()


def test_a_line_that_cannot_be_written_ends_nothing():
    program = "from assessment.grader.class_grader import tell\ntell('one')\ntell('and another')\nprint('graded')"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=full, text=True, timeout=60
        )
    assert done.returncode == 0 and done.stdout == "graded\n"


@pytest.mark.parametrize("source", ["def f():\n nonlocal " + "\u4e00" * 20_500, "x = (" + "9" * 60_000 + "\n"])
def test_what_python_says_of_a_source_is_cut(tmp_path, source):
    (tmp_path / "train.py").write_text(source, encoding="utf-8")
    told = compiling.read(tmp_path / "train.py")
    assert told["problem"].startswith("it is no Python program: ") and len(json.dumps(told)) < 5_000
