"""Who is right on one machine is right on one that is a hundred times slower, or as much busier."""

import pytest
from altering import altered, each, held_up, slower
from outcomes import ALL, run_of

from assessment.checklists.common import THREE, TWO

SLOWER = 100
TIMED = [one for one in ALL if one.law is None and one.lab in ("03", "assessment")]


@pytest.mark.parametrize("submission", TIMED, ids=lambda one: f"{one.lab} {one.name}")
def test_a_right_script_is_right_on_a_slower_machine(submission):
    result = altered(submission.lab, each(slower(SLOWER), *run_of(submission)), submission.name)
    assert [(miss.law.__name__, miss.verdict.symptom) for miss in result.misses] == []


@pytest.mark.parametrize("submission", TIMED, ids=lambda one: f"{one.lab} {one.name}")
def test_a_right_script_is_right_where_one_pass_takes_long(submission):
    """In the second epoch, for all ranks alike: the machine was busy with something else."""
    result = altered(submission.lab, each(held_up(5.0), TWO, THREE), submission.name)
    assert [(miss.law.__name__, miss.verdict.symptom) for miss in result.misses] == []
