"""A result to be read: a list of steps, one root cause, hints as strong as they were asked for."""

from html import escape
from textwrap import shorten

from assessment.checklists.lab import DONE, UNBEGUN, UNSEEN, WRONG, Result
from assessment.laws.group import meets, survives

MARKS = {DONE: "✓", WRONG: "✗", UNSEEN: "·", UNBEGUN: "·"}
COLOURS = {DONE: "#117733", WRONG: "#cc3311", UNSEEN: "#666666", UNBEGUN: "#666666"}
STRENGTHS, WIDE = 3, 400
MEETING = (
    "  The idea: a collective ends when all ranks have entered it, so all must enter the same ones in the same order.",
    "  Look for: a collective behind a condition on the rank, or a loop that ranks leave after different rounds.",
)


class Report:
    """A ``Result`` to be read: a list of steps, one root cause, hints as strong as they were asked for.

    ``grows`` says that hints are stronger the next time, ``earlier`` which steps were done when it was checked before:
    a run that hangs shows little, and takes nothing away.
    """

    def __init__(self, result: Result, strength=1, grows=True, earlier=()):
        self.result, self.strength, self.grows, self.earlier = result, strength, grows, earlier

    @property
    def is_done(self):
        return self.result.is_done

    @property
    def part(self):
        """What a part of the lab is called: the starters count TODOs, and a step is one of training."""
        return "TODO" if self.result.lab.numbers_todos else "part"

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
            told = "done before, not seen this time" if state == UNSEEN and item.number in self.earlier else state
            yield state, f"{item.number:>2}  {item.title}" + (f"  ({told})" if state in (UNSEEN, UNBEGUN) else "")
        if result.is_done:
            yield None, f"All {self.part}s are done."
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
            unseen = _numbers(self.part, waiting)
            yield None, f"Nothing was seen yet of {unseen}: the run did not get that far, or does not show it."
        for advice in result.advice:
            yield None, f"Right, but: {advice}"

    def seen_besides(self, cause):
        """Return a line for each other step that is wrong."""
        for item in self.result.lab.items:
            found = [miss for miss in self.result.misses if miss.item is item and miss.verdict.holds is False]
            if found and item is not cause.item and self.result.states[item.number] == WRONG:
                yield f"  {self.part} {item.number}: {shorten(found[0].verdict.symptom, WIDE, placeholder=' …')}"

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
        yield f"First, {self.part} {miss.item.number}, {miss.item.title}{where}:"
        yield f"  What was seen: {miss.verdict.symptom}."
        if self.strength > 1:
            yield f"  The idea: {idea}."
        if self.strength > 2:
            yield f"  The call: {call}."
        elif self.grows:
            yield "  Once you have tried something and the miss is the same, the next hint is stronger."

    def __repr__(self):
        return "\n".join(f"{MARKS[mark]} {text}" if mark else text for mark, text in self.lines())

    def _repr_html_(self):
        rows = []
        for mark, text in self.lines():
            colour = COLOURS.get(mark, "inherit")
            shown = f"<b>{MARKS[mark]}</b> {escape(text)}" if mark else escape(text)
            rows.append(f"<div style='color: {colour}; white-space: pre-wrap'>{shown or '&nbsp;'}</div>")
        return f"<div style='font-family: monospace; line-height: 1.5'>{''.join(rows)}</div>"


def _numbers(part, numbers):
    return f"{part}{'s' if len(numbers) > 1 else ''} " + ", ".join(map(str, numbers))
