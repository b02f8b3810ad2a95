"""The benchmark names what it measures; its numbers belong to ``make bench``, not to a test."""

from programs import run_program

from benchmarks import pairs
from benchmarks.__main__ import ROWS


def test_every_row_has_its_pair():
    assert all(callable(getattr(pairs, row.pair)) for row in ROWS)
    assert len({row.pair for row in ROWS}) == len(ROWS)


def test_an_unknown_row_ends_in_one_line():
    told = run_program("benchmarks", "rings")
    assert told.returncode == 1 and told.stdout == ""
    assert told.stderr.startswith("no row is named rings; there are two_for_one, ") and told.stderr.count("\n") == 1


def test_a_row_knows_whether_its_goal_is_met():
    by_name = {row.pair: row for row in ROWS}
    assert by_name["ring"].holds(0.8) and not by_name["ring"].holds(0.79)
    assert by_name["sync_batchnorm"].holds(1.6) and not by_name["sync_batchnorm"].holds(1.61)
