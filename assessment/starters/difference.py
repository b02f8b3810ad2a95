"""Show what each step of a lab changes: the single-process lines beside those of the solution."""

import difflib
from dataclasses import dataclass
from html import escape

from assessment.starters.regions import ROOT, Region, regions
from utils.notebook import progress

CODE = "white-space: pre; overflow-x: auto; font-size: 12px; line-height: 1.4; padding: 0.4em; background: #f7f7f7"
FOLDED = "opens once its check has passed; unfold it when you are stuck"
REMOVED, ADDED = "background: #fde2e2", "background: #ddf3e0"


@dataclass
class Step:
    """One step of a lab: number, title, where it stands, and the lines before and after, indentation removed."""

    number: int
    title: str
    within: list
    before: list
    after: list


def _pieces(lab):
    """Return the lines and regions of a lab's solution; nothing but lines for a script that has no steps."""
    source = (ROOT / f"solutions/{lab}.py").read_text(encoding="utf-8")
    if lab == "assessment":
        return source.splitlines()
    return regions(source, (ROOT / f"assessment/starters/{lab}.txt").read_text(encoding="utf-8"))


def steps(lab):
    """Return the ``Step`` of each number in ``solutions/<lab>.py``, in the order of the numbers.

    Regions of the same number are one step. A starter's TODO comment is left out: the title says it.
    """
    found = {}
    for region in (one for one in _pieces(lab) if isinstance(one, Region)):
        lines = [line.strip() for line in region.starter]
        todo = next((at for at, line in enumerate(lines) if line.startswith("# TODO")), len(lines))
        end = next((at for at in range(todo, len(lines)) if not lines[at].startswith("#")), len(lines))
        step = found.setdefault(region.number, Step(region.number, region.title, [], [], []))
        step.within += [name for name in [region.within] if name and name not in step.within]
        step.before += _dedented(region.starter[:todo] + region.starter[end:])
        step.after += _dedented(region.solution)
    return [found[number] for number in sorted(found)]


def untouched_steps(lab, text):
    """Return the numbers of the steps whose lines stand in the script ``text`` as the starter of ``lab`` has them.

    A step is touched as soon as a line of it, or one between it and its neighbours, is another. What stands between
    two steps is the first one's: one writes below a TODO. Where nothing of the second is left, it is the second's.
    """
    pieces = []  # blank lines are no change, and no neighbours
    for piece in _pieces(lab):
        number, own = (piece.number, piece.starter) if isinstance(piece, Region) else (None, [piece])
        pieces += [(number, written(own))] if number is not None or written(own) else []
    dense = "\n".join(["", *written(text.splitlines()), ""])

    def stand(lines):
        return "\n".join(["", *lines, ""]) in dense

    def is_untouched(at):
        before, after = pieces[at - 1 : at], pieces[at + 1 : at + 2]
        above = [line for number, lines in before if number is None for line in lines]
        below = [line for number, lines in after if number is None or stand(lines) for line in lines]
        return stand(above + pieces[at][1] + below)

    numbers = [number for number, _ in pieces]
    touched = {number for at, number in enumerate(numbers) if number is not None and not is_untouched(at)}
    return {*numbers} - {None} - touched


def written(lines):
    """Return those of ``lines`` on which something stands."""
    return [line for line in lines if line.strip()]


def _dedented(lines):
    """Remove the indentation that all lines share."""
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[margin:].rstrip() for line in lines]


class Difference:
    """What the steps of a lab change, to be shown in a notebook; ``numbers`` picks some of them.

    Open are the step that is ``worked`` through and those whose check has passed; a learner can unfold the others.
    """

    def __init__(self, lab, *numbers, worked=None):
        done = progress.read().get("checks", {}).get(lab, {}).get("done", [])
        self.steps = [step for step in steps(lab) if not numbers or step.number in numbers]
        self.open = {*done, worked}

    def _repr_mimebundle_(self, include=None, exclude=None):
        html = "".join(_html(step, step.number in self.open) for step in self.steps)
        return {
            "text/html": html,
            "text/plain": "\n".join(_text(step, step.number in self.open) for step in self.steps),
        }


def _html(step, is_open):
    rows = []
    for line in difflib.ndiff(step.before, step.after):
        look = {"-": REMOVED, "+": ADDED}.get(line[0], "")
        if line[0] != "?":
            rows.append(f"<div style='{look}; color: #111'>{escape(line) or '&nbsp;'}</div>")
    code = f"<pre style='{CODE}'>{''.join(rows)}</pre>"
    title = f"<summary><b>{escape(_title(step))}</b>{'' if is_open else f' – {FOLDED}'}</summary>"
    return f"<details{' open' if is_open else ''}>{title}{code}</details>"


def _text(step, is_open):
    changes = [line for line in difflib.ndiff(step.before, step.after) if line[0] != "?"]
    return "\n".join([_title(step), *(changes if is_open else [f"  {FOLDED}"])])


def _title(step):
    where = f" (in {' and '.join(f'{name}()' for name in step.within)})" if step.within else ""
    return f"Step {step.number}: {step.title}{where}"
