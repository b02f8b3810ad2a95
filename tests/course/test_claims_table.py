"""The table of claims: what notebooks claim, measured again and again in both precisions, held each time."""

import ast
import math
from functools import cache

import nbformat
import psutil
import pytest
from conftest import ROOT

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


@cache
def claimed():
    """Return (chapter, text) and bounds of every claim that a notebook makes; bounds that are computed are left out."""
    found = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in nbformat.read(path, as_version=4).cells:
            if cell.cell_type != "code" or "claims.claim(" not in cell.source:
                continue
            lines = ["" if line.startswith("%") else line for line in cell.source.splitlines()]
            for node in ast.walk(ast.parse("\n".join(lines))):
                if isinstance(node, ast.Call) and ast.unparse(node.func) == "claims.claim":
                    bounds = {one.arg: one.value for one in node.keywords if one.arg in ("at_least", "at_most")}
                    found[path.stem, ast.literal_eval(node.args[0])] = {
                        name: ast.literal_eval(value) for name, value in bounds.items()
                    }
    return found


def test_the_table_holds_claims_of_the_notebooks_with_their_bounds():
    for one in claims.read():
        if one["claim"] != spreads.SECONDS:
            bounds = {name: one[name] for name in ("at_least", "at_most") if one[name] is not None}
            assert claimed()[one["chapter"], one["claim"]] == bounds
    assert len(claimed()) >= 60


def test_what_was_measured_often_enough_held_every_time_with_its_margin():
    for key, by in spreads.spreads(claims.read()).items():
        for precision, spread in by.items():
            assert spread.held == len(spread.values), (key, precision)
            assert spread.is_sure or len(spread.values) < spreads.RUNS, (key, precision)


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
        ("claims.claim('it is', value, at_least=1)", "claims.claim('it is', value, at_least=2)", False),
        ("%%ranks 2 told\nvalue = 1", "%%ranks 3 told\nvalue = 1", False),
        ("%load_ext here\nvalue = 1", "value = 2", False),
        ("%%ranks 2 told\nprint(measured(1))", "%%ranks 2 told\nprint(measured(2))", False),
    ],
    ids=["imports", "figures", "words", "bounds", "ranks", "values", "what ranks print"],
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
    claims.gather([], ["float32"], 1)
    (again,) = [one for one in claims.read() if one["claim"].startswith("the first")]
    assert (again["seed"], again["at_most"]) == (0, 19.0)
    claims.gather([], ["float32"], 1, anew=True)
    assert [one["claim"] for one in claims.read()].count(spreads.SECONDS) == 1 and "seed 0" in capsys.readouterr().out


def test_a_chapter_that_fails_is_told_and_the_others_are_measured(chapter, monkeypatch, capsys):
    broken = chapter.with_name("98_broken.ipynb")
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 / 0")]), broken)
    monkeypatch.setattr(claims, "notebooks", lambda _asked=(): {"98_broken": broken, "99_made_up": chapter})
    assert claims.gather([], ["float32"], 2) == ["98_broken"]
    assert capsys.readouterr().out.count("98_broken failed with seed 0 in float32") == 1
    assert {one["chapter"] for one in claims.read()} == {"99_made_up"}
