"""The checker with real processes: it runs a script, says what it does wrong, and changes nothing.

One right and one wrong script of each lab are here. What the laws say of all others is in ``test_laws.py``, without
a process; ``make mutants`` puts every script through whole checks.
"""

import shutil

import pytest
import torch
from conftest import ROOT, TINY
from mutants import outcome
from programs import run_program
from submitted import submissions

from assessment import check as checking
from assessment.check import Overview, check
from assessment.checklists import checklist
from assessment.checklists.common import ORDER
from assessment.checklists.examine import examine
from assessment.checklists.lab import DONE, UNBEGUN, UNSEEN, Miss, Result
from assessment.checklists.report import Report
from assessment.laws.verdict import broken
from assessment.starters.make import sealed, starter
from assessment.trials.forked_ranks import ForkedRanks
from utils.errors import UserError
from utils.notebook import progress

LABS = [path.stem.split("_")[0] for path in sorted((ROOT / "solutions").glob("[0-9]*.py"))]
ALL = {kind: submissions(kind) for kind in ("right", "wrong")}


WRONG = {
    "01": "the clock stops after validation",
    "02": "a plain mean of unequal shares",
    "03": "a mean of means",
    "04": "backward keeps its own gradient",
    "05": "one device's seconds",
    "06": "the batch of one process",
    "07": "a rate that decays by powers",
    "08": "from nothing",
    "09": "an average from the first step on",
    "12": "random numbers are forgotten",
    "assessment": "counts of one rank",
}
QUICK = {("03", "right")}  # the others make test-all runs


def of_each_lab():
    for kind, found in ALL.items():
        for one in found:
            if one.name == ("the solution" if kind == "right" else WRONG[one.lab]):
                marks = () if (one.lab, kind) in QUICK else pytest.mark.slow
                yield pytest.param(one, marks=marks, id=f"{one.lab} {one.name}")


@pytest.fixture
def own_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "PATH", tmp_path / ".lockstep/progress.json")


@pytest.mark.parametrize("submission", list(of_each_lab()))
def test_a_whole_check_finds_what_a_script_does(submission, server):
    found, result = outcome(submission, server)
    assert found == (submission.law or "done"), [miss for miss in result.misses if miss.verdict.holds is not True]


@pytest.mark.slow
def test_no_law_fails_where_only_one_rank_has_trained(server):
    (alone,) = [one for one in ALL["right"] if (one.lab, one.name) == ("01", "the solution")]
    found, result = outcome(alone, server, "assessment")
    assert found == "knows_its_rank"
    assert not [miss for miss in result.misses if "the checker itself failed" in miss.verdict.symptom]


@pytest.fixture
def examined(server, tmp_path):
    """Return a function that examines a text as lab 03."""

    def run(text):
        lab = tmp_path / "03_ddp.py"
        lab.write_bytes(text if isinstance(text, bytes) else text.encode())
        return examine(lab, checklist("03"), ORDER, server)

    return run


STARTER, SOLUTION = starter("03_ddp"), (ROOT / "solutions/03_ddp.py").read_text()


def test_a_rank_that_trained_alone_ticks_no_step(examined):
    """Both processes take themselves for rank 0: one dies of the other's record, one goes on alone."""
    result = examined(STARTER.replace("# TODO", "# todo"))
    assert result.cause.law.__name__ == "knows_its_rank" and "asked which of the 2" in result.cause.verdict.symptom
    assert DONE not in result.states.values()


