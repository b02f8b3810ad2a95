"""Print one table of ratios: how fast the parts of the course are beside what they are compared with.

    make bench                                    # all rows
    python -m benchmarks ring sync_batchnorm      # some

Both sides of a row take turns in one run, so that a noisy machine slows both. A row shows the median of the
rounds and the middle half of them.
"""

import json
import platform
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from utils.errors import UserError, one_line_errors
from utils.launch import launch

PAIRS = Path(__file__).with_name("pairs.py")


@dataclass
class Row:
    """One line of the table: ``pair`` names a function in pairs.py, ``goal`` is what the ratio should reach."""

    pair: str
    title: str
    processes: int
    goal: float
    at_most: bool = False

    def holds(self, ratio):
        return ratio <= self.goal if self.at_most else ratio >= self.goal


ROWS = [
    Row("two_for_one", "images/s: two processes against one, one thread each, batch 256 each", 2, 1.7),
    Row("two_for_two_threads", "images/s: two processes of one thread against one of two, batch 64 each", 2, 1.2),
    Row("data_parallel", "steps/s: our DataParallel against torch's DDP, batch 64 each", 2, 1.0),
    Row("ring", "speed: our ring all-reduce against gloo's, 64 MB, 4 ranks", 4, 0.8),
    Row("sync_batchnorm", "time of a DDP step: SyncBatchNorm against BatchNorm, batch 64 each", 2, 1.6, at_most=True),
    Row("novograd", "steps/s: our NovoGrad against pytorch_optimizer's, gradients of wide-resnet-tiny", 1, 1.0),
]


def measure(row):
    """Run a row's two sides in turn and return the ratio of each round."""
    run = launch(PAIRS, row.pair, processes=row.processes, threads=1)
    run.result(timeout=600)
    return json.loads(next(line for line in reversed(run.log().splitlines()) if line.startswith("[")))


def main():
    asked = sys.argv[1:]
    unknown = set(asked) - {row.pair for row in ROWS}
    if unknown:
        raise UserError(
            f"no row is named {', '.join(sorted(unknown))}; there are {', '.join(row.pair for row in ROWS)}"
        )
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})"
    print(f"torch {torch.__version__}, {device}; the pairs run on the CPU with gloo")
    print(f"{'ratio':>6}  {'middle half':>12}  {'goal':>8}  row")
    for row in ROWS:
        if asked and row.pair not in asked:
            continue
        ratios = measure(row)
        low, middle, high = statistics.quantiles(ratios, n=4)
        goal = f"{'<=' if row.at_most else '>='} {row.goal}"
        missed = "" if row.holds(middle) else "  (missed)"
        print(f"{middle:6.2f}  {low:5.2f} – {high:4.2f}  {goal:>8}  {row.title}{missed}", flush=True)


if __name__ == "__main__":
    with one_line_errors():
        main()
