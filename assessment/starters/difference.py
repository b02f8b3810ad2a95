"""Show what each step of a lab changes: the single-process lines beside those of the solution."""

import difflib
import re
from dataclasses import dataclass
from html import escape

from assessment.starters.make import OPEN, ROOT

CODE = "white-space: pre; overflow-x: auto; font-size: 12px; line-height: 1.4; padding: 0.4em; background: #f7f7f7"
REMOVED, ADDED = "background: #fde2e2", "background: #ddf3e0"


@dataclass
class Step:
    """One step of a lab: its number and title, and the lines before and after, indentation removed."""

    number: int
    title: str
    before: list
    after: list


def steps(lab):
    """Return the ``Step`` of each marked region of ``solutions/<lab>.py``, in the order of their numbers.

    Regions of the same number are one step. A starter's TODO comment is left out: the title says it.
    """
    found = {}
    source = (ROOT / "solutions" / f"{lab}.py").read_text(encoding="utf-8")
    for region in re.findall(r"^[^\S\n]*# \[step .*?^[^\S\n]*# \[end\]$", source, re.MULTILINE | re.DOTALL):
        head, *body = region.split("\n")
        number, title = re.match(r"step (\d+): (.*)", OPEN.match(head)[1]).groups()
        middle = next(at for at, line in enumerate(body) if line.strip() == "# [starter]")
        starter = [re.sub(r"#: ?", "", line, count=1) for line in body[middle + 1 : -1]]
        todo = next((at for at, line in enumerate(starter) if "# TODO" in line), len(starter))
        end = next((at for at in range(todo, len(starter)) if not starter[at].strip().startswith("#")), len(starter))
        step = found.setdefault(int(number), Step(int(number), title, [], []))
        step.before += _dedented(starter[:todo] + starter[end:])
        step.after += _dedented(body[:middle])
    return [found[number] for number in sorted(found)]


def untouched_steps(lab, text):
    """Return the numbers of the steps whose lines stand in the script ``text`` as the starter of ``lab`` has them.

    A step is touched as soon as a line of it, or one between it and its neighbours, is another.
    """
    lines, regions, where, number = [], {}, None, None
    for line in (ROOT / "solutions" / f"{lab}.py").read_text(encoding="utf-8").splitlines():
        if OPEN.match(line):
            where, told = "solution", re.search(r"\[step (\d+)", line)
            number = told and int(told[1])
        elif line.strip() == "# [starter]":
            where, first = "starter", len(lines)
        elif line.strip() == "# [end]":
            where = None
            if number:
                regions.setdefault(number, []).append(lines_around(first, len(lines)))
        elif where != "solution":
            lines.append(re.sub(r"#: ?", "", line, count=1).rstrip() if where else line)
    blocks = {number: ["\n".join(lines[part]) for part in parts] for number, parts in regions.items()}
    return {number for number, parts in blocks.items() if all(f"\n{part}\n" in f"\n{text}\n" for part in parts)}


def lines_around(first, last):
    return slice(max(0, first - 1), last + 1)


def _dedented(lines):
    """Remove the indentation that all lines share."""
    margin = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return [line[margin:].rstrip() for line in lines]


class Difference:
    """What the steps of a lab change, to be shown in a notebook; ``numbers`` picks some of them."""

    def __init__(self, lab, *numbers):
        self.steps = [step for step in steps(lab) if not numbers or step.number in numbers]

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/html": "".join(map(_html, self.steps)), "text/plain": "\n".join(map(_text, self.steps))}


def _html(step):
    rows = []
    for line in difflib.ndiff(step.before, step.after):
        look = {"-": REMOVED, "+": ADDED}.get(line[0], "")
        if line[0] != "?":
            rows.append(f"<div style='{look}; color: #111'>{escape(line) or '&nbsp;'}</div>")
    code = f"<pre style='{CODE}'>{''.join(rows)}</pre>"
    return f"<p><b>Step {step.number}: {escape(step.title)}</b></p>{code}"


def _text(step):
    changes = (line for line in difflib.ndiff(step.before, step.after) if line[0] != "?")
    return "\n".join([f"Step {step.number}: {step.title}", *changes])
