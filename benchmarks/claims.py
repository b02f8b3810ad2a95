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
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import torch
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from benchmarks.digests import digest
from benchmarks.machine import processor
from benchmarks.spreads import RUNS, SECONDS, holds, page, spreads
from utils.devices import has_fast_bfloat16
from utils.errors import UserError, one_line_errors
from utils.files import written_whole

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
SEED_STEP = 10
OLDER = {"LOCKSTEP_PRECISION": "float32", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
ENVIRONMENTS = {"float32": OLDER, "bfloat16": {"LOCKSTEP_PRECISION": "bfloat16"}}
COLUMNS = ("chapter", "precision", "seed", "claim", "value", "code", "processor", "torch")
BOUNDS = ("at_least", "at_most")
SHOWING = {"plots", "diagrams", "recorded", "print", "Difference"}


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

    Layout, comments, imports, what only shows something (figures, words, prints of the notebook) and bounds are left
    out; what a cell of many processes prints is how it hands its measurements over, and counts.
    """
    cells = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            magics = [line for line in cell.source.splitlines() if line.startswith("%%")]
            code = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
            showing = SHOWING - {"print"} if magics else SHOWING
            cells += [ast.Constant(magics), Measuring(showing).visit(ast.parse(code))]
    return digest(*cells)


def bounds_of(notebook):
    """Return the bounds that a notebook's claims ask for, by their texts: at least, at most; None for no bound."""
    found = {}
    for cell in notebook.cells:
        code = "\n".join(line for line in cell.source.splitlines() if not line.startswith("%"))
        for node in ast.walk(ast.parse(code if cell.cell_type == "code" else "")):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "claim":
                asked = {one.arg: one.value for one in node.keywords if one.arg in BOUNDS}
                numbers = (ast.literal_eval(asked[name]) if name in asked else None for name in BOUNDS)
                found[ast.literal_eval(node.args[0])] = tuple(numbers)
    return found


class Measuring(ast.NodeTransformer):
    """Takes out of a cell what measures nothing: imports, words, and calls of the names in ``showing``."""

    def __init__(self, showing):
        self.showing = showing

    def visit_Import(self, _node):
        return None

    def visit_ImportFrom(self, _node):
        return None

    def visit_Expr(self, node):
        is_shown = isinstance(node.value, ast.Call) and _root(node.value.func) in self.showing
        return None if is_shown else self.generic_visit(node)

    def visit_keyword(self, node):
        return None if node.arg in ("told", "answers", "unit", *BOUNDS) else node


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
        own = ENVIRONMENTS[precision] | {"LOCKSTEP_CLAIMS": str(lines), "LOCKSTEP_SEED": str(seed)}
        environment = {name: value for name, value in os.environ.items() if name not in ("CI", "LOCKSTEP_SCALE")}
        began = time.monotonic()
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/kernel")
        place = {"metadata": {"path": str(path.parent)}}
        client = NotebookClient(notebook, km=kernel, timeout=900, resources=place, shutdown_kernel="immediate")
        try:
            client.execute(env=environment | own, cleanup_kc=True)  # its own kernels alone nbclient ends unasked
        except CellExecutionError as error:
            raise UserError(f"{chapter} failed with seed {seed} in {precision}: {error}") from error
        seconds = time.monotonic() - began
        made = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    told = {"chapter": chapter, "precision": precision, "seed": seed, "code": code_of(notebook)}
    told |= {"processor": processor(), "torch": torch.__version__}
    rows = [told | {name: one[name] for name in ("claim", "value", *BOUNDS)} for one in made]
    return [*rows, told | {"claim": SECONDS, "value": round(seconds, 1), **dict.fromkeys(BOUNDS)}]


def read():
    """Return the rows of results/claims.csv, values as numbers, and beside them the bounds of the notebooks today."""
    path = RESULTS / "claims.csv"
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    asked = {name: bounds_of(measurements(path)) for name, path in notebooks().items()}
    for row in rows:
        bounds = asked.get(row["chapter"], {}).get(row["claim"], (None, None))
        row |= {"value": float(row["value"]), "seed": int(row["seed"]), **dict(zip(BOUNDS, bounds, strict=True))}
    return rows


def write(rows):
    """Write all rows to results/claims.csv, in the order of chapters, precisions and seeds."""
    places = {name: at for at, name in enumerate(notebooks())}
    rows = sorted(rows, key=lambda row: (places.get(row["chapter"], 99), row["precision"], row["seed"]))
    with written_whole(RESULTS / "claims.csv") as part, open(part, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
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


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims", description="Measure the course's claims.")
    parser.add_argument("chapters", nargs="*", help="chapters by how their names begin, as 04; all without")
    parser.add_argument("--precision", choices=ENVIRONMENTS, help="one precision (default: all that this machine has)")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"runs of each notebook (default {RUNS})")
    parser.add_argument("--anew", action="store_true", help="forget the runs of these chapters first")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    has = [name for name in ENVIRONMENTS if name == "float32" or has_fast_bfloat16("cpu")]
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
