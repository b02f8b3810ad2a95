"""What leaves the grader is whole, harmless and in the formats that others read."""

import csv
import io
import json
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assessment.checklists import checklist
from assessment.grader import gradebook
from assessment.grader.feedback import fenced, gradescope, markdown, prairielearn, write_feedback
from assessment.grader.marks import (
    FAIL,
    FAULT,
    NOT_GRADABLE,
    PASS,
    Check,
    Grade,
    mark_accuracy,
    mark_taught,
    nothing_earned,
)
from assessment.grader.submission_grader import Training
from assessment.task import assignment, reached_in, told

NAMES = ("=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\t=1", 'Zoë, "the" one', "a\nb", "<b>bold</b>", "nul\0l", "\ud83d")


def grade(learner, verdict=FAIL, **facts):
    checks = nothing_earned(checklist("assessment"))
    for check in checks:
        check.earned, check.told = (check.points, "seen") if verdict == PASS else (0, "not | seen <i>")
    return Grade(learner, f"key-{abs(hash(learner))}", verdict, checks=checks, **facts)


@pytest.fixture
def grades():
    verdicts = (PASS, FAIL, NOT_GRADABLE, FAULT)
    return [grade(name, verdicts[at % 4], cause=f"{name}\n```\nx", curve=[0.2, 0.5]) for at, name in enumerate(NAMES)]


@given(st.text(max_size=20))
def test_no_cell_is_a_formula(text):
    ((cell,),) = list(csv.reader(io.StringIO(gradebook.table([[text]]), newline="")))
    assert not cell.strip(" \n\v\f\0").startswith(gradebook.FORMULA)
    assert cell.removeprefix("'") == text or cell == text


def test_every_learner_has_a_row_everywhere(grades, tmp_path):
    about = {one.key: {"id": str(at), "email": f"{at}@example.org"} for at, one in enumerate(grades)}
    gradebook.write(grades, about, tmp_path)
    rows = {name: list(csv.reader(open_csv(tmp_path / f"{name}.csv"))) for name in ("gradebook", "canvas", "moodle")}
    assert [len(found) for found in rows.values()] == [len(grades) + 1, len(grades) + 2, len(grades) + 1]
    assert rows["canvas"][0][:5] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
    assert rows["canvas"][1][0] == "Points Possible" and rows["canvas"][1][5] == "100"
    assert {len(row) for found in rows.values() for row in found} == {len(found[0]) for found in rows.values()}
    for at, one in enumerate(grades):  # an empty cell leaves a grade as it is
        assert (rows["moodle"][at + 1][2] == "") == (one.verdict in (NOT_GRADABLE, FAULT))
    suites = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert len(suites) == len(grades)
    for suite, one in zip(suites, grades, strict=True):
        kinds = {child.tag for case in suite for child in case}
        assert kinds == {PASS: set(), FAIL: {"failure"}, NOT_GRADABLE: {"skipped"}, FAULT: {"error"}}[one.verdict]
    page = (tmp_path / "summary.html").read_text(encoding="utf-8")
    assert "<b>bold</b>" not in page and "&lt;b&gt;bold" in page


def open_csv(path):
    return io.StringIO(path.read_bytes().decode("utf-8"), newline="")


def test_feedback_is_valid_whatever_a_learner_is_called(grades, tmp_path):
    for one in grades:
        write_feedback(one, assignment(), tmp_path / one.key)
        results = json.loads((tmp_path / one.key / "results.json").read_text())
        assert 0 <= results["score"] <= 100 and results["output"]
        for test in results["tests"]:
            assert {"name", "score", "max_score", "status", "output", "visibility"} <= test.keys()
        page = (tmp_path / one.key / "feedback.html").read_text(encoding="utf-8")
        assert "<b>bold</b>" not in page and "<i>" not in page
        assert ("<img alt=" in page) == bool(one.curve)


def test_what_is_not_gradable_takes_no_attempt_and_is_no_zero():
    told = prairielearn(grade("x", NOT_GRADABLE, cause="no file"))
    assert told["gradable"] is False and told["message"] == "no file"
    assert prairielearn(grade("x", FAULT))["gradable"] is False
    assert prairielearn(grade("x", FAIL)) | {"tests": 0} == {
        "gradable": True, "score": 0.0, "message": "fail: 0 of 100 points", "output": "", "tests": 0,
    }  # fmt: skip
    assert gradescope(grade("x", NOT_GRADABLE))["tests"] == []


