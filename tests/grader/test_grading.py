"""Scoring: weights are judged by a process that has never run the script, and its end is no fault of the script's."""

import os
import signal
import threading
import time

import pytest
import torch
from conftest import need
from PIL import Image

from assessment import assignment
from assessment.grader.exam import keep_exams
from assessment.grader.marks import FAIL
from assessment.grader.sandbox import NONE, Limits, best_kind
from assessment.grader.submission_grader import SCORERS, Grader, Training
from utils import models


class Scores(Grader):
    """A grader to whom each script has left the same ``state``; its scorer dies at the work as often as ``losses``."""

    state, losses = None, 0

    def _grade(self, grade, script):
        torch.save(self.state, self.weights)
        threading.Thread(target=self._lose, daemon=True).start()
        run = Training()
        self._score(run, self.true)
        grade.accuracy, grade.cause = run.hidden, run.problem

    def _lose(self):
        killed = set()
        while len(killed) < self.losses:
            time.sleep(0.001)
            pid = self.scorer.pid
            if pid is not None and pid not in killed and self.scorer.is_in_run:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)


@pytest.fixture(scope="module")
def grader(tmp_path_factory):
    need(best_kind() != NONE, "no sandbox works on this machine")
    room = tmp_path_factory.mktemp("room")
    for split in ("train", "test"):
        for label in range(10):
            place = room / "images" / split / str(label)
            place.mkdir(parents=True)
            for at in range(20):
                Image.new("RGB", (32, 32), (25 * label, 12 * at, 100)).save(place / f"{at:02}.png")
    room.chmod(0o755)
    task = assignment()
    task.dataset, task.hidden_images = f"folder:{room / 'images'}", 0
    task.batch_size = 16
    (room / "config.json").write_text("{}")
    for exam in keep_exams(task, room / "data", room, seed=3):
        assert (exam / "hidden.pt").exists()
    one = Scores(room, task, best_kind(), Limits(), budget_s=300)
    yield one
    one.close()


def test_weights_get_the_accuracy_that_they_have(grader):
    torch.manual_seed(0)
    network = models.build(grader.task.model, 3, 10).eval()
    hidden = torch.load(grader.true / "hidden.pt", weights_only=True)
    grader.state = network.state_dict()
    with torch.inference_mode():
        right = (network(hidden["images"]).argmax(1) == hidden["labels"]).float().mean().item()
    grade = grader.grade("anna", "anna", "train.py")
    assert grade.verdict == FAIL and grade.accuracy == pytest.approx(right, abs=1e-6) and not grade.cause


def test_weights_of_another_network_are_the_scripts_fault(grader):
    grader.state = models.build("lenet", 3, 10).state_dict()
    grade = grader.grade("bob", "bob", "train.py")
    assert grade.verdict == FAIL and "cannot be scored as" in grade.cause


def test_what_is_said_of_weights_is_short_and_does_not_stay(grader):
    grader.state = {"n" * 2_000_000: torch.zeros(1)}
    grade = grader.grade("nora", "nora", "train.py")
    assert grade.verdict == FAIL and "cannot be scored as" in grade.cause and len(grade.cause) < 1000
    assert not list(grader.scorer.work.glob("logs-*"))


@pytest.fixture
def right_state(grader):
    return models.build(grader.task.model, 3, 10).state_dict()


class Evil:
    """What creates a file wherever it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_pickle_in_the_place_of_weights_is_not_executed(grader):
    place = grader.scorer.work / "open to all"
    place.mkdir()
    place.chmod(0o777)
    mark = place / "executed"
    grader.state = {"weight": Evil(mark)}
    grade = grader.grade("eve", "eve", "train.py")
    assert grade.verdict == FAIL and "cannot be scored as" in grade.cause and not mark.exists()


@pytest.mark.slow
def test_a_scorer_that_is_lost_is_replaced(grader, right_state):
    grader.scorer.close()
    grader.state, grader.losses = right_state, 1
    grade = grader.grade("carla", "carla", "train.py")
    assert grade.verdict == FAIL and not grade.cause and grade.accuracy is not None


@pytest.mark.slow
def test_weights_that_end_every_scorer_are_no_fault_of_the_graders(grader, right_state):
    grader.scorer.close()
    grader.state, grader.losses = right_state, SCORERS
    grade = grader.grade("dora", "dora", "train.py")
    grader.losses = 0
    assert grade.verdict == FAIL and "cannot be scored" in grade.cause
    assert not any(check.earned for check in grade.checks)
    assert not grader.grade("emil", "emil", "train.py").cause  # the next one is scored again
