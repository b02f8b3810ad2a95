"""Keep how long the parts of the tests take on two cores: one table, a row a part, a column a precision.

    .ci/run 2>&1 | tee run.log
    python -m benchmarks.times run.log

``run.log`` ends in what ``.ci/run`` tells of its parts. The precision is that of the run: ``LOCKSTEP_PRECISION``, or
what this processor computes fast. The table goes to results/times.csv and times.md.
"""

import argparse
import csv
import re
from pathlib import Path

from benchmarks.machine import processor
from benchmarks.spreads import PRECISIONS
from utils.devices import use_bfloat16
from utils.errors import UserError, one_line_errors
from utils.files import written_whole

RESULTS = Path(__file__).with_name("results")
COLUMNS = ("part", "precision", "seconds", "tests", "processor")
PART = re.compile(r"^(setup|test[a-z-]*|all) +(\d+) s(?: +passed)?$", re.MULTILINE)
COUNT = re.compile(r"^=+ (?:.* )?(\d+) passed.* in [\d.]+s", re.MULTILINE)


def parts(log):
    """Return (part, seconds, tests) of each part of a run, from what it told. Raises ``UserError`` where one failed."""
    if re.search(r"^\S+ +\d+ s +failed", log, re.MULTILINE) or not PART.findall(log):
        raise UserError("this is no log of a run whose parts have all passed: its times would tell nothing")
    found, counts = PART.findall(log), COUNT.findall(log)
    tested = [name for name, _ in found if name.startswith("test")]
    if len(tested) != len(counts):
        raise UserError(f"the log has {len(tested)} parts with tests and {len(counts)} lines that count them")
    told = dict(zip(tested, map(int, counts), strict=True))
    return [(name, int(seconds), told.get(name)) for name, seconds in found]


def read():
    """Return the rows that are kept."""
    path = RESULTS / "times.csv"
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page(rows):
    """Return the readable table."""
    machines = ", ".join(sorted({row["processor"] for row in rows}))
    lines = ["# How long the tests take", ""]
    lines += [f"Seconds in a fresh clone on two cores of {machines}; float32 is computed as by a processor with AVX2"]
    lines += ["and nothing newer. `.ci/run` tells the times, `python -m benchmarks.times` keeps them.", ""]
    lines += [f"| part | tests | {' | '.join(PRECISIONS)} |", f"| --- | --- |{' --- |' * len(PRECISIONS)}"]
    for part in dict.fromkeys(row["part"] for row in rows):
        own = {row["precision"]: row for row in rows if row["part"] == part}
        tests = next((row["tests"] for row in own.values() if row["tests"]), "")
        cells = [str(own[name]["seconds"]) if name in own else "–" for name in PRECISIONS]
        name = f"`make {part}`" if part != "all" else "all"
        lines.append(f"| {name} | {f'{int(tests):,}' if tests else ''} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.times", description="Keep how long the tests took.")
    parser.add_argument("log", type=Path, help="what .ci/run has told")
    precision = "bfloat16" if use_bfloat16("auto", "cpu") else "float32"
    told = {"precision": precision, "processor": processor()}
    text = parser.parse_args().log.read_text(encoding="utf-8", errors="replace")
    rows = [row for row in read() if row["precision"] != precision]
    rows += [told | {"part": part, "seconds": seconds, "tests": tests} for part, seconds, tests in parts(text)]
    RESULTS.mkdir(exist_ok=True)
    with written_whole(RESULTS / "times.csv") as part, open(part, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with written_whole(RESULTS / "times.md") as part:
        part.write_text(page(read()), encoding="utf-8")
    print((RESULTS / "times.md").relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS)


if __name__ == "__main__":
    with one_line_errors():
        main()
