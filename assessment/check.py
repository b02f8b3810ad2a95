"""Check a lab's script, step by step, by what it does.

    python -m assessment.check labs/03_ddp.py [--lab 03]

The exit code is 0 when all steps are done, 1 when not. In a notebook ``check("03")`` shows the same list.
The first hint is the symptom in your own run's numbers; where you have tried something and the miss is the same, the
checker adds the idea and where it is documented, then the call. ``Overview()`` shows what has been done of all labs.
"""

import argparse
import hashlib
import re
import sys
from html import escape
from pathlib import Path

from tqdm.auto import tqdm

from assessment.checklists import checklist
from assessment.checklists.common import ORDER
from assessment.checklists.examine import examine
from assessment.checklists.lab import DONE, UNSEEN
from assessment.checklists.report import STRENGTHS, Report
from assessment.laws.group import survives
from assessment.starters.make import starter_of
from assessment.starters.regions import ROOT
from utils.errors import UserError, one_line_errors, shortened
from utils.notebook import progress


def check(lab, script=None, show=True):
    """Check ``labs/<lab>_*.py`` (or ``script``) and return a ``Report``, which shows itself.

    With ``show`` a bar tells how far it is, and the first finding as soon as there is one. A learner's mistake never
    raises. Raises ``UserError`` where there is no such lab or script.
    """
    plan = checklist(lab)
    with tqdm(total=len(plan.plans), desc="half a minute, or less", unit="run", disable=not show, leave=False) as bar:
        result = examine(script or starter_of(plan.name), plan, ORDER, tell=lambda found: _move(bar, found))
    earlier = _kept(plan.name).get("done", [])
    report = Report(result, _strength(result), earlier=earlier)
    _keep(result, earlier)
    return report


def _move(bar, result):
    """Move ``bar`` on by a run, and say what it has shown, which a later one may explain better."""
    bar.update()
    if result.cause is not None:
        item = result.cause.item
        bar.set_postfix_str(f"seen: {item.number}, {item.title}" if item else "the script does not come to its end")


def _strength(result):
    """Return how strong the hint is to be: one more than the last time, if the root cause is the same.

    It stays as it was where nobody has changed the script since: who wants the next hint tries something first.
    """
    cause = result.cause
    kept = _kept(result.lab.name)
    if cause is None or kept.get("cause") != _name(cause):
        return 1
    has_tried = kept.get("script") != _digest(result.script)
    return min(STRENGTHS, max(1, kept.get("strength", 0) + has_tried))


def _kept(lab):
    """Return what was kept of the last check of ``lab``."""
    return progress.read().get("checks", {}).get(lab, {})


def _name(cause):
    """Return what tells one cause from another: the law, and what was seen without its numbers; of an error the end."""
    lines = cause.verdict.symptom.strip().splitlines() or [""]
    told = lines[-1] if cause.law is survives else re.sub(r"[\d.,]+", "#", lines[0])
    return f"{cause.law.__name__} {told}".strip()


def _digest(script):
    return hashlib.sha256(script.read_bytes()).hexdigest()[:12]


def _keep(result, earlier):
    steps = [number for number in result.states if number]  # 0 is what the starter had
    states = result.states
    done = [one for one in steps if states[one] == DONE or (states[one] == UNSEEN and one in earlier)]
    cause = result.cause and _name(result.cause)
    facts = {"done": done, "of": len(steps), "cause": cause, "strength": _strength(result)}
    progress.keep("checks", result.lab.name, facts | {"script": _digest(result.script)})


class Overview:
    """A table with a line for each lab: steps done of all, and predictions kept in its chapter."""

    def __init__(self):
        kept = progress.read()
        checks, predictions = kept.get("checks", {}), kept.get("predictions", {})
        self.rows = []
        for path in sorted((ROOT / "assessment/checklists").glob("lab_*.py")):
            name = checklist(path.stem.removeprefix("lab_")).name
            found = checks.get(name)
            told = sum(question.partition(": ")[0].endswith(name) for question in predictions)
            self.rows.append((name, _steps(found), told))

    def __repr__(self):
        return "\n".join(f"{name:<20} {steps:<24} {told} predictions" for name, steps, told in self.rows)

    def _repr_html_(self):
        head = "<tr><th>lab</th><th>steps</th><th>predictions in its chapter</th></tr>"
        cells = "".join(
            f"<tr><td>{escape(name)}</td><td>{steps}</td><td>{told}</td></tr>" for name, steps, told in self.rows
        )
        return f"<table>{head}{cells}</table>"


def _steps(found):
    if found is None:
        return "not checked yet"
    is_done = len(found["done"]) == found["of"] and found["cause"] is None
    return "all done" if is_done else f"{len(found['done'])} of {found['of']} done"


def main():
    """Check the script on the command line."""
    parser = argparse.ArgumentParser(prog="python -m assessment.check", description="Check a lab's script.")
    parser.add_argument("script", type=Path, help="a lab's script, or the number of a lab")
    parser.add_argument("--lab", help="the lab's number, where the file's name does not say it")
    args = parser.parse_args()
    lab = args.lab or args.script.stem.split("_")[0]
    if args.script.name == "train.py" and not args.lab:
        lab = "assessment"
    if not lab.isdecimal() and lab != "assessment":
        if args.lab:
            raise UserError(f"--lab {shortened(lab)} is no lab: give its number, as in --lab 03")
        raise UserError(f"the name {args.script.name} does not say which lab this is: add --lab 03")
    # "03" and "03_ddp" mean the lab's own file, also where a folder is called so.
    is_number = str(args.script).split("_")[0] == lab and not args.script.suffix and not args.script.is_file()
    if args.script.is_dir() and not is_number:
        raise UserError(f"{args.script} is a folder: name the script in it that is to be checked")
    report = check(lab, None if is_number else args.script, show=sys.stderr.isatty())
    print(report)
    sys.exit(0 if report.is_done else 1)


if __name__ == "__main__":
    with one_line_errors():
        main()