@pytest.mark.slow
def test_steps_that_nobody_has_begun_are_no_mistakes(examined):
    """With the first step alone two processes train apart; the second is the one to take."""
    begins, ends = STARTER.index("    # TODO 1 "), STARTER.index("    # TODO 2 ")
    step = SOLUTION[SOLUTION.index("    # torchrun starts this file") : SOLUTION.index("    # A process uses the GPU")]
    result = examined(STARTER[:begins] + step + STARTER[ends:])
    assert result.states[1] == DONE and {result.states[number] for number in range(2, 11)} == {UNBEGUN}
    told = repr(Report(result))
    assert result.cause is None and "Next: TODO 2" in told and "nothing that you have written is wrong" in told


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("import time", "import time, tqmd", "ModuleNotFoundError: No module named 'tqmd'"),
        ("import time", b"import time  # gr\xfc\xdf", "utf-8"),
        *(
            pytest.param(*one, marks=pytest.mark.slow)
            for one in (
                ("parallel.train()", "parallel.train(", "SyntaxError"),
                ('"patience", "seed")', '"patience")', "unrecognized arguments: --seed"),
                (
                    "timeout=timedelta(seconds=args.timeout)",
                    "timeout=args.timeout",
                    "Expected timeout argument to be of type",
                ),
                (
                    "done = epochs_at_target == args.patience",
                    "done = at_target and epochs_at_targt == 2",
                    "epochs_at_targt",
                ),
            )
        ),
    ],
)
def test_a_script_that_dies_tells_its_own_error(old, new, told, examined):
    old, new = old.encode(), new if isinstance(new, bytes) else new.encode()
    assert old in SOLUTION.encode()
    cause = examined(SOLUTION.encode().replace(old, new)).cause
    assert cause.law.__name__ == "survives" and told in cause.verdict.symptom


@pytest.mark.parametrize("kind", ["right", "wrong"])
def test_every_submission_is_a_program_and_names_a_law(kind):
    names = {law.__name__ for law in ORDER}
    for one in ALL[kind]:
        compile(one.text(), one.name, "exec")
        assert one.law in names if kind == "wrong" else one.law is None, one.name
    if kind == "wrong":
        assert names == {one.law for one in ALL[kind]}, "a law that no wrong script breaks"


@pytest.mark.parametrize("lab", LABS)
def test_every_lab_has_a_checklist_with_all_its_steps(lab):
    plan = checklist(lab)
    steps = starter(plan.name).count("# TODO ")
    assert [item.number for item in plan.items if item.number] == list(range(1, steps + 1))
    trials = {one.name for one in plan.plans}
    for item in plan.items:
        assert item.title and item.idea and item.call
        assert all(name in trials and law in ORDER for name, law in item.laws)


def test_a_script_computes_the_same_to_the_last_bit_when_it_is_recorded(torchrun, digits, tmp_path):
    beside = {
        "PYTHONPATH": f"{ROOT / 'assessment/recorder/beside'}:{ROOT}",
        "LOCKSTEP_EVIDENCE": str(tmp_path / "evidence"),
    }
    (tmp_path / "evidence").mkdir()
    args = ("--data-dir", digits, *TINY, "--train-images", 512, "--batch-size", 32)
    weights = []
    for name, env in (("bare", {}), ("recorded", beside)):
        run = torchrun(ROOT / "solutions/03_ddp.py", *args, processes=2, run_dir=tmp_path / name, env=env)
        run.result(timeout=60)
        weights.append(torch.load(tmp_path / name / "model.pt", weights_only=True))
    assert len(list((tmp_path / "evidence").glob("*.jsonl"))) == 2
    assert all(torch.equal(one, other) for one, other in zip(weights[0].values(), weights[1].values(), strict=True))


@pytest.mark.parametrize("number", LABS)
def test_an_untouched_starter_is_told_what_to_do_first(number, tmp_path, own_progress):
    name = checklist(number).name
    lab = tmp_path / f"{name}.py"
    lab.write_text(sealed(starter(name), lab.name))
    report = check(number, lab)
    assert not report.is_done and "Begin with TODO 1 (" in repr(report)
    assert "Begin with TODO 1 (" in report._repr_html_()


@pytest.mark.slow
def test_the_shell_gets_an_exit_code_and_a_list(tmp_path):
    lab = tmp_path / "mine.py"
    lab.write_text((ROOT / "solutions/01_one_device.py").read_text())

    def shell(*args):
        return run_program("assessment.check", lab, *args, cwd=tmp_path)

    unnamed = shell()
    assert unnamed.returncode == 1 and "add --lab 03" in unnamed.stderr and "Traceback" not in unnamed.stderr
    done = shell("--lab", "01")
    assert done.returncode == 0 and "✓  2  the clock" in done.stdout and "All TODOs are done" in done.stdout
    lab.write_text("import torch\nthis is no Python\n")
    wrong = shell("--lab", "1")
    assert wrong.returncode == 1 and "SyntaxError" in wrong.stdout and "Traceback" not in wrong.stderr


