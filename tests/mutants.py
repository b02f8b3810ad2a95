"""Put submissions through the checker: what it says of each, beside what it should say.

python tests/mutants.py [right] [wrong] [LAB ...] [NAME ...]
"""

import sys
import tempfile
import time
from pathlib import Path

from submitted import submissions

from assessment.checklist import examine
from assessment.checklists import checklist
from assessment.checklists.common import ORDER


def outcome(submission):
    """Return the law that the checker puts first for ``submission`` (``done`` where none is broken), and its result."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / f"{submission.lab}_submission.py"
        script.write_text(submission.text(), encoding="utf-8")
        result = examine(script, checklist(submission.lab), ORDER)
    if result.cause is not None:
        return result.cause.law.__name__, result
    return ("done" if result.is_done else "not seen"), result


def main():
    chosen = [one for kind in ("right", "wrong") for one in submissions(kind) if is_asked(one, kind, sys.argv[1:])]
    missed = 0
    for submission in chosen:
        began = time.monotonic()
        found, result = outcome(submission)
        wanted = submission.law or "done"
        missed += found != wanted
        mark = "   " if found == wanted else "NOT"
        seconds = time.monotonic() - began
        print(f"{mark} {submission.lab}  {submission.name:<44} {found:<30} {seconds:4.0f} s", flush=True)
        for miss in result.misses if found != wanted else ():
            symptom = " | ".join(miss.verdict.symptom.splitlines())[-300:]
            print(f"      {miss.law.__name__}: {miss.verdict.holds} {symptom}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} as they should be")
    return 1 if missed else 0


def is_asked(submission, kind, words):
    """Say whether the words on the command line choose a submission; without words, all are chosen."""
    kinds = {word for word in words if word in ("right", "wrong")}
    others = set(words) - kinds
    return (not kinds or kind in kinds) and (not others or bool(others & {submission.lab, submission.name}))


if __name__ == "__main__":
    sys.exit(main())
