"""The laws judge what every submission was seen to do: recordings of whole checks by real processes, and no process.

``make mutants`` holds the same expectations against real runs.
"""

import signal

import pytest
from mutants import named
from outcomes import ALL, known, named_submission, outcome, run_of

from assessment.checklists import report
from assessment.checklists.common import KILLED, ORDER
from assessment.checklists.lab import DONE, UNSEEN
from assessment.checklists.report import Report
from assessment.laws.verdict import HOLDS, broken


@pytest.mark.parametrize("submission", ALL, ids=lambda one: f"{one.lab} {one.name}")
def test_a_submission_is_judged_by_what_it_was_seen_to_do(submission):
    result = outcome(submission)
    told = [f"{miss.law.__name__}: {miss.verdict.symptom}" for miss in result.misses]
    assert named(result) == (submission.law or "done"), told
    assert not any("the checker itself failed" in line for line in told)


def test_a_run_that_is_to_be_killed_is():
    """Also one of an optimizer that torch does not know of, whose steps nobody announces."""
    runs = [run_of(one)[KILLED] for one in ALL if not one.law and KILLED in run_of(one)]
    assert len(runs) > 10 and all(-signal.SIGKILL in run.outcome.exits.values() for run in runs)


@pytest.mark.parametrize("law", ORDER, ids=lambda law: law.__name__)
@pytest.mark.parametrize("verdict", [HOLDS, broken("whatever was seen")], ids=["holds", "is broken"])
def test_no_law_can_be_replaced_by_one_verdict_unnoticed(law, verdict):
    def ask(other, trial):
        return verdict if other is law else known(other, trial)

    assert any(named(outcome(one, ask)) != (one.law or "done") for one in ALL)


# Whoever takes all images on all ranks trains as no single process does; whoever begins otherwise each time ends so;
# and ranks that judge by a number of their own do not stop together. A second run that fails shows nothing of its end.
COSTS_MORE = {
    "everything on every rank", "everything on every rank, and no wrapper", "seeded by the clock",
    "seeded by the hash of a text", "each reports its share", "a marker that an earlier run leaves",
}  # fmt: skip


WRONG = [one for one in ALL if one.lab == "assessment" and one.law]


@pytest.mark.parametrize("submission", WRONG, ids=lambda one: one.name)
def test_one_mistake_costs_the_points_of_one_check(submission):
    result = outcome(submission)
    lost = [item.title for item in result.lab.items if result.states[item.number] != DONE]
    assert len(lost) == 1 or (submission.name in COSTS_MORE and len(lost) == 2), lost


def test_a_miss_gets_the_hint_that_fits_it():
    result = outcome(named_submission("assessment", "counts of one rank"))
    told = repr(Report(result, report.STRENGTHS))
    assert "dist.all_reduce(sums)" in told and "if rank == 0" not in told
    assert result.lab.beyond not in told  # something is to be done first


def test_equal_images_on_all_ranks_show_nothing_of_averaging():
    result = outcome(named_submission("assessment", "everything on every rank, and no wrapper"))
    assert result.states[2] == "wrong" and result.states[3] == UNSEEN
    assert result.states[1] == UNSEEN or "nothing prepared" in result.ends  # what no run has shown is not done
