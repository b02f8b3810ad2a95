"""Scripts that the checker is tried on: a solution with a few lines changed, and what must be said of it.

``submissions/right_NN.txt`` and ``wrong_NN.txt`` hold those of lab NN, ``right_assessment.txt`` and
``wrong_assessment.txt`` those of the assignment. A submission begins with ``== name``
(and for a wrong one ``: law``, the law that must name it); then come changes, with ``...`` between them, in which
a line begins with ``- `` where it goes, with ``+ `` where it comes and with two blanks where it stays.
"""

from dataclasses import dataclass
from pathlib import Path

from assessment.starters.regions import ROOT

FOLDER = Path(__file__).parent / "submissions"


@dataclass(frozen=True)
class Submission:
    """A script made from the solution of ``lab``; ``law`` names the law that it breaks, None where it is right."""

    lab: str
    name: str
    law: str | None
    changes: tuple  # of (lines that stand there once, lines that take their place)

    def text(self):
        """Return the script. Raises ``ValueError`` where a change does not fit."""
        (path,) = (ROOT / "solutions").glob(f"{self.lab}*.py")
        script = "\n" + path.read_text(encoding="utf-8")
        for old, new in self.changes:
            if script.count(f"\n{old}") != 1:
                raise ValueError(f"{self.name}: {old!r} stands in {path.name} {script.count(old)} times, not once")
            script = script.replace(f"\n{old}", f"\n{new}")
        return script[1:]


def submissions(kind):
    """Return all ``right`` or ``wrong`` submissions, lab by lab."""
    found = []
    for path in sorted(FOLDER.glob(f"{kind}_*.txt")):
        for block in path.read_text(encoding="utf-8").strip().removeprefix("== ").split("\n== "):
            title, _, body = block.partition("\n")
            name, _, law = title.partition(": ")
            changes = [_change(part.splitlines()) for part in body.strip("\n").split("\n...\n") if part]
            found.append(Submission(path.stem.removeprefix(f"{kind}_"), name, law or None, tuple(changes)))
    return found


def _change(lines):
    old = [line[2:] for line in lines if not line.startswith("+")]
    new = [line[2:] for line in lines if not line.startswith("-")]
    return "".join(f"{line}\n" for line in old), "".join(f"{line}\n" for line in new)
