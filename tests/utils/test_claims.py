"""Predictions are kept, claims are checked: in CI they raise, for a learner they show a box and go on."""

import json

import pytest
import torch

from utils.errors import UserError
from utils.notebook import claims


@pytest.fixture(autouse=True)
def learner(tmp_path, monkeypatch):
    """Work as on a learner's machine, in an empty course folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CI", raising=False)
    for name in ("LOCKSTEP_SCALE", "LOCKSTEP_SEED", "LOCKSTEP_CLAIMS"):
        monkeypatch.delenv(name, raising=False)
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
    html = shown(claims.claim, "it is two", 2.0, at_least=1.5, unit="times", answers=prediction)
    assert "✓ it is two" in html and "Measured here: 2 times (claimed: at least 1.5 times)" in html
    assert "You predicted: 3 times" in html


def test_a_claim_that_fails_is_a_red_box_for_a_learner_and_the_notebook_goes_on():
    html = shown(claims.claim, "a < b", 2, at_most=1, told="a = 2 < b")
    assert claims.RED in html and "a &lt; b" in html and "claimed: at most 1" in html and "a = 2 &lt; b" in html


@pytest.mark.parametrize(
    ("value", "bounds", "holds"),
    [
        (1, {"at_least": 1}, True),
        (0.999, {"at_least": 1}, False),
        (1, {"at_most": 1}, True),
        (1.001, {"at_most": 1}, False),
        (2, {"at_least": 1, "at_most": 3}, True),
        (4, {"at_least": 1, "at_most": 3}, False),
        (torch.tensor(2.0), {"at_most": 3}, True),
        (float("inf"), {"at_least": 1}, True),
        (float("nan"), {"at_least": 1}, False),
        (float("nan"), {"at_most": 1}, False),
    ],
)
def test_a_claim_holds_within_its_bounds_and_raises_in_ci_outside(value, bounds, holds, monkeypatch):
    monkeypatch.setenv("CI", "true")
    if holds:
        assert "✓ so" in shown(claims.claim, "so", value, **bounds)
    else:
        with pytest.raises(claims.ClaimError, match="so: claimed at "):
            claims.claim("so", value, **bounds)


@pytest.mark.parametrize("bounds", [{}, {"at_least": 3, "at_most": 1}, {"at_least": float("inf")}])
def test_a_claim_without_a_bound_that_can_be_missed_is_refused(bounds):
    with pytest.raises(UserError, match="claim 'so' needs at_least, at_most or both"):
        claims.claim("so", 2, **bounds)


def test_each_claim_leaves_a_line_where_one_is_asked_for(tmp_path, monkeypatch):
    path = tmp_path / "claims.jsonl"
    monkeypatch.setenv("LOCKSTEP_CLAIMS", str(path))
    shown(claims.claim, "one", 2.5, at_least=2)
    shown(claims.claim, "two", torch.tensor(9), at_most=3)
    one, two = map(json.loads, path.read_text().splitlines())
    assert one == {"chapter": "07_test", "claim": "one", "value": 2.5, "at_least": 2, "at_most": None}
    assert two == {"chapter": "07_test", "claim": "two", "value": 9.0, "at_least": None, "at_most": 3}
    monkeypatch.setenv("LOCKSTEP_CLAIMS", str(tmp_path / "missing/claims.jsonl"))
    with pytest.raises(UserError, match="missing"):
        claims.claim("three", 1, at_least=0)


def test_seeds_are_moved_by_the_environment(monkeypatch):
    assert claims.seeds(3) == (0, 1, 2)
    monkeypatch.setenv("LOCKSTEP_SEED", "20")
    assert claims.seeds(3) == (20, 21, 22)
    monkeypatch.setenv("LOCKSTEP_SCALE", "quick")
    assert claims.seeds(3) == (20,)
    monkeypatch.setenv("LOCKSTEP_SEED", "-1")
    with pytest.raises(UserError, match="LOCKSTEP_SEED=-1 is no seed"):
        claims.seeds(3)


def test_the_summary_sets_predictions_beside_measurements_and_counts_claims():
    prediction, answer, button, _ = ask("How many?", unit="times")
    answer.value = "3"
    button.click()
    ask("Never measured?")
    shown(claims.claim, "one", 2.04, at_least=1, unit="times", answers=prediction)
    shown(claims.claim, "two", 9, at_most=8)
    html = shown(claims.summary)
    assert "3 times" in html and "2.04 times" in html and "not measured" in html
    assert "1 of 2 claims held" in html
    shown(claims.claim, "two", 8, at_most=8)  # the cell is run again
    assert "2 of 2 claims held" in shown(claims.summary)


def test_at_quick_scale_runs_are_cut_and_claims_left_out_saying_so(monkeypatch):
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("LOCKSTEP_SCALE", "quick")
    assert "claims are left out" in shown(claims.start, "07_test")
    assert claims.at_scale(1000, 3) == 3
    assert "left out at quick scale: it is two" in shown(claims.claim, "it is two", 3, at_most=2)
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
