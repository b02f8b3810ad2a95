"""The table of claims: what notebooks claim, measured again and again in both precisions, held each time."""

import math

import nbformat
import psutil
import pytest

from benchmarks import claims, spreads

NOTEBOOK = """
from utils.notebook import claims
claims.start("99_made_up")
(seed,) = claims.seeds(1)
claims.claim("seeds are moved", seed, at_least=0, at_most=100)
claims.claim("the first seed is none of the later ones", seed, at_most=9)
"""


def row(value, at_least=None, at_most=None):
    return {"value": value, "at_least": at_least, "at_most": at_most}


def test_every_claim_of_the_course_held_in_every_run_of_both_precisions_with_its_margin():
    asked = {name: claims.bounds_of(claims.measurements(path)) for name, path in claims.notebooks().items()}
    found = spreads.spreads(claims.read())
    assert found.keys() == {(chapter, claim) for chapter, bounds in asked.items() for claim in bounds}
    assert len(found) > 80
    for key, by in found.items():
        assert by.keys() == {*spreads.PRECISIONS} and all(spread.is_sure for spread in by.values()), key


def test_the_runs_are_those_of_the_notebooks_as_they_stand():
    codes = {name: claims.code_of(claims.measurements(path)) for name, path in claims.notebooks().items()}
    assert {(row["chapter"], row["code"]) for row in claims.read()} == set(codes.items())


def test_the_page_is_that_of_the_runs():
    assert (claims.RESULTS / "claims.md").read_text(encoding="utf-8") == spreads.page(claims.read())


@pytest.mark.parametrize(
    ("values", "bounds", "margin", "is_sure"),
    [
        ([-5, -7] * 5, {"at_least": -11}, 5 / math.sqrt(10 / 9), True),
        ([5, 7] * 5, {"at_most": 8}, 2 / math.sqrt(10 / 9), False),
        ([-5, -7] * 5, {"at_least": -9, "at_most": -5}, 1 / math.sqrt(10 / 9), False),
        ([5] * 10, {"at_most": 5}, math.inf, True),
        ([0] * 10, {"at_most": 0}, math.inf, True),
        ([6] * 10, {"at_most": 5}, -math.inf, False),
        ([-5, -7] * 4, {"at_least": -11}, 5 / math.sqrt(8 / 7), False),
        ([100.0] * 9 + [0.0], {"at_least": 1}, 89 / math.sqrt(1000), False),
        ([2, 8] * 5, {"at_least": 1}, 2 / math.sqrt(10 / 9), False),  # the mean of the logarithms to base 2 is 2
        ([16, 64] * 5, {"at_least": 1}, 5 / math.sqrt(10 / 9), True),
    ],
    ids=[
        "sure",
        "a small margin",
        "the nearer bound",
        "no spread",
        "at the bound",
        "beyond",
        "eight runs",
        "one missed",
        "factors",
        "large factors",
    ],
)
def test_a_claim_is_sure_by_its_margin_and_by_every_run(values, bounds, margin, is_sure):
    spread = spreads.Spread.of([row(value, **bounds) for value in values])
    assert spread.margin == pytest.approx(margin) and spread.is_sure == is_sure


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("from here import start\n\nvalue = 1", "from there.far import start\nvalue = 1  # as before", True),
        ("value = 1\nplots.lines(value, alt='one')", "value = 1\nprint(value)", True),
        ("claims.claim('it is', value, at_least=1, told='one')", "claims.claim('it is', value,\n  at_least=1)", True),
        ("claims.claim('it is', value, at_least=1)", "claims.claim('it is', value, at_most=2)", True),
        ("claims.claim('it is', value, at_least=1)", "claims.claim('it is', -value, at_least=1)", False),
        ("%%ranks 2 told\nvalue = 1", "%%ranks 3 told\nvalue = 1", False),
        ("%load_ext here\nvalue = 1", "value = 2", False),
        ("%%ranks 2 told\nprint(measured(1))", "%%ranks 2 told\nprint(measured(2))", False),
    ],
    ids=["imports", "figures", "words", "bounds", "what is claimed", "ranks", "values", "what ranks print"],
)
def test_a_notebook_is_another_one_by_what_it_measures(one, other, is_same):
    told = [claims.code_of(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])) for cell in (one, other)]
    assert (told[0] == told[1]) == is_same


@pytest.fixture
def chapter(tmp_path, monkeypatch):
    """Return the path of a made-up notebook with two claims, whose runs are kept apart from the course's."""
    path = tmp_path / "99_made_up.ipynb"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(NOTEBOOK)])
    notebook.cells.append(nbformat.v4.new_code_cell("from assessment.check import check\nraise ValueError"))
    nbformat.write(notebook, path)
    monkeypatch.setenv("LOCKSTEP_COLD", "1")  # it starts no script
    monkeypatch.setattr(claims, "RESULTS", tmp_path)
    monkeypatch.setattr(claims, "notebooks", lambda _asked=(): {"99_made_up": path})
    return path


@pytest.mark.slow
def test_runs_are_kept_at_once_and_only_the_missing_ones_are_made(chapter, capsys):
    before = set(psutil.Process().children(recursive=True))
    claims.gather([], ["float32"], 2)
    assert set(psutil.Process().children(recursive=True)) <= before, "a kernel was left behind"
    rows = claims.read()
    assert [(one["seed"], one["value"]) for one in rows if one["claim"] == "seeds are moved"] == [(0, 0.0), (10, 10.0)]
    assert "seed 10" in capsys.readouterr().out
    claims.gather([], ["float32"], 2)
    assert claims.read() == rows and not capsys.readouterr().out
    by = spreads.spreads(rows)
    assert by["99_made_up", "the first seed is none of the later ones"]["float32"].held == 1
    assert "**✗**" in spreads.page(rows)
    chapter.write_text(chapter.read_text().replace("at_most=9", "at_most=19"))
    by = spreads.spreads(claims.read())  # the same runs, held against the bounds of today
    assert by["99_made_up", "the first seed is none of the later ones"]["float32"].held == 2
    chapter.write_text(chapter.read_text().replace('moved\\", seed', 'moved\\", 1 + seed'))
    claims.gather([], ["float32"], 1)
    assert [(one["seed"], one["value"]) for one in claims.read() if one["claim"] == "seeds are moved"] == [(0, 1.0)]
    capsys.readouterr()
    claims.gather([], ["float32"], 1, anew=True)
    assert [one["claim"] for one in claims.read()].count(spreads.SECONDS) == 1 and "seed 0" in capsys.readouterr().out


@pytest.mark.slow
def test_a_chapter_that_fails_is_told_and_the_others_are_measured(chapter, monkeypatch, capsys):
    broken = chapter.with_name("98_broken.ipynb")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), broken)
    monkeypatch.setattr(claims, "notebooks", lambda _asked=(): {"98_broken": broken, "99_made_up": chapter})
    assert claims.gather([], ["float32"], 2) == ["98_broken"]
    assert capsys.readouterr().out.count("98_broken failed with seed 0 in float32") == 1
    assert {one["chapter"] for one in claims.read()} == {"99_made_up"}
