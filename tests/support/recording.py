"""What whole checks saw, kept small: recordings from which submissions are judged without a process.

``mutants.py --record`` writes them, ``laws/test_laws.py`` judges them. A file in ``laws/recorded/`` holds lines of
JSON, compressed by xz. Each line is a value; ``{"@": 7}`` in one stands for that of line 7, so what many ranks, steps
and submissions share (the same images, the same weights) is there once. The last line maps the names of submissions
to what was recorded of them: a digest, and its trials (``recorded_trials.py``) by name.

A recording stands as long as what makes its submission does: a solution itself, or the lines in which another script
differs from one. What a change to a solution does to all others, ``make mutants`` finds, which runs them every night.
"""

import ast
import json
import lzma
import zlib
from contextlib import nullcontext
from functools import cache
from pathlib import Path

from recorded_trials import COARSE, FINE, all_layers, plain, revived

from assessment.checklists import checklist
from assessment.checklists.common import ORDER
from assessment.checklists.examine import asked, judge
from assessment.starters.difference import untouched_steps
from benchmarks import digests

FOLDER = Path(__file__).resolve().parents[1] / "laws/recorded"
AGAIN = "record it anew: .venv/bin/python tests/support/mutants.py --record"
PARTS = {"03_right": 3, "03_wrong": 6}  # files that would be large
LEAST = 24  # characters of a value that is worth a line of its own


def digest(submission):
    """Return what tells a solution, or the changes to one, from any other; comments and blank lines do nothing."""
    if not submission.changes:
        return digests.digest(ast.parse(submission.text()))
    lines = [[line.rstrip() for line in part.splitlines()] for change in submission.changes for part in change]
    telling = [[line for line in part if line and not line.lstrip().startswith("#")] for part in lines]
    return digests.digest(ast.Constant(repr(telling)))


def path_of(submission):
    """Return the file that holds the recording of ``submission``."""
    name = f"{submission.lab}_{'wrong' if submission.law else 'right'}"
    part = zlib.crc32(submission.name.encode()) % PARTS.get(name, 1)
    return FOLDER / (f"{name}_{part + 1}.xz" if name in PARTS else f"{name}.xz")


def load(path):
    """Return what was recorded, by the submission's name; values that were shared are the same object."""
    if not path.exists():
        return {}
    values = []

    def shared(found):
        return values[found["@"]] if found.keys() == {"@"} else found

    with lzma.open(path, "rt", encoding="utf-8") as file:
        values.extend(json.loads(line, object_hook=shared) for line in file)
    return values[-1]


def save(path, recordings):
    """Write ``recordings`` (by the submission's name) to ``path``."""
    lines, numbers = [], {}

    def packed(value):
        if isinstance(value, dict):
            value = {key: packed(one) for key, one in value.items()}
        elif isinstance(value, (list, tuple)):
            value = [packed(one) for one in value]
        else:
            return value
        line = json.dumps(value, separators=(",", ":"))
        if len(line) < LEAST:
            return value
        if line not in numbers:
            numbers[line] = len(lines)
            lines.append(line)
        return {"@": numbers[line]}

    whole = {name: packed(recordings[name]) for name in sorted(recordings)}
    text = "\n".join([*lines, json.dumps(whole)])
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))


def recorded(submission, trials, result):
    """Return what is kept of a check with ``trials`` by name, as long as what they left is there.

    None where even more digits, and all layers, do not give its ``Result`` again.
    """
    for digits, layers in ((COARSE, nullcontext), (FINE, nullcontext), (FINE, all_layers)):
        with layers():
            kept = {name: plain(one, digits) for name, one in trials.items()}
        for name, one in trials.items():
            for told in ("reference", "before"):
                kept[name][told] = next((other for other in trials if trials[other] is getattr(one, told)), None)
        if gist(judged(submission, played(submission, kept))) == gist(result):
            return {"digest": digest(submission), "trials": kept}
    return None


def gist(result):
    """Return what a ``Result`` says without numbers: the states of the steps, and which laws do not hold."""
    return result.states, [(miss.law, miss.verdict.holds, miss.item) for miss in result.misses]


def played(submission, kept):
    """Return the trials that were kept, by name, ready to be judged."""
    trials = {name: revived(facts, checklist(submission.lab).dataset) for name, facts in kept.items()}
    for name, facts in kept.items():
        trials[name].reference, trials[name].before = trials.get(facts["reference"]), trials.get(facts.get("before"))
    return trials


def judged(submission, trials, ask=asked):
    """Return the ``Result`` of ``submission`` in the light of its ``trials``."""
    return judge(checklist(submission.lab), Path(submission.name), trials, ORDER, _untouched(submission), ask)


@cache
def _untouched(submission):
    return untouched_steps(checklist(submission.lab).name, submission.text())
