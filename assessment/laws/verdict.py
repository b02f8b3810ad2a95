"""What a law says about a run: it holds, it does not, or nothing was seen that could tell."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """``holds`` is None where the evidence is lacking; ``symptom`` says what was seen, in numbers."""

    holds: bool | None
    symptom: str = ""
    line: int | None = None  # of the script, where it is known
    kind: str = ""  # of a symptom, where a law tells several apart

    def __bool__(self):
        return self.holds is True


HOLDS = Verdict(True)


def broken(symptom, line=None, kind=""):
    """Return the verdict that a law is broken."""
    return Verdict(False, symptom, line, kind)


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


def number(text):
    """Return what ``text`` says as a number, not a number where it says none."""
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan
