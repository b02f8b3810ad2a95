"""Where the steps of a lab stand in its solution, and what a learner begins with in their places.

In ``solutions/NN_name.py`` a line ``# step 3: exact validation`` begins a region of step 3. It reaches to the next
blank line; where a function or a class stands below that line, to its end. ``assessment/starters/NN_name.txt`` holds
what stands there in the starter, each part below the same line; what comes first takes the place of the docstring.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from utils.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS = (ast.FunctionDef, ast.ClassDef)
MARK = re.compile(r"( *)(# step (\d+): (.+))")


@dataclass(frozen=True)
class Region:
    """One place of a step: its lines in the solution, without the mark, and those that the starter has instead."""

    number: int
    title: str
    within: str  # the function or class that it stands in, empty at the top of the file
    solution: tuple
    starter: tuple


def regions(source, starter):
    """Return the solution's text ``source`` as a list of lines and ``Region``, in order.

    ``starter`` is the text with the starter's parts. Raises ``UserError`` where marks and parts do not pair.
    """
    tree, lines = ast.parse(source), source.splitlines()
    head, parts = _parts(starter)
    pieces, at = head, tree.body[0].end_lineno  # the docstring's
    definitions = {_first(node): node.end_lineno for node in ast.walk(tree) if isinstance(node, DEFINITIONS)}
    while at < len(lines):
        mark = MARK.fullmatch(lines[at])
        if not mark:
            pieces.append(lines[at])
            at += 1
            continue
        margin, name, number, title = mark.groups()
        if not parts.get(name):
            raise UserError(f"the starter has no part, or one too few, for {name!r}")
        inside = tuple(f"{margin}{line}" if line else "" for line in parts[name].pop(0))
        end = definitions.get(at + 2) or next((n for n in range(at, len(lines)) if not lines[n]), len(lines))
        pieces.append(Region(int(number), title, _within(tree, at + 1), tuple(lines[at + 1 : end]), inside))
        at = end
    left = [name for name, some in parts.items() if some]
    if left:
        raise UserError(f"the solution has no line {left[0]!r}, or one too few, for a part of the starter")
    return pieces


def _parts(starter):
    """Return the lines before the first mark, and by mark the lines of each part below one."""
    head, parts = [], {}
    own = head
    for line in starter.splitlines():
        mark = MARK.fullmatch(line)
        if mark:
            own = []
            parts.setdefault(mark[2], []).append(own)
        else:
            own.append(line)
    for some in (head, *(one for several in parts.values() for one in several)):
        while some and not some[-1]:
            some.pop()
    return head, parts


def _first(node):
    """Return the number of the first line of a definition, decorators included."""
    return min(one.lineno for one in (node, *node.decorator_list))


def _within(tree, number):
    """Return the name of the innermost function or class around a line, empty where there is none."""
    around = [node for node in ast.walk(tree) if isinstance(node, DEFINITIONS)]
    around = [node for node in around if node.lineno < number <= node.end_lineno]
    return max(around, key=lambda node: node.lineno).name if around else ""
