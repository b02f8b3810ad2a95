"""A mixed class gets the same grades in every kind of sandbox, and however often its grader is killed.

``LOCKSTEP_CLASS`` says how many submissions it has: 30 with ``make soak``, two otherwise, and one kind of sandbox.
"""

import os
import random
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest
from classes import command, grade, gradebook, small_config
from conftest import ROOT, need
from submitted import submissions

from assessment.grader.sandbox import BUBBLEWRAP, NONE, UNSHARE, best_kind

IS_WHOLE = "LOCKSTEP_CLASS" in os.environ
SIZE = int(os.environ.get("LOCKSTEP_CLASS", 2))
KILLS = 10 if IS_WHOLE else 1
KINDS = (UNSHARE, NONE) if IS_WHOLE else (UNSHARE,)  # beside the best one
SEED = 20
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + 1200 * SIZE)]


def mixed():
    """Return ``SIZE`` scripts by learner: right and wrong ones in turn, and two that end in an error."""
    right, wrong = ([one for one in submissions(kind) if one.lab == "assessment"] for kind in ("right", "wrong"))
    scripts = [one.text() for pair in zip(right, wrong, strict=False) for one in pair]
    scripts += [one.text() for one in wrong[len(right) :]]
    first = scripts[0]
    scripts[2:2] = [first.replace("def main():\n", "def main():\n    raise ValueError('mine')\n"), "def main(:\n"]
    return {f"learner{at:02}": script for at, script in enumerate(scripts[:SIZE])}


@pytest.fixture(scope="module")
def handed_in(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class")
    for learner, script in mixed().items():
        (folder / f"{learner}.py").write_text(script, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return small_config(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def place(folder):
    """Return where the class is graded; the secret seed is the same everywhere, or other classes would be renamed."""
    kept = folder / "grades/.kept"
    kept.mkdir(parents=True)
    (kept / ".seed").write_text(str(SEED))
    return folder / "grades"


@pytest.fixture(scope="module")
def undisturbed(handed_in, config, data, tmp_path_factory):
    """Return where the class was graded in the best sandbox, in one go."""
    out = place(tmp_path_factory.mktemp("undisturbed"))
    done = grade(handed_in, out, config, data, "-j", "2", timeout=None)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def told(out):
    """Return each learner's row, less what the clock or the last digit of a network says."""
    rows = gradebook(out)
    assert len({row["learner"] for row in rows}) == len(rows)
    return {row["learner"]: (row["verdict"], row["points"]) for row in rows}


@pytest.fixture
def temporary(monkeypatch):
    """Return the folder in which the grader, and nobody else, makes its temporary files."""
    folder = Path(tempfile.mkdtemp(prefix="class-"))
    folder.chmod(0o755)
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    shutil.rmtree(folder)


def left(folder):
    """Return what a grader has left in ``folder``; a user's cache of compiled kernels is torch's own, and stays."""
    return [one for one in folder.iterdir() if not one.name.startswith("torchinductor_")]


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_gets_the_same_grades_in_every_kind_of_sandbox(
    kind, undisturbed, handed_in, config, data, temporary, tmp_path, monkeypatch
):
    need(best_kind() == BUBBLEWRAP, "bubblewrap is not installed, or may not be used")
    hidden = tmp_path / "bin"
    hidden.mkdir()
    (hidden / "bwrap").write_text("#!/bin/sh\nexit 1\n")  # as where it may not be used
    (hidden / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{hidden}{os.pathsep}{os.environ['PATH']}")
    more = ["--no-sandbox"] if kind == NONE else []
    out = place(tmp_path)
    done = grade(handed_in, out, config, data, "-j", "2", *more, timeout=None)
    assert done.returncode == 0, done.stderr[-3000:]
    assert told(out) == told(undisturbed) and len(told(undisturbed)) == SIZE
    assert not left(temporary)


def test_a_class_whose_grader_is_killed_again_and_again_is_graded_as_one_that_is_not(
    undisturbed, handed_in, config, data, temporary, tmp_path
):
    """Killed at moments that are drawn from seed 20; the next grader goes on, and clears away what was left."""
    out, moments = place(tmp_path), random.Random(SEED)
    for _ in range(KILLS):
        line = command(handed_in, out, config, data, "-j", "2")
        running = subprocess.Popen(line, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            running.wait(moments.uniform(1, 30 + 20 * SIZE / KILLS))
        except subprocess.TimeoutExpired:
            started = psutil.Process(running.pid).children(recursive=True)
            running.send_signal(signal.SIGKILL)
            running.wait()
            _, alive = psutil.wait_procs(started, timeout=60)
            assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    done = grade(handed_in, out, config, data, "-j", "2", timeout=None)
    assert done.returncode == 0, done.stderr[-3000:]
    assert told(out) == told(undisturbed)
    assert not left(temporary)
