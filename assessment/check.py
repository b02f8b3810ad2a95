"""Check a lab's script, step by step, by what it does.

    python -m assessment.check labs/03_ddp.py [--lab 03]

The exit code is 0 when all steps are done, 1 when not. In a notebook ``check("03")`` shows the same list.
The first hint is the symptom in your own run's numbers; asked again about the same miss, the checker adds
the idea and where it is documented, then the call.
"""

import argparse
import sys
from html import escape
from pathlib import Path
from textwrap import shorten

from assessment.checklist import DONE, UNBEGUN, UNSEEN, WRONG, Result, examine
from assessment.checklists import checklist
from assessment.checklists.common import ORDER
from assessment.laws.group import meets, survives
from assessment.starters.make import starter_of
from utils.errors import UserError, one_line_errors
from utils.notebook import progress

MARKS = {DONE: "✓", WRONG: "✗", UNSEEN: "·", UNBEGUN: "·"}
COLOURS = {DONE: "#117733", WRONG: "#cc3311", UNSEEN: "#666666", UNBEGUN: "#666666"}
STRENGTHS, WIDE = 3, 400
MEETING = (
    "  The idea: a collective ends when all ranks have entered it, so all must enter the same ones in the same order.",
    "  Look for: a collective behind a condition on the rank, or a loop that ranks leave after different rounds.",
)


def check(lab, script=None):
    """Check ``labs/<lab>_*.py`` (or ``script``) and return a ``Report``, which shows itself.

    A learner's mistake never raises. Raises ``UserError`` where there is no such lab or script.
    """
    plan = checklist(lab)
    result = examine(script or starter_of(plan.name), plan, ORDER)
    report = Report(result, _strength(result))
    _keep(result)
    return report


class Report:
    """A ``Result`` to be read: a list of steps, one root cause, hints as strong as they were asked for.

    ``grows`` says that hints are stronger the next time.
    """

    def __init__(self, result: Result, strength=1, grows=True):
        self.result, self.strength, self.grows = result, strength, grows

    @property
    def is_done(self):
        return self.result.is_done

    def lines(self):
        """Return the report as (mark, text) pairs; the mark is None for what is no step."""
        result = self.result
        if result.is_untouched:
            first = next(item for item in result.lab.items if item.number)
            yield None, f"{result.script.name} is as it was made: nobody has written anything yet."
            begin = f"Begin with TODO {first.number} ({first.title}); the notebook of this chapter says how to run it."
            yield None, result.lab.beginning or begin
            return
        for item in result.lab.items:
            state = result.states[item.number]
            yield state, f"{item.number:>2}  {item.title}" + (f"  ({state})" if state in (UNSEEN, UNBEGUN) else "")
        if result.is_done:
            yield None, "All steps are done."
            if result.lab.beyond:
                yield None, result.lab.beyond
        cause = result.cause
        if cause is not None:
            yield None, ""
            yield from ((None, line) for line in self.hints(cause))
            others = list(self.seen_besides(cause))
            if others:
                yield None, "Seen besides, perhaps because of it:"
                yield from ((None, line) for line in others)
            elif cause.item is None:
                yield None, "What is not seen yet shows once the script runs to its end."
        elif result.next_step is not None:
            yield None, ""
            yield None, "As far as it was seen, nothing that you have written is wrong."
            yield None, f"Next: TODO {result.next_step.number} ({result.next_step.title})."
        elif not result.is_done:
            waiting = [item.number for item in result.lab.items if result.states[item.number] != DONE]
            yield (
                None,
                f"Nothing was seen yet of {_numbers(waiting)}: the run did not get that far, or does not show it.",
            )
        for advice in result.advice:
            yield None, f"Right, but: {advice}"

    def seen_besides(self, cause):
        """Return a line for each other step that is wrong."""
        for item in self.result.lab.items:
            found = [miss for miss in self.result.misses if miss.item is item and miss.verdict.holds is False]
            if found and item is not cause.item and self.result.states[item.number] == WRONG:
                yield f"  step {item.number}: {shorten(found[0].verdict.symptom, WIDE, placeholder=' …')}"

    def hints(self, miss):
        """Return the lines about the root cause."""
        where = f" (line {miss.verdict.line})" if miss.verdict.line else ""
        if miss.item is None:
            yield f"First: the script ends with an error{where}." if miss.law is survives else f"First{where}:"
            yield from miss.verdict.symptom.splitlines()
            if miss.law is meets:
                yield from MEETING[: self.strength - 1]
            return
        idea, call = miss.item.hints(miss.law)
        yield f"First, step {miss.item.number}, {miss.item.title}{where}:"
        yield f"  What was seen: {miss.verdict.symptom}."
        if self.strength > 1:
            yield f"  The idea: {idea}."
        if self.strength > 2:
            yield f"  The call: {call}."
        elif self.grows:
            yield "  Checked again with the same miss, the next hint is stronger."

    def __repr__(self):
        return "\n".join(f"{MARKS[mark]} {text}" if mark else text for mark, text in self.lines())

    def _repr_html_(self):
        rows = []
        for mark, text in self.lines():
            colour = COLOURS.get(mark, "inherit")
            shown = f"<b>{MARKS[mark]}</b> {escape(text)}" if mark else escape(text)
            rows.append(f"<div style='color: {colour}; white-space: pre-wrap'>{shown or '&nbsp;'}</div>")
        return f"<div style='font-family: monospace; line-height: 1.5'>{''.join(rows)}</div>"


def _numbers(numbers):
    return ("steps " if len(numbers) > 1 else "step ") + ", ".join(map(str, numbers))


def _strength(result):
    """Return how strong the hint is to be: one more than the last time, if the root cause is the same."""
    cause = result.cause
    kept = progress.read().get("checks", {}).get(result.lab.name, {})
    if cause is None or kept.get("cause") != _name(cause):
        return 1
    return min(STRENGTHS, kept.get("strength", 0) + 1)


def _name(cause):
    """Return what tells one cause from another: the law, and of an error its last line."""
    error = (cause.verdict.symptom.strip().splitlines() or [""])[-1] if cause.law is survives else ""
    return f"{cause.law.__name__} {error}".strip()


def _keep(result):
    steps = [number for number in result.states if number]  # 0 is what the starter had
    done = [number for number in steps if result.states[number] == DONE]
    cause = result.cause and _name(result.cause)
    facts = {"done": done, "of": len(steps), "cause": cause, "strength": _strength(result)}
    progress.keep("checks", result.lab.name, facts)


def main():
    """Check the script on the command line."""
    parser = argparse.ArgumentParser(prog="python -m assessment.check", description="Check a lab's script.")
    parser.add_argument("script", type=Path, help="a lab's script, or the number of a lab")
    parser.add_argument("--lab", help="the lab's number, where the file's name does not say it")
    args = parser.parse_args()
    lab = args.lab or args.script.stem.split("_")[0]
    if args.script.name == "train.py" and not args.lab:
        lab = "assessment"
    if not lab.isdigit() and lab != "assessment":
        raise UserError(f"the name {args.script.name} does not say which lab this is: add --lab 03")
    if sys.stderr.isatty():
        print("half a minute, or less ...", file=sys.stderr)
    report = check(lab, None if not args.script.suffix else args.script)
    print(report)
    sys.exit(0 if report.is_done else 1)


if __name__ == "__main__":
    with one_line_errors():
        main()
