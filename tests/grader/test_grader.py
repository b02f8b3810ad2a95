"""The grader: a class of strangers is graded to the last one, rightly, and nothing else is touched.

A few submissions are graded in two goes, of which the first is interrupted, and everybody's at once. Those that take
longest are left to ``make soak``, which sets ``LOCKSTEP_CLASS``.
"""

import json
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest
from classes import QUICK, command, grade, gradebook, rooms, small_config
from conftest import ROOT, need, until
from hostile import FEW, LONG, REFUSED, SCRIPTS, hand_in

from assessment.grader.marks import NOT_GRADABLE
from assessment.grader.sandbox import BUBBLEWRAP, best_kind

IS_WHOLE = "LOCKSTEP_CLASS" in os.environ
EVERYBODY = tuple(one for one in SCRIPTS if IS_WHOLE or one.name not in LONG)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400 if IS_WHOLE else 1200)]


def contents(folder):
    """Return what each file below ``folder`` holds and when it was written; a lock holds nothing."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return small_config(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("colour")


@dataclass(frozen=True)
class Graded:
    """A class that has been graded; ``first`` holds when each grade was kept that an interrupted go had left."""

    scripts: tuple
    folder: Path
    out: Path
    done: subprocess.CompletedProcess
    first: dict
    rooms_before: set  # what graders that were killed have left

    @property
    def rows(self):
        return {row["learner"]: row for row in gradebook(self.out)}


def handed_in(tmp_path_factory, scripts):
    need(best_kind() == BUBBLEWRAP, "bubblewrap is not installed, or may not be used")
    before = rooms()
    folder, out = tmp_path_factory.mktemp("class"), tmp_path_factory.mktemp("out") / "grades"
    hand_in(folder, out, QUICK["limits"]["cpu_s"], scripts)
    return folder, out, before


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, config, data):
    """Grade a few; interrupt the grader after the first of them, then let it go on."""
    folder, out, before = handed_in(tmp_path_factory, FEW)
    running = subprocess.Popen(command(folder, out, config, data, "-j", "1"), cwd=ROOT, start_new_session=True)
    try:
        until(lambda: ran_and_kept(out), 300, "the first grade of a script that ran")
        started = psutil.Process(running.pid).children(recursive=True)
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 128 + signal.SIGINT
        _, alive = psutil.wait_procs(started, timeout=60)
        assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
    finally:
        running.kill()
    first = {path: path.stat().st_mtime_ns for path in out.glob(".kept/*.json") if path.stem not in REFUSED}
    return Graded(FEW, folder, out, grade(folder, out, config, data, "-j", "2"), first, before)


def ran_and_kept(out):
    """Return the files of the grades of scripts that were run."""
    return [path for path in out.glob(".kept/*.json") if json.loads(path.read_text())["verdict"] != NOT_GRADABLE]


@pytest.fixture(scope="module")
def everybody(tmp_path_factory, config, data):
    """Grade all submissions at once."""
    folder, out, before = handed_in(tmp_path_factory, EVERYBODY)
    return Graded(EVERYBODY, folder, out, grade(folder, out, config, data, "-j", "3", timeout=2000), {}, before)


@pytest.fixture(params=["interrupted", "everybody"])
def graded(request):
    """Return a class that has been graded."""
    return request.getfixturevalue(request.param)


def shown(name):
    """Return a learner's name as it stands in the gradebook."""
    name = os.fsencode(name).decode("utf-8", "replace")
    return f"'{name}" if name.startswith("=") else name


def test_a_class_is_graded_to_the_last_one(graded):
    rows, out, said = graded.rows, graded.out, graded.done.stderr
    assert graded.done.returncode == 0, said[-3000:]
    assert rows.keys() == {shown(one.name) for one in graded.scripts} | REFUSED.keys()
    log = [line.split(f" of {len(rows)}: ") for line in said.splitlines() if f" of {len(rows)}: " in line]
    ran = {name: row for name, row in rows.items() if name not in REFUSED}
    left = len(ran) - len(graded.first)
    assert [int(number) for number, _ in log] == list(range(len(rows) - left + 1, len(rows) + 1))
    told = {name: verdict for verdict, name in (line.split(": ", 1) for _, line in log)}
    assert len(told) == len(log) and all(ran[shown(name)]["verdict"] == verdict for name, verdict in told.items())
    for name in ("canvas.csv", "moodle.csv", "junit.xml", "summary.html"):
        assert (out / name).stat().st_size
    assert len(ElementTree.parse(out / "junit.xml").getroot()) == len(rows)


def test_an_interrupted_run_goes_on_where_it_stopped(interrupted):
    kept = {path: path.stat().st_mtime_ns for path in interrupted.first}
    assert kept and kept == interrupted.first


EACH = [pytest.param("interrupted", one, id=f"interrupted {one.name!a}") for one in FEW]
EACH += [pytest.param("everybody", one, id=ascii(one.name)) for one in EVERYBODY]


@pytest.mark.parametrize(("which", "one"), EACH)
def test_each_gets_its_verdict_and_its_cause(which, one, request):
    graded = request.getfixturevalue(which)
    row = graded.rows[shown(one.name)]
    (folder,) = [path.parent for path in graded.out.glob("learners/*/feedback.md") if is_of(path, one.name)]
    feedback = (folder / "feedback.md").read_text()
    assert row["verdict"] == one.verdict, feedback
    assert one.told in feedback
    results = json.loads((folder / "results.json").read_text())
    assert results["score"] == (100 if one.verdict == "pass" else int(row["points"] or 0))
    assert one.verdict == "pass" or results["score"] < 100
    assert json.loads((folder / "prairielearn.json").read_text())["gradable"] == (one.verdict != NOT_GRADABLE)


def is_of(path, name):
    first = os.fsencode(name).decode("utf-8", "replace")
    kept = path.parents[2] / ".kept" / f"{path.parent.name}.json"
    return json.loads(kept.read_text())["learner"] == first


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_takes_no_attempt(graded, name):
    row = graded.rows[name]
    assert row["verdict"] == NOT_GRADABLE and row["points"] == ""
    assert REFUSED[name] in json.loads((graded.out / f"learners/{name}/prairielearn.json").read_text())["message"]


def test_nothing_else_is_touched(graded):
    folder, out = graded.folder, graded.out
    assert not list(Path("/tmp").glob("executed-by-a-pickle")) and not list(out.rglob("executed-by-a-pickle"))
    assert (folder / "anybody-elses/secret.txt").read_text() == "nobody's business"
    assert not [
        one for one in psutil.process_iter(["cmdline"]) if "left-behind-by-a-submission" in (one.info["cmdline"] or [])
    ]
    running = [" ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
    left = rooms() - graded.rooms_before
    assert not [room for room in left if not any(str(room) in one for one in running)]  # another class may be graded
    seed = (out / ".kept/.seed").read_text()
    told = [path.read_text() for path in out.rglob("*") if path.suffix in (".md", ".html", ".json", ".csv", ".xml")]
    assert not [text for text in told if seed in text]


def test_grading_again_changes_nothing(graded, config, data):
    before = contents(graded.out)
    done = grade(graded.folder, graded.out, config, data)
    assert done.returncode == 0, done.stderr
    assert contents(graded.out) == before
