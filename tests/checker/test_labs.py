"""Labs are made from the solutions, run as they stand, and belong to the learner once changed."""

import ast
import subprocess
from pathlib import Path

import nbformat
import pytest
from conftest import ROOT, TINY

from assessment.starters.difference import Difference, steps, untouched_steps
from assessment.starters.make import is_untouched, make_labs, reset, sealed, starter, starters
from assessment.starters.regions import MARK, Region, regions
from utils.errors import UserError
from utils.notebook import progress
from utils.runs import read_metrics

SOURCES = sorted((ROOT / "solutions").glob("[0-9]*.py"))
STARTERS = dict(starters(ROOT))


@pytest.mark.parametrize("source", STARTERS, ids=lambda path: path.stem)
def test_the_committed_starter_is_the_one_made_from_the_solution(source):
    text = STARTERS[source].read_text()
    if not is_untouched(text):  # a learner's own: then the committed one is compared
        committed = f"HEAD:{STARTERS[source].relative_to(ROOT)}"
        text = subprocess.run(["git", "show", committed], cwd=ROOT, capture_output=True, text=True).stdout
    assert text == sealed(starter(source.stem), source.name), "run make labs"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_both_variants_are_programs(source):
    text, made = source.read_text(), starter(source.stem)
    for variant in (text, made):
        compile(variant, source.name, "exec")
    assert "TODO" in made and "TODO" not in text
    assert not any(MARK.fullmatch(line) for line in made.splitlines()) and "\n\n\n " not in made


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_todo_is_short_and_names_what_to_look_up(source):
    lines = starter(source.stem).splitlines()
    steps = [at for at, line in enumerate(lines) if "# TODO" in line]
    assert sorted(int(lines[at].split("TODO ")[1].split()[0]) for at in steps) == list(range(1, len(steps) + 1))
    for at in steps:
        end = next(row for row in range(at, len(lines)) if not lines[row].strip().startswith("#"))
        assert 2 <= end - at <= 4, lines[at]
        assert "Look up: " in " ".join(lines[at:end]), lines[at]


def test_the_steps_shown_in_the_notebook_are_those_of_the_lab():
    shown = steps("03_ddp")
    assert [step.number for step in shown] == list(range(1, 11))
    clean = {line.strip() for line in (ROOT / "solutions/03_ddp.py").read_text().splitlines()}
    for step in shown:
        assert step.after and {line.strip() for line in step.after} <= clean
        assert not any("TODO" in line for line in step.before + step.after)


def shown(tmp_path, monkeypatch, done, *asked, **options):
    """Return what a notebook shows of the steps of lab 03, in a course where the check has seen ``done`` ones."""
    monkeypatch.chdir(tmp_path)
    progress.keep("checks", "03_ddp", {"done": done, "of": 10, "cause": None, "strength": 1})
    return Difference("03_ddp", *asked, **options)._repr_mimebundle_()


