"""The assignment's minutes: as they are on a machine that is fast enough, and longer on one that is not."""

from types import SimpleNamespace

import pytest
import torch

from assessment import assignment, pace
from utils.errors import UserError

TASK = SimpleNamespace(model="lenet", batch_size=32, minutes=2, pace=1000)


@pytest.mark.parametrize(("measured", "wanted"), [(5000, 120), (1000, 120), (500, 240), (100, 1200)])
def test_a_slower_machine_gets_as_much_more_time_as_it_is_slower(monkeypatch, measured, wanted):
    monkeypatch.setattr(pace, "images_per_s", lambda *_machine: measured)
    assert pace.budget_s(TASK) == wanted
    assert ": too long" not in pace.told(wanted, TASK)
    assert ": too long" in pace.told(wanted + 1, TASK)


def test_minutes_that_come_to_more_than_a_year_are_refused(monkeypatch):
    monkeypatch.setattr(pace, "images_per_s", lambda *_machine: 0.001)
    with pytest.raises(UserError, match=r"2 minutes at a pace of 1000 images a second are 1,389 days on this machine"):
        pace.budget_s(TASK)


def test_a_batch_that_no_machine_holds_is_measured_by_a_part_of_it(monkeypatch):
    measured = []
    monkeypatch.setattr(pace, "_steps", lambda _model, size, _device: measured.append(size) or [1.0, 1.0])
    pace.images_per_s.cache_clear()
    assert pace.images_per_s(TASK.model, 65_536) == pace.MOST_IMAGES == measured[0]
    pace.images_per_s.cache_clear()


def test_nothing_is_measured_where_the_time_was_enough_on_any_machine(monkeypatch):
    monkeypatch.setattr(pace, "images_per_s", lambda *_machine: pytest.fail("the machine was measured"))
    assert pace.told(119, TASK) == "training took 119 s of the 120 s that it may take"


def test_a_machine_trains_on_images_and_draws_no_number_for_it():
    pace.images_per_s.cache_clear()
    before = torch.get_rng_state()
    assert pace.images_per_s(TASK.model, TASK.batch_size) > 1
    assert torch.equal(torch.get_rng_state(), before)


def test_the_assignment_names_its_pace():
    assert assignment().pace > 1 and assignment("cifar10").pace > 1