def test_hints_grow_stronger_where_something_was_tried_and_the_miss_stays_the_same(own_progress, monkeypatch, tmp_path):
    plan, script = checklist("03"), tmp_path / "03_ddp.py"
    item = next(one for one in plan.items if one.number == 6)
    states = {one.number: DONE for one in plan.items} | {6: "wrong"}

    def told(miss, tried):
        script.write_text(f"# {tried}\n")
        monkeypatch.setattr(checking, "examine", lambda *_, **__: Result(plan, script, states, [miss]))
        return repr(check("03"))

    def apart(count):
        return Miss(item.laws[0][1], broken(f"at the first step {count} of 9 parameters differ", 42), item)

    found = [told(apart(count), tried) for count, tried in [(3, "one"), (3, "one"), (4, "two"), (4, "three")]]
    assert all("of 9 parameters differ" in one and "line 42" in one and "✗  6  wrap" in one for one in found)
    assert [item.idea in one for one in found] == [False, False, True, True]
    assert [item.call in one for one in found] == [False, False, False, True]
    same_law = Miss(item.laws[0][1], broken("rank 1 waits"), item)
    assert item.idea not in told(same_law, "four")  # another mistake, though the law is the same
    later = next(one for one in plan.items if one.number == 9)
    assert later.idea not in told(Miss(later.laws[0][1], broken("another"), later), "five")
    assert "9 of 10 done" in repr(Overview())


def test_a_report_never_lets_a_script_write_html():
    plan = checklist("03")
    item = next(one for one in plan.items if one.number == 7)
    miss = Miss(item.laws[0][1], broken("rank 1: '<script>alert(1)</script>'"), item)
    states = {one.number: DONE for one in plan.items} | {7: "wrong"}
    report = Report(Result(plan, ROOT / "labs/03_ddp.py", states, [miss]))
    assert "<script>" not in report._repr_html_() and "&lt;script&gt;" in report._repr_html_()


def test_an_unknown_lab_is_named():
    for lab in ("77", "x"):
        with pytest.raises(UserError, match="there is no checklist for lab"):
            checklist(lab)


def test_the_server_outlives_a_run_whose_folder_is_gone(server, tmp_path):
    """A rank may be killed, and its folder removed, before the server hears of its end."""
    script = tmp_path / "sleeps.py"
    script.write_text("import time\ntime.sleep(60)\n")
    for _ in range(3):
        ranks = ForkedRanks(server, [script], processes=2)
        shutil.rmtree(ranks.logs.folder)
        ranks.kill()
    script.write_text("print('here')\n")
    ranks = ForkedRanks(server, [script], processes=2)
    assert ranks.wait(30) and ranks.exits == {0: 0, 1: 0} and ranks.logs.text(1) == "here\n"


def test_what_a_hanging_run_does_not_show_is_not_taken_away(own_progress, monkeypatch, tmp_path):
    plan, script = checklist("03"), tmp_path / "03_ddp.py"

    def told(states):
        script.write_text("# tried\n")
        monkeypatch.setattr(checking, "examine", lambda *_, **__: Result(plan, script, states, []))
        return repr(check("03"))

    done = {one.number: DONE for one in plan.items}
    told(done | {10: UNSEEN})
    hung = told(done | dict.fromkeys(range(3, 11), UNSEEN))
    assert "·  3  prepare once per node  (done before, not seen this time)" in hung
    assert "· 10  early stopping that all ranks agree on  (not seen yet)" in hung
    assert "9 of 10 done" in repr(Overview())


@pytest.mark.parametrize("law", ORDER, ids=lambda law: law.__name__)
def test_every_law_says_what_it_cannot_see(law):
    assert "ot seen:" in " ".join(law.__doc__.split()) or "ot seen is" in " ".join(law.__doc__.split())
