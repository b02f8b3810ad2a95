"""Put submissions through the checker: what it says of each, beside what it should say.

python tests/support/mutants.py [--record] [right] [wrong] [assignment] [LAB ...] [NAME ...]

With ``--record``, what was seen of those that are as they should be is kept in ``tests/laws/recorded/``.
With ``assignment``, the data-parallel scripts of all labs are put through the assignment's checklist: the right
ones must pass there as well, the wrong ones whose law is one of the assignment's must be caught.
"""

import sys
import tempfile
from pathlib import Path

import torch
from recording import load, path_of, recorded, save
from submitted import submissions

from assessment.checklists import checklist
from assessment.checklists.common import ORDER
from assessment.checklists.examine import examine
from assessment.trials.data import SHAPES, Stage, trial_data
from assessment.trials.fork_server import ForkServer

ASSIGNMENT = "assessment"


def outcome(submission, server=None, lab=None, look=None, stage=None):
    """Return the law that the checker puts first for ``submission`` (``done`` where none is broken), and its result.

    It is held against the checklist of ``lab``, by default that of the lab that it was written for. ``look`` is shown
    its trials and the result; ``stage`` holds the data for trials, which are made anew without it.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / f"{submission.lab}_submission.py"
        script.write_text(submission.text(), encoding="utf-8")
        result = examine(script, checklist(lab or submission.lab), ORDER, server, stage, look=look)
    return named(result), result


def named(result):
    """Return the law that ``result`` puts first, ``done`` where none is broken and all was seen."""
    if result.cause is not None:
        return result.cause.law.__name__
    return "done" if result.is_done else "not seen"


def main():
    words = set(sys.argv[1:]) - {"assignment", "--record"}
    lab = ASSIGNMENT if "assignment" in sys.argv[1:] else None
    kept = {} if "--record" in sys.argv[1:] and lab is None else None
    chosen = [one for kind in ("right", "wrong") for one in submissions(kind) if is_asked(one, kind, words)]
    chosen = [one for one in chosen if lab is None or is_about_the_assignment(one)]
    torch.set_num_threads(1)  # the ranks have work for all cores
    with ForkServer() as server, tempfile.TemporaryDirectory() as folder:
        stages = {name: Stage(trial_data(name), Path(folder) / name).keep() for name in SHAPES}
        try:
            missed = sum(not told(submission, server, lab, kept, stages) for submission in chosen)
        finally:  # also what was recorded before Ctrl-C
            keep(kept or {})
    print(f"{len(chosen) - missed} of {len(chosen)} as they should be")
    return 1 if missed else 0


def is_about_the_assignment(submission):
    """Say whether a lab's script is data-parallel and right, or breaks a law of the assignment."""
    laws = {law.__name__ for item in checklist(ASSIGNMENT).items for _, law in item.laws} | {"survives", "meets"}
    if submission.law is None:
        return submission.lab not in ("01", "02", ASSIGNMENT)
    return submission.lab == "03" and submission.law in laws  # what is wrong in later ones stands behind their flags


def told(submission, server, lab, kept, stages):
    """Print the line of ``submission`` and say whether it is as it should be; then add its recording to ``kept``."""
    seen = []
    look = None if kept is None else lambda *run: seen.append(recorded(submission, *run))
    stage = stages[checklist(lab or submission.lab).dataset]
    found, result = outcome(submission, server, lab, look, stage)
    is_right = found == (submission.law or "done")
    if is_right and seen and seen[0] is None:
        print("    its recording would not say so, and is not kept", flush=True)
    elif is_right and seen:
        kept[submission] = seen[0]
    mark = "   " if is_right else "NOT"
    print(f"{mark} {submission.lab}  {submission.name:<44} {found:<30} {result.seconds:4.0f} s", flush=True)
    for miss in () if is_right else result.misses:
        symptom = " | ".join(miss.verdict.symptom.splitlines())[-300:]
        print(f"      {miss.law.__name__}: {miss.verdict.holds} {symptom}", flush=True)
    return is_right


def keep(kept):
    """Write the recordings in ``kept`` (by submission) beside those of the same labs that still have a submission."""
    names = {(path_of(one), one.name) for kind in ("right", "wrong") for one in submissions(kind)}
    for path in {path_of(one) for one in kept}:
        own = {one.name: recording for one, recording in kept.items() if path_of(one) == path}
        save(path, {name: one for name, one in (load(path) | own).items() if (path, name) in names})


def is_asked(submission, kind, words):
    """Say whether the words on the command line choose a submission: of each sort of words that there are, one fits."""
    kinds, labs = words & {"right", "wrong"}, {word for word in words if word.isdigit() or word == ASSIGNMENT}
    sorts = (kinds, kind), (labs, submission.lab), (words - kinds - labs, submission.name)
    return all(own in chosen for chosen, own in sorts if chosen)


if __name__ == "__main__":
    sys.exit(main())
