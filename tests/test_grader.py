"""The grader: a class of strangers is graded to the last one, rightly, and nothing else is touched."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest
import torch
from conftest import ROOT, need
from hostile import REFUSED, SCRIPTS, hand_in
from PIL import Image
from torch.nn import functional as F

from assessment.marking import NOT_GRADABLE
from assessment.sandbox import BUBBLEWRAP, best_kind

QUICK = {
    "model": "wide-resnet-tiny",
    "processes": 2,
    "batch_size": 32,
    "patience": 1,
    "taught_epochs": 2,
    "taught_batch_size": 16,
    "taught_accuracy": 0.4,
    "hidden_images": 0,
    "source_kb": 64,
    "limits": {
        "wall_s": 120,
        "cpu_s": 25,
        "memory_mb": 6000,
        "processes": 150,
        "disk_mb": 300,
        "file_mb": 100,
        "output_mb": 2,
    },
}
TARGET = {"target": 0.5, "distinction": 0.7, "tolerance": 0.2, "epochs": 3, "minutes": 1}


def small_dataset(folder):
    """Write images that any network learns in two dozen steps, as files, and return the dataset's name."""
    generator = torch.Generator().manual_seed(4)
    patterns = F.interpolate(torch.rand(10, 3, 4, 4, generator=generator), size=(32, 32), mode="bicubic").clamp(0, 1)
    for split, count in (("train", 80), ("test", 20)):
        for label, pattern in enumerate(patterns):
            place = folder / split / str(label)
            place.mkdir(parents=True)
            for at in range(count):
                pixels = pattern * (0.5 + 0.5 * torch.rand(1, generator=generator))
                pixels = (pixels + 0.1 * torch.randn(3, 32, 32, generator=generator)).clamp(0, 1)
                Image.fromarray((pixels * 255).byte().permute(1, 2, 0).numpy()).save(place / f"{at:02}.png")
    return f"folder:{folder}"


def grade(folder, out, config, data, *more, timeout=900):
    command = [sys.executable, "-m", "assessment.grade", folder, "--out", out, "--config", config, "--data-dir", data]
    command = [*map(str, command), *more]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def gradebook(out):
    with open(out / "gradebook.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def contents(folder):
    """Return what each file below ``folder`` holds and when it was written; a lock holds nothing."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("config")
    name = small_dataset(folder / "images")
    (folder / "config.json").write_text(json.dumps(QUICK | {"dataset": name, "datasets": {name: TARGET}}))
    return folder / "config.json"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("colour")


@pytest.fixture(scope="module")
def graded(tmp_path_factory, config, data):
    """Grade the whole class of hostile submissions once; return its folders and what the grader said."""
    need(best_kind() == BUBBLEWRAP, "bubblewrap is not installed, or may not be used")
    folder, out = tmp_path_factory.mktemp("class"), tmp_path_factory.mktemp("out") / "grades"
    hand_in(folder, out)
    done = grade(folder, out, config, data, "-j", "3")
    rows = gradebook(out)
    return folder, out, done, {row["learner"]: row for row in rows}


def shown(name):
    """Return a learner's name as it stands in the gradebook."""
    name = os.fsencode(name).decode("utf-8", "replace")
    return f"'{name}" if name.startswith("=") else name


@pytest.mark.timeout(900)
def test_a_class_is_graded_to_the_last_one(graded):
    _, out, done, rows = graded
    assert done.returncode == 0, done.stderr[-3000:]
    assert rows.keys() == {shown(one.name) for one in SCRIPTS} | REFUSED.keys()
    log = [line.split(f" of {len(rows)}: ") for line in done.stderr.splitlines() if f" of {len(rows)}: " in line]
    ran = [row for row in rows.values() if row["verdict"] != NOT_GRADABLE]
    assert [int(number) for number, _ in log] == list(range(len(rows) - len(ran) + 1, len(rows) + 1))
    assert sorted(told.rpartition(": ")[2] for _, told in log) == sorted(row["verdict"] for row in ran)
    assert all(float(row["seconds"]) < 240 for row in rows.values())
    for name in ("canvas.csv", "moodle.csv", "junit.xml", "summary.html"):
        assert (out / name).stat().st_size
    assert len(ElementTree.parse(out / "junit.xml").getroot()) == len(rows)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("one", SCRIPTS, ids=lambda one: ascii(one.name))
def test_each_gets_its_verdict_and_its_cause(graded, one):
    _, out, _, rows = graded
    row = rows[shown(one.name)]
    (folder,) = [path.parent for path in out.glob("learners/*/feedback.md") if is_of(path, one.name)]
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


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_takes_no_attempt(graded, name):
    _, out, _, rows = graded
    assert rows[name]["verdict"] == NOT_GRADABLE and rows[name]["points"] == ""
    assert REFUSED[name] in json.loads((out / f"learners/{name}/prairielearn.json").read_text())["message"]


@pytest.mark.timeout(900)
def test_nothing_else_is_touched(graded):
    folder, out, _, _ = graded
    assert not list(Path("/tmp").glob("executed-by-a-pickle")) and not list(out.rglob("executed-by-a-pickle"))
    assert (folder / "anybody-elses/secret.txt").read_text() == "nobody's business"
    assert not [
        one for one in psutil.process_iter(["cmdline"]) if "left-behind-by-a-submission" in (one.info["cmdline"] or [])
    ]
    assert not list(Path("/tmp").glob("lockstep-grade-*"))
    seed = (out / ".kept/.seed").read_text()
    told = [path.read_text() for path in out.rglob("*") if path.suffix in (".md", ".html", ".json", ".csv", ".xml")]
    assert not [text for text in told if seed in text]


@pytest.mark.timeout(900)
def test_grading_again_changes_nothing(graded, config, data):
    folder, out, _, _ = graded
    before = contents(out)
    done = grade(folder, out, config, data)
    assert done.returncode == 0, done.stderr
    assert contents(out) == before


@pytest.mark.timeout(300)
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, config, data):
    need(best_kind() == BUBBLEWRAP, "bubblewrap is not installed, or may not be used")
    folder, out = tmp_path / "class", tmp_path / "grades"
    folder.mkdir()
    for name in ("first", "second", "third"):
        (folder / f"{name}.py").write_text("import os\nos._exit(0)\n")
    command = [sys.executable, "-m", "assessment.grade", folder, "--out", out, "--config", config, "--data-dir", data]
    running = subprocess.Popen([*command, "-j", "1"], cwd=ROOT, start_new_session=True)
    kept = out / ".kept/first.json"
    deadline = time.monotonic() + 120
    while not kept.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    started = psutil.Process(running.pid).children(recursive=True)
    running.send_signal(signal.SIGINT)
    running.wait(30)
    psutil.wait_procs(started, timeout=10)
    assert not [one for one in started if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    seen = kept.stat().st_mtime_ns
    assert grade(folder, out, config, data).returncode == 0
    rows = gradebook(out)
    assert [row["verdict"] for row in rows] == ["fail"] * 3 and kept.stat().st_mtime_ns == seen
