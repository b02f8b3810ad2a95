"""Where the grader itself fails, it tries again once, and then only when it is asked to."""

from types import SimpleNamespace

import pytest

from assessment import assignment
from assessment.grader.class_grader import MOST_TRIES, ClassGrader
from assessment.grader.marks import FAIL, Grade, faulty
from assessment.grader.submissions import Submission

ANNA = Submission("anna", "anna", b"pass")


@pytest.fixture
def grader(tmp_path):
    return ClassGrader(SimpleNamespace(out=tmp_path, gpus=False, again=[], jobs=1), assignment(), "none", {})


def graded(grader, grade, digest="of this script"):
    """Keep ``grade``, and return what is kept of it at the next run: None where the submission is graded again."""
    grader._keep(grade, digest)
    return grader._kept(ANNA, "of this script")


def test_a_fault_is_tried_again_once_and_then_only_when_it_is_asked_for(grader):
    kept = [graded(grader, faulty("anna", "anna", "OSError")) for _ in range(MOST_TRIES + 1)]
    assert [one is None for one in kept] == [True] * (MOST_TRIES - 1) + [False] * 2
    grader.args.again = ["anna"]
    assert grader._kept(ANNA, "of this script") is None


def test_another_script_has_all_its_tries(grader):
    for _ in range(MOST_TRIES):
        graded(grader, faulty("anna", "anna", "OSError"), "of an earlier script")
    assert graded(grader, faulty("anna", "anna", "OSError")) is None


def test_a_grade_stays(grader):
    assert graded(grader, Grade("anna", "anna", FAIL)).verdict == FAIL