def test_a_step_opens_where_it_is_worked_through_or_done_and_can_be_unfolded(tmp_path, monkeypatch):
    told = shown(tmp_path, monkeypatch, [5], 3, 4, 5, worked=3)
    text = told["text/plain"]
    assert text.startswith("Step 3: prepare once per node (in read_data())") and "Step 6" not in text
    assert "+ store.wait([prepared])" in text and "- prepare(" in text and "+ sampler.set_epoch" in text
    assert "DistributedSampler(" not in text
    three, four, five = told["text/html"].split("<details")[1:]
    assert three.startswith(" open>") and five.startswith(" open>") and four.startswith("><summary>")
    assert "DistributedSampler(" in four and "opens once its check has passed" in four and "opens once" not in five


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_works_one_step_of_its_lab_through_and_shows_no_line_of_the_others(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    calls = [ast.parse(source).body[-1].value for source in cells if source.startswith("Difference(")]
    worked = [one.value.value for call in calls for one in call.keywords if one.arg == "worked"]
    assert len(worked) == bool(calls)
    numbers = [step.number for step in steps(path.stem)] if calls else []
    asked = [[one.value for one in call.args[1:]] or numbers for call in calls]
    assert sorted(number for some in asked for number in some) == numbers, "a step is not told of, or twice"
    page = "\n".join(cells)
    for step in steps(path.stem) if calls else []:
        own = [line.strip() for line in step.after if line not in step.before and len(line.strip()) > 40]
        code = [line for line in own if not line.startswith("#")]
        assert step.number in worked or not any(line in page for line in code), step


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_every_starter_runs_as_it_stands_on_one_process(source, train, tmp_path):
    lab = tmp_path / source.name
    lab.write_text(sealed(starter(source.stem), source.name))
    train(lab, 1, *TINY, "--train-images", 512, run_dir=tmp_path / "run")
    assert len(read_metrics(tmp_path / "run")) == 1


def test_a_lab_that_a_learner_changed_is_kept(course):
    lab = course / "labs/03_ddp.py"
    assert make_labs(course) == []
    lab.write_text(lab.read_text() + "# mine\n")
    assert make_labs(course) == [Path("labs/03_ddp.py")]
    assert lab.read_text().endswith("# mine\n")
    lab.write_text(lab.read_text().replace("# mine\n", "").replace("rank, local_rank", "mine, local_rank"))
    assert make_labs(course) == [Path("labs/03_ddp.py")]
    lab.unlink()
    assert make_labs(course) == [] and is_untouched(lab.read_text())


def test_an_untouched_lab_follows_its_solution(course):
    source, lab = course / "solutions/03_ddp.py", course / "labs/03_ddp.py"
    parts = course / "assessment/starters/03_ddp.txt"
    parts.write_text(parts.read_text().replace("Ten TODOs lead", "Ten steps lead"))
    source.write_text(source.read_text().replace('"patience", "seed")', '"patience")'))
    assert make_labs(course) == []
    assert "Ten steps lead" in lab.read_text() and '"seed"' not in lab.read_text() and is_untouched(lab.read_text())


SOURCE = '''"""What the script does."""

import os

# step 2: a function
@cached
def twice(number):
    """Return twice a number."""

    return 2 * number


def main():
    before()
    # step 1: the beginning
    # Why it is so.
    begin()

    # step 1: the beginning
    go_on()

    # step 3: the end
    end()
'''
PARTS = '''"""What the lab asks for."""

# step 1: the beginning
# TODO 1 Begin.

# step 1: the beginning

# step 2: a function
def twice(number):
    # TODO 2 Return twice a number.
    return number

# step 3: the end
over()

then()
'''


def test_a_step_reaches_to_the_next_blank_line_or_to_the_end_of_its_function():
    pieces = regions(SOURCE, PARTS)
    two, one, again, three = (piece for piece in pieces if isinstance(piece, Region))
    assert two.solution[0] == "@cached" and two.solution[-1] == "    return 2 * number" and two.within == ""
    assert one.solution == ("    # Why it is so.", "    begin()") and one.starter == ("    # TODO 1 Begin.",)
    assert again.solution == ("    go_on()",) and again.starter == () and again.within == "main"
    assert three.solution == ("    end()",) and three.starter == ("    over()", "", "    then()")
    assert pieces[0] == '"""What the lab asks for."""' and "import os" in pieces and "    before()" in pieces


@pytest.mark.parametrize(
    ("source", "parts", "complaint"),
    [
        ("# step 1: x", "# step 1: y\n", "the starter has no part, or one too few, for '# step 1: x'"),
        ("# step 1: x\na()\n\n# step 1: x\nb()", "# step 1: x\n", "one too few, for '# step 1: x'"),
        ("a()", "# step 1: x\n", "the solution has no line '# step 1: x'"),
        ("# step 1: x", "# step 1: x\n# step 1: x\n", "or one too few, for a part of the starter"),
    ],
)
def test_marks_that_do_not_pair_are_named(source, parts, complaint):
    with pytest.raises(UserError, match=complaint):
        regions(f'"""A script."""\n{source}\n', parts)


def test_make_labs_names_the_solution_whose_marks_do_not_pair(course):
    source = course / "solutions/03_ddp.py"
    source.write_text(source.read_text().replace("# step 5: another order each epoch", "# step 5: an order"))
    with pytest.raises(UserError, match=r"03_ddp.py: the starter has no part, .* for '# step 5: an order'"):
        make_labs(course)


def test_reset_gives_the_starter_back_and_keeps_what_was_there(course):
    lab = course / "labs/03_ddp.py"
    assert reset("03", course) is None and is_untouched(lab.read_text())
    lab.write_text("mine\n")
    kept = reset("03", course)
    assert kept.read_text() == "mine\n" and kept.name.startswith("03_ddp-20") and is_untouched(lab.read_text())
    lab.unlink()
    assert reset("3", course) is None and is_untouched(lab.read_text())
    (course / "assessment/train.py").write_text("mine\n")
    assert reset("assessment", course).read_text() == "mine\n"
    assert is_untouched((course / "assessment/train.py").read_text())
    with pytest.raises(UserError, match="there is no lab 99"):
        reset("99", course)


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_step_in_the_place_of_its_todo_begins_no_other(source):
    pieces = regions(source.read_text(), (ROOT / f"assessment/starters/{source.stem}.txt").read_text())
    numbers = {piece.number for piece in pieces if isinstance(piece, Region)}
    for done in numbers:
        text = []
        for piece in pieces:
            if isinstance(piece, Region):
                text += piece.solution if piece.number == done else piece.starter
            else:
                text.append(piece)
        assert numbers - untouched_steps(source.stem, "\n".join(text)) == {done}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_line_behind_a_todo_begins_it_and_no_other(source):
    """Whoever leaves the TODO's text where it stands, and writes below it, has begun."""
    text = starter(source.stem)
    numbers = {step.number for step in steps(source.stem)}
    assert untouched_steps(source.stem, text) == numbers and not untouched_steps(source.stem, source.read_text())
    assert untouched_steps(source.stem, text.replace("\n\n", "\n\n\n")) == numbers
    lines = text.splitlines()
    for at in (at for at, line in enumerate(lines) if line.strip().startswith("# Look up:")):
        todo = next(line for line in reversed(lines[:at]) if line.strip().startswith("# TODO"))
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        written = "\n".join([*lines[: at + 1], f"{indent}begun = True", *lines[at + 1 :]])
        begun = numbers - untouched_steps(source.stem, written)
        assert begun == {int(todo.split()[2])}, begun
