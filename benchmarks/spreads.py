"""How surely a claim holds: its spread over many runs, and the page that tells it."""

import math
import statistics
from dataclasses import dataclass

RUNS, MARGIN = 10, 3.0
PRECISIONS = ("float32", "bfloat16")
SECONDS = "seconds"  # in the column of claims: how long the notebook took


def holds(row):
    """Say whether one measured value lies within its bounds."""
    low, high = row["at_least"], row["at_most"]
    return (low is None or row["value"] >= low) and (high is None or row["value"] <= high)


@dataclass(frozen=True)
class Spread:
    """All runs of one claim in one precision."""

    values: tuple
    at_least: float | None
    at_most: float | None
    held: int

    @classmethod
    def of(cls, rows):
        """Return the ``Spread`` of the rows of one claim in one precision."""
        values = tuple(row["value"] for row in rows)
        return cls(values, rows[-1]["at_least"], rows[-1]["at_most"], sum(map(holds, rows)))

    @property
    def margin(self):
        """The distance of the mean from the nearer bound, in standard deviations of one run.

        What is positive and must be large (a ratio, a distance) scatters by factors: below, logarithms are compared,
        so that a run far above its bound is no reason to doubt it.
        """
        return min(_distance(self.values, at, side) for at, side in ((self.at_least, 1), (self.at_most, -1)))

    @property
    def is_sure(self):
        """Whether the claim held in every one of at least ``RUNS`` runs, with the margin that is asked for."""
        return len(self.values) >= RUNS and self.held == len(self.values) and self.margin >= MARGIN

    def told(self):
        """Return the cells of the page: median, lowest and highest, margin, held of runs."""
        low, middle, high = min(self.values), statistics.median(self.values), max(self.values)
        margin = "∞" if math.isinf(self.margin) else f"{self.margin:.1f}"
        mark = "" if self.is_sure else " **✗**"
        return f"{middle:.3g} | {low:.3g} to {high:.3g} | {margin}{mark} | {self.held} of {len(self.values)}"


def _distance(values, bound, side):
    """Return how far the mean is on the right ``side`` (1 above, -1 below) of a bound, in standard deviations."""
    if bound is None:
        return math.inf
    if side > 0 and bound > 0 and min(values) > 0:
        values, bound = [math.log(value) for value in values], math.log(bound)
    room = side * (statistics.fmean(values) - bound)
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return room / deviation if deviation else math.inf if room >= 0 else -math.inf


def spreads(rows):
    """Return a mapping of (chapter, claim) to the ``Spread`` in each precision."""
    found = {}
    for row in rows:
        if row["claim"] != SECONDS:
            found.setdefault((row["chapter"], row["claim"]), {}).setdefault(row["precision"], []).append(row)
    return {key: {name: Spread.of(some) for name, some in by.items()} for key, by in found.items()}


def page(rows):
    """Return the readable page: a table of times, and a table of claims for each chapter."""
    machines = ", ".join(sorted({row["processor"] for row in rows}))
    versions = ", ".join(sorted({row["torch"] for row in rows}))
    lines = [
        "# The claims of the course, measured again and again",
        "",
        f"Measured on two cores of {machines}; torch {versions}. Each run takes other seeds. float32 is computed as by",
        "a processor with AVX2 and nothing newer. The margin is the distance of the mean from the nearer bound, in",
        "standard deviations of one run (for what is positive and has a lower bound, of its logarithm);",
        f"{MARGIN:g} are asked for, and every run must hold.",
        "`make claims` measures what is missing and writes this page and `claims.csv`, which holds every run.",
    ]
    lines += ["", "## Seconds that a notebook takes", "", "| chapter | float32 | bfloat16 |", "| --- | --- | --- |"]
    seconds = {}
    for row in rows:
        if row["claim"] == SECONDS:
            seconds.setdefault(row["chapter"], {}).setdefault(row["precision"], []).append(row["value"])
    told = [[_middle(by.get(name)) for name in PRECISIONS] for by in seconds.values()]
    lines += [f"| `{chapter}` | {' | '.join(cells)} |" for chapter, cells in zip(seconds, told, strict=True)]
    sums = [sum(statistics.median(by[name]) for by in seconds.values() if name in by) for name in PRECISIONS]
    lines.append(f"| all | {' | '.join(f'{value:.0f}' for value in sums)} |")
    chapter = None
    for (name, claim), by in spreads(rows).items():
        if name != chapter:
            chapter = name
            lines += ["", f"## `{name}`", "", "| claim | bound | precision | median | spread | margin | held |"]
            lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
        for at, (precision, spread) in enumerate(by.items()):
            first = f"{claim} | {_bound(spread)}" if at == 0 else " | "
            lines.append(f"| {first} | {precision} | {spread.told()} |")
    return "\n".join(lines) + "\n"


def _middle(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})" if values else "–"


def _bound(spread):
    low, high = spread.at_least, spread.at_most
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    return f"≥ {low:g}" if low is not None else f"≤ {high:g}"