@given(st.text(alphabet="`~ab\n", max_size=30))
def test_a_block_of_code_ends_where_it_should(text):
    lines = fenced(text).split("\n")
    assert lines[0] == lines[-1] and not any(lines[0] in line for line in lines[1:-1])


def test_markdown_holds_no_markup_of_a_learner():
    text = markdown(grade("[x](javascript:1)", cause="# big\n<script>"))
    assert "\\[x\\](javascript:1)" in text and "```\n# big\n<script>\n```" in text


def test_a_grade_survives_being_kept():
    one = grade("x", PASS, curve=[0.1], accuracy=0.5, remarks=["r"])
    assert Grade.read(json.loads(json.dumps(one.kept()))) == one


TASK = assignment()
HIGH = [TASK.target - 0.2, TASK.target, TASK.target + 0.01]


@pytest.mark.parametrize(
    ("run", "is_earned", "told"),
    [
        (Training(HIGH, HIGH[-1], TASK.target), True, "hidden images"),
        (Training(HIGH[::-1], HIGH[0], TASK.target, proven={1: HIGH[2], 2: HIGH[1]}), True, "hidden images"),
        (Training(HIGH[::-1], HIGH[0], TASK.target, proven={1: HIGH[0], 2: HIGH[1]}), False, "for epoch 1 the script"),
        (Training(HIGH[::-1], HIGH[0], TASK.target, proven={1: HIGH[2]}), False, "for epoch 2 the script"),
        (Training([HIGH[2], HIGH[0], HIGH[2]], HIGH[2], TASK.target), False, "in a row"),
        (Training(HIGH, HIGH[-1], TASK.target - TASK.tolerance - 0.01), False, "the weights get"),
        (Training(HIGH, HIGH[-1] - 0.1, TASK.target), False, "the script reports"),
        (Training([], 0.9, 0.9), False, "reports no accuracy"),
        (Training([0.95] * 3, problem="the run left no model.pt"), False, "no model.pt"),
    ],
)
def test_accuracy_earns_only_what_the_weights_confirm(run, is_earned, told):
    check = Check("accuracy", 15)
    mark_accuracy(check, run, TASK)
    assert (check.earned == 15) == is_earned and told in check.told


def test_a_distinction_needs_curve_and_hidden_images():
    high = [TASK.distinction] * 2
    enough = TASK.distinction - TASK.tolerance
    assert mark_accuracy(Check("", 15), Training(high, high[-1], enough), TASK)
    mixed = [*high, TASK.target]
    assert not mark_accuracy(Check("", 15), Training(mixed, TASK.target, enough, proven={2: TASK.target}), TASK)
    assert not mark_accuracy(Check("", 15), Training(high, high[-1], enough - 0.01), TASK)
    assert not mark_accuracy(Check("", 15), Training(HIGH, HIGH[-1], enough), TASK)


def test_weights_brought_along_know_no_new_names():
    check = Check("taught", 10)
    mark_taught(check, Training([0.9], 0.9, TASK.taught_accuracy - 0.01), TASK)
    assert not check.earned and "renamed in secret" in check.told
    mark_taught(check, Training([0.9], 0.5, TASK.taught_accuracy), TASK)
    assert not check.earned and "reports 90.0%" in check.told
    mark_taught(check, Training([0.9], 0.9, TASK.taught_accuracy), TASK)
    assert check.earned == 10


@given(st.lists(st.sampled_from([0.1, 0.9])), st.integers(1, 4))
def test_a_target_is_reached_by_epochs_in_a_row(curve, patience):
    words = "".join("x" if one > 0.5 else " " for one in curve)
    first = words.find("x" * patience)
    assert reached_in(curve, 0.5, patience) == (first + patience if first >= 0 else None)


def test_a_run_says_whether_it_reached_the_target():
    task = assignment()
    low, high = [task.target - 0.1], [task.target + 0.001]
    assert told(low + high, task).count("not reached") == 2
    said = told(low + 2 * high, task)
    assert (
        f"the target {task.target:g}: reached in epoch 3" in said and f"distinction {task.distinction:g}: not" in said
    )
