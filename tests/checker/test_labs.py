"""Labs are made from the solutions, run as they stand, and belong to the learner once changed."""

import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, TINY

from assessment.starters.difference import Difference, steps
from assessment.starters.make import is_untouched, make_labs, reset, sealed, starter, starters
from assessment.starters.regions import MARK, Region, regions
from utils.errors import UserError
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
    text = Difference("03_ddp", 3)._repr_mimebundle_()["text/plain"]
    assert (
        text.startswith("Step 3: prepare once per node (in main())")
        and "+ dist.barrier(patient)" in text
        and "- prepare(" in text
        and "Step 4" not in text
    )


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
    source.write_text(source.read_text().replace('add("--seed"', 'add("--first-seed"'))
    assert make_labs(course) == []
    assert "Ten steps lead" in lab.read_text() and "--first-seed" in lab.read_text() and is_untouched(lab.read_text())


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
