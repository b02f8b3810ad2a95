"""The table of how long the tests take: read off a run's own words, and within what the course promises."""

import pytest

from benchmarks import times
from utils.errors import UserError

LOG = """
======== 1540 passed, 2 skipped, 3 warnings in 573.49s (0:09:33) ========
=================== slowest 20 durations ===================
12.00s call     tests/there.py::test_it
=========== 229 passed in 326.00s (0:05:26) ===========
== 86 passed, 1461 deselected in 550.10s (0:09:10) ==

setup                        12 s   passed
test                        578 s   passed
test-notebooks              330 s   passed
test-slow                   552 s   passed
all                        1472 s
"""
PARTS = [("setup", 12, None), ("test", 578, 1540), ("test-notebooks", 330, 229), ("test-slow", 552, 86)]


def test_parts_are_read_off_what_a_run_told():
    assert times.parts(LOG) == [*PARTS, ("all", 1472, None)]


@pytest.mark.parametrize(
    ("log", "complaint"),
    [
        (LOG.replace("330 s   passed", "330 s   failed (1)"), "no log of a run whose parts have all passed"),
        ("nothing", "no log of a run"),
        (LOG.replace("229 passed in", "stopped after"), "3 parts with tests and 2 lines that count them"),
    ],
    ids=["failed", "no log", "cut"],
)
def test_what_tells_nothing_is_refused(log, complaint):
    with pytest.raises(UserError, match=complaint):
        times.parts(log)


def test_the_page_is_that_of_the_rows():
    rows = times.read()
    assert (times.RESULTS / "times.md").read_text(encoding="utf-8") == times.page(rows)
    assert {row["precision"] for row in rows} == {"float32", "bfloat16"}


def test_a_newcomer_waits_ten_minutes_and_ci_less_than_forty_five():
    for row in times.read():
        most_s = {"test": 600, "all": 2700}.get(row["part"])
        assert most_s is None or int(row["seconds"]) <= most_s, row
