"""Measure the claims of the notebooks again and again, with other seeds: one table of how surely each holds.

    make claims                                              # what is missing of ten runs in each precision
    make claims CHAPTERS="04 05"                             # some chapters
    python -m benchmarks.claims 04 --precision float32 --anew
    python -m benchmarks.claims --table                      # write the page anew and say what does not hold

Each run executes the measurements of one notebook at full scale in a kernel, with its seeds moved by ``SEED_STEP``.
In float32 the kernel plays a processor with AVX2 and nothing newer. What is gathered goes to results/claims.csv at
once, so runs may be gathered in several sittings; runs of a notebook whose code has changed since are measured again.
The exit code is 1 where a claim does not hold in every run, or with a margin below ``MARGIN`` standard deviations.
"""

import argparse
import ast
import csv
import hashlib
import json
import math
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import nbformat
import torch
from jupyter_client import AsyncKernelManager
from jupyter_core.utils import run_sync
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from benchmarks.machine import processor
from utils.devices import has_fast_bfloat16
from utils.errors import UserError, one_line_errors
from utils.files import written_whole

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
RUNS, SEED_STEP, MARGIN = 10, 10, 3.0
OLDER = {"LOCKSTEP_PRECISION": "float32", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
PRECISIONS = {"float32": OLDER, "bfloat16": {"LOCKSTEP_PRECISION": "bfloat16"}}
COLUMNS = ("chapter", "precision", "seed", "claim", "value", "at_least", "at_most", "code", "processor", "torch")
SHOWING = {"plots", "diagrams", "recorded", "print", "Difference"}
SECONDS = "seconds"  # in the column of claims: how long the notebook took


def notebooks(asked=()):
    """Return the chapters asked for, by name; all without names. Raises ``UserError`` for an unknown one."""
    found = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
    unknown = [word for word in asked if not any(name.startswith(word) for name in found)]
    if unknown:
        raise UserError(f"no chapter is named {', '.join(unknown)}; there are {', '.join(found)}")
    return {name: path for name, path in found.items() if not asked or any(map(name.startswith, asked))}


def measurements(path):
    """Return a notebook without the cells that check a lab: what a learner has written is no measurement."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [one for one in notebook.cells if "from assessment.check import" not in one.source]
    return notebook


def code_of(notebook):
    """Return a digest of what a notebook measures: runs of other measurements are no runs of this notebook.

    Layout, comments, imports, and what only shows something (figures, prints, predictions) are left out.
    """
    digest = hashlib.sha256()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            magics = [line for line in cell.source.splitlines() if line.startswith("%%")]
            code = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
            digest.update("\n".join([*magics, ast.dump(Measuring().visit(ast.parse(code)))]).encode())
    return digest.hexdigest()[:12]


class Measuring(ast.NodeTransformer):
    """Takes out of a cell what measures nothing."""

    def visit_Import(self, _node):
        return None

    def visit_ImportFrom(self, _node):
        return None

    def visit_Expr(self, node):
        is_shown = isinstance(node.value, ast.Call) and _root(node.value.func) in SHOWING
        return None if is_shown else self.generic_visit(node)

    def visit_keyword(self, node):
        return None if node.arg in ("told", "answers", "unit") else node


def _root(node):
    """Return the name that an attribute, or an attribute of one, belongs to."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return getattr(node, "id", None)


def run(chapter, path, precision, seed):
    """Execute the measurements of one chapter and return a row for each claim, and one for the seconds it took."""
    notebook = measurements(path)
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "claims.jsonl"
        own = PRECISIONS[precision] | {"LOCKSTEP_CLAIMS": str(lines), "LOCKSTEP_SEED": str(seed)}
        environment = {name: value for name, value in os.environ.items() if name not in ("CI", "LOCKSTEP_SCALE")}
        began = time.monotonic()
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
        place = {"metadata": {"path": str(path.parent)}}
        client = NotebookClient(notebook, km=kernel, timeout=900, resources=place)
        try:
            client.execute(env=environment | own)
        except CellExecutionError as error:
            raise UserError(f"{chapter} failed with seed {seed} in {precision}: {error}") from error
        finally:
            if kernel.has_kernel:
                run_sync(kernel.shutdown_kernel)(now=True)  # nbclient ends only the kernels that it has made itself
        seconds = time.monotonic() - began
        made = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    told = {"chapter": chapter, "precision": precision, "seed": seed, "code": code_of(notebook)}
    told |= {"processor": processor(), "torch": torch.__version__}
    rows = [told | {name: one[name] for name in ("claim", "value", "at_least", "at_most")} for one in made]
    return [*rows, told | {"claim": SECONDS, "value": round(seconds, 1), "at_least": None, "at_most": None}]


def read():
    """Return the rows of results/claims.csv, bounds and values as numbers."""
    path = RESULTS / "claims.csv"
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row |= {name: float(row[name]) if row[name] else None for name in ("value", "at_least", "at_most")}
        row["seed"] = int(row["seed"])
    return rows


def write(rows):
    """Write all rows to results/claims.csv, in the order of chapters, precisions and seeds."""
    places = {name: at for at, name in enumerate(notebooks())}
    rows = sorted(rows, key=lambda row: (places.get(row["chapter"], 99), row["precision"], row["seed"]))
    with written_whole(RESULTS / "claims.csv") as part, open(part, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row | {"value": float(f"{row['value']:.6g}")} for row in rows)


def gather(asked, precisions, count, anew=False):
    """Make the runs that are missing, or all ``anew``, the chapters in turn, and keep each at once.

    Returns the names of the chapters that failed, which are not tried again.
    """
    chosen = notebooks(asked)
    if anew:
        write([row for row in read() if row["chapter"] not in chosen or row["precision"] not in precisions])
    codes = {name: code_of(measurements(path)) for name, path in chosen.items()}
    failed = []
    for seed in range(0, count * SEED_STEP, SEED_STEP):
        for precision in precisions:
            for name, path in chosen.items():
                rows = [row for row in read() if row["chapter"] != name or row["code"] == codes[name]]
                there = {(row["chapter"], row["precision"], row["seed"]) for row in rows}
                if (name, precision, seed) in there or name in failed:
                    continue
                try:
                    made = run(name, path, precision, seed)
                except UserError as error:
                    print(error, flush=True)
                    failed.append(name)
                    continue
                write(rows + made)
                print(f"{name}, {precision}, seed {seed}: {made[-1]['value']:.0f} s", flush=True)
                for row in made[:-1]:
                    if not holds(row):
                        print(f"  does not hold: {row['claim']} ({row['value']:.3g})", flush=True)
    return failed


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


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description="Measure the course's claims.")
    parser.add_argument("chapters", nargs="*", help="chapters by how their names begin, as 04; all without")
    parser.add_argument("--precision", choices=PRECISIONS, help="one precision (default: all that this machine has)")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of each notebook (default {RUNS})")
    parser.add_argument("--anew", action="store_true", help="forget the runs of these chapters first")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    has = [name for name in PRECISIONS if name == "float32" or has_fast_bfloat16("cpu")]
    failed = []
    if not args.table:
        failed = gather(args.chapters, [args.precision] if args.precision else has, args.runs, args.anew)
    rows = read()
    if not rows:
        raise UserError("nothing has been measured yet: run make claims")
    with written_whole(RESULTS / "claims.md") as part:
        part.write_text(page(rows), encoding="utf-8")
    unsure = [(key, name) for key, by in spreads(rows).items() for name, one in by.items() if not one.is_sure]
    for (chapter, claim), precision in unsure:
        print(f"not sure: {chapter}, {precision}: {claim}")
    for name in failed:
        print(f"failed: {name}")
    print(f"{len(spreads(rows))} claims; {RESULTS.relative_to(ROOT)}/claims.md")
    sys.exit(1 if unsure or failed else 0)


if __name__ == "__main__":
    with one_line_errors():
        main()
