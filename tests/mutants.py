"""Put submissions through the checker: what it says of each, beside what it should say.

python tests/mutants.py [right] [wrong] [assignment] [LAB ...] [NAME ...]

With ``assignment``, the data-parallel scripts of all labs are put through the assignment's checklist: the right
ones must pass there as well, the wrong ones whose law is one of the assignment's must be caught.
"""

import sys
import tempfile
from pathlib import Path

from submitted import submissions

from assessment.checklist import examine
from assessment.checklists import checklist
from assessment.checklists.common import ORDER
from assessment.fork_server import ForkServer

ASSIGNMENT = "assessment"


def outcome(submission, server=None, lab=None):
    """Return the law that the checker puts first for ``submission`` (``done`` where none is broken), and its result.

    It is held against the checklist of ``lab``, by default that of the lab that it was written for.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / f"{submission.lab}_submission.py"
        script.write_text(submission.text(), encoding="utf-8")
        result = examine(script, checklist(lab or submission.lab), ORDER, server)
    if result.cause is not None:
        return result.cause.law.__name__, result
    return ("done" if result.is_done else "not seen"), result


def main():
    words = [word for word in sys.argv[1:] if word != "assignment"]
    lab = ASSIGNMENT if "assignment" in sys.argv[1:] else None
    chosen = [one for kind in ("right", "wrong") for one in submissions(kind) if is_asked(one, kind, words)]
    chosen = [one for one in chosen if lab is None or is_about_the_assignment(one)]
    with ForkServer() as server:
        missed = sum(not told(submission, server, lab) for submission in chosen)
    print(f"{len(chosen) - missed} of {len(chosen)} as they should be")
    return 1 if missed else 0


def is_about_the_assignment(submission):
    """Say whether a lab's script is data-parallel and right, or breaks a law of the assignment."""
    laws = {law.__name__ for item in checklist(ASSIGNMENT).items for _, law in item.laws} | {"survives", "meets"}
    if submission.law is None:
        return submission.lab not in ("01", "02", ASSIGNMENT)
    return submission.lab == "03" and submission.law in laws  # what is wrong in later ones stands behind their flags


def told(submission, server, lab=None):
    """Print the line of ``submission`` and say whether it is as it should be."""
    found, result = outcome(submission, server, lab)
    is_right = found == (submission.law or "done")
    mark = "   " if is_right else "NOT"
    print(f"{mark} {submission.lab}  {submission.name:<44} {found:<30} {result.seconds:4.0f} s", flush=True)
    for miss in () if is_right else result.misses:
        symptom = " | ".join(miss.verdict.symptom.splitlines())[-300:]
        print(f"      {miss.law.__name__}: {miss.verdict.holds} {symptom}", flush=True)
    return is_right


def is_asked(submission, kind, words):
    """Say whether the words on the command line choose a submission; without words, all are chosen."""
    kinds = {word for word in words if word in ("right", "wrong")}
    others = set(words) - kinds
    return (not kinds or kind in kinds) and (not others or bool(others & {submission.lab, submission.name}))


if __name__ == "__main__":
    sys.exit(main())
