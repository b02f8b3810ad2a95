"""Predictions are kept, claims are checked: in CI they raise, for a learner they show a box and go on."""

import json

import pytest

from utils import claims
from utils.errors import UserError


@pytest.fixture(autouse=True)
def learner(tmp_path, monkeypatch):
    """Work as on a learner's machine, in an empty course folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("LOCKSTEP_SCALE", raising=False)
    claims.start("07_test")


def displayed(act, *args, **options):
    """Return what ``act`` returns and the objects that it hands to the notebook."""
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "display", made.append)
        return act(*args, **options), made


def shown(act, *args, **options):
    """Return the HTML that ``act`` displays."""
    return " ".join(one.data for one in displayed(act, *args, **options)[1])


def ask(*args, **options):
    """Return the prediction with its answer field, button and reply."""
    prediction, (box,) = displayed(claims.predict, *args, **options)
    answer, _unit, button, reply = box.children[1].children
    return prediction, answer, button, reply


def test_a_prediction_left_open_is_none_and_nothing_is_kept(tmp_path):
    prediction, *_ = ask("How many?")
    assert prediction.value is None and prediction.told() == "no prediction"
    assert not (tmp_path / ".lockstep").exists()


def test_a_number_is_kept_and_is_there_the_next_time(tmp_path):
    prediction, answer, button, reply = ask("How many?", unit="times")
    answer.value = "many"
    button.click()
    assert prediction.value is None and "please give a number" in reply.value
    answer.value = " 1,5 "
    button.click()
    assert prediction.value == 1.5 and "kept: 1.5 times" in reply.value
    kept = json.loads((tmp_path / ".lockstep/progress.json").read_text())
    assert kept == {"predictions": {"07_test: How many?": 1.5}}
    claims.start("07_test")
    again, answer, *_ = ask("How many?", unit="times")
    assert again.value == 1.5 and answer.value == "1.5"


def test_a_choice_is_kept_and_no_choice_is_not():
    prediction, answer, button, reply = ask("Which?", choices=["left", "right"])
    button.click()
    assert prediction.value is None and "please choose" in reply.value
    answer.value = "right"
    button.click()
    assert prediction.value == "right"


def test_a_claim_that_holds_shows_what_was_found_beside_the_prediction():
    prediction, answer, button, _ = ask("How many?", unit="times")
    answer.value = "3"
    button.click()
    html = shown(claims.claim, "it is two", True, found="2.0 times", expected="2", answers=prediction)
    assert "✓ it is two" in html and "Measured here: 2.0 times" in html and "You predicted: 3 times" in html


def test_a_claim_that_fails_is_a_red_box_for_a_learner_and_the_notebook_goes_on():
    html = shown(claims.claim, "a < b", False, found="a = 2", expected="a below 1")
    assert claims.RED in html and "a &lt; b" in html and "expected: a below 1" in html and "a = 2" in html


def test_a_claim_that_fails_raises_in_ci(monkeypatch):
    monkeypatch.setenv("CI", "true")
    with pytest.raises(claims.ClaimError, match="it is two: expected 2, found 3"):
        claims.claim("it is two", False, found=3, expected=2)
    shown(claims.claim, "it is three", True, found=3)


def test_the_summary_sets_predictions_beside_measurements_and_counts_claims():
    prediction, answer, button, _ = ask("How many?", unit="times")
    answer.value = "3"
    button.click()
    ask("Never measured?")
    shown(claims.claim, "one", True, found="2.0 times", answers=prediction)
    shown(claims.claim, "two", False, found="9")
    html = shown(claims.summary)
    assert "3 times" in html and "2.0 times" in html and "not measured" in html
    assert "1 of 2 claims held" in html
    shown(claims.claim, "two", True, found="8")  # the cell is run again
    assert "2 of 2 claims held" in shown(claims.summary)


def test_at_quick_scale_runs_are_cut_and_claims_left_out_saying_so(monkeypatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("LOCKSTEP_SCALE", "quick")
    assert "claims are left out" in shown(claims.start, "07_test")
    assert claims.at_scale(1000, 3) == 3
    assert "left out at quick scale: it is two" in shown(claims.claim, "it is two", False, found=3)
    assert "left out" in shown(claims.summary)


def test_at_full_scale_nothing_is_cut_and_other_scales_are_refused(monkeypatch):
    assert claims.at_scale(1000, 3) == 1000
    monkeypatch.setenv("LOCKSTEP_SCALE", "tiny")
    with pytest.raises(UserError, match="choose full or quick"):
        claims.at_scale(1, 2)


def test_a_notebook_works_in_the_courses_folder(tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")
    claims.start("07_test")
    assert claims.Path.cwd() == tmp_path


def test_damaged_progress_is_named_and_not_overwritten(tmp_path):
    (tmp_path / ".lockstep").mkdir()
    (tmp_path / ".lockstep/progress.json").write_text("{ half")
    with pytest.raises(UserError, match=r"progress\.json is damaged"):
        claims.predict("How many?")
    assert (tmp_path / ".lockstep/progress.json").read_text() == "{ half"
