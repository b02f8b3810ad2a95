"""What a law says about a run: it holds, it does not, or nothing was seen that could tell."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """``holds`` is None where the evidence is lacking; ``symptom`` says what was seen, in numbers."""

    holds: bool | None
    symptom: str = ""
    line: int | None = None  # of the script, where it is known

    def __bool__(self):
        return self.holds is True


HOLDS = Verdict(True)


def broken(symptom, line=None):
    """Return the verdict that a law is broken."""
    return Verdict(False, symptom, line)


def unseen(why=""):
    """Return the verdict that nothing was seen."""
    return Verdict(None, why)


def listed(names, limit=3):
    """Return a few of ``names`` as text, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(map(str, names[:limit])) + more


def percent(part, whole):
    """Return a share as text."""
    return f"{100 * part / max(1, whole):.0f} %"
