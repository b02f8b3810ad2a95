"""What a training run of a submission shows, which is graded and not watched: its record, and if it is that run."""

import time
from contextlib import suppress
from dataclasses import dataclass, field

import psutil

from assessment.recorder.counts import steps_by_row, steps_taken
from assessment.task import reached_in
from utils.runs import read_metrics

SLACK = 1.02  # of the steps that a training run has
LEAST_OF_EPOCH, MOST_OF_EPOCH = 0.5, 1.5  # of an epoch's steps: so many make one row of the record, and no two
METRICS_BYTES = 1_000_000
# What processes beside the ranks may compute, in seconds and as a share of the ranks': to be looked at, and too much.
# Those that load images stay below; compilers may take a minute.
MARKED, TOO_MUCH, POLL_S = (10, 0.5), (60, 1.0), 0.25


@dataclass
class Training:
    """What a run reports, and what its weights are worth."""

    curve: list = field(default_factory=list)  # reported accuracies, by epoch
    scored: float = 0.0  # of the saved weights on the test images
    hidden: float = 0.0  # ... and on images that the script has never seen
    problem: str = ""  # why there is nothing to score
    cut: str = ""  # said where the time was over before the script was
    remark: str = ""  # what an instructor may want to look at
    dodge: str = ""  # how it is another run than the one that was asked for
    unlike: str = ""  # how its record is not that of its epochs
    seconds: float = 0.0  # of training, as reported
    proven: dict = field(default_factory=dict)  # what the weights of an epoch get on the test images, where they count

    @property
    def reported(self):
        return self.curve[-1] if self.curve else None


def counting(curve, wanted, patience):
    """Return the epochs, counted from 1, by which a ``curve`` of accuracies reaches what is ``wanted`` in a row."""
    end = reached_in(curve, wanted, patience)
    return range(end - patience + 1, end + 1) if end else ()


def dodge(folder, processes, flags, images):
    """Return how the run in ``folder`` is another than ``flags`` ask for, "" where it is that one.

    Counted are the steps of each rank: smaller batches have more of them, and so have more than the ``images`` there
    are.
    """
    size, epochs = flags["batch_size"], flags["epochs"]
    wanted = epochs * images / (processes * size)
    for rank in range(processes):
        taken = steps_taken(folder, rank, size)
        if taken is None:
            return f"no training step of rank {rank} was seen"
        if taken > SLACK * wanted + epochs:  # the last batch of an epoch may be a smaller one
            return (
                f"rank {rank} took {taken} steps; {epochs} epochs of {images} images have {wanted:.0f}, with"
                f" {processes} processes and --batch-size {size}"
            )
    return ""


def unlike_epochs(folder, processes, flags, images, rows):
    """Return how the record, of ``rows`` accuracies, is not that of the epochs of the run, "" where it is.

    Each is to have an epoch's steps before it: who leaves out epochs, or writes one down twice, chooses which of his
    accuracies stand in a row. What comes after the last row is an epoch that was not finished.
    """
    size = flags["batch_size"]
    taken = next(filter(None, (steps_by_row(folder, rank, size) for rank in range(processes))), [])
    if len(taken) != rows:
        return (
            f"the record holds {rows} accuracies, and report() was called {len(taken)} times: it is to be called once"
            " after each epoch, and nothing else is to write the record"
        )
    wanted = images / (processes * size)
    for row, steps in enumerate(taken, start=1):
        if not max(1, LEAST_OF_EPOCH * wanted) <= steps <= MOST_OF_EPOCH * wanted + 1:
            return (
                f"row {row} of the record is no epoch's: {steps} training steps were taken since the row before it, and"
                f" an epoch has {wanted:.0f}; report() is to be called once after each epoch"
            )
    return ""


def reported(run_dir):
    """Return the reported accuracies and the seconds of training, none where the record is not one."""
    path = run_dir / "metrics.csv"
    with suppress(Exception):  # it is a stranger's file
        if path.stat().st_size < METRICS_BYTES:
            rows = read_metrics(run_dir)
            found = [float(row["val_accuracy"]) for row in rows]
            return [one for one in found if 0 <= one <= 1], float(rows[-1]["time_s"])
    return [], 0.0


class Beside:
    """Follows what the ranks of a run compute, and what the processes that they have started compute beside them.

    Nobody counts the steps that those take. Loading images and compiling are their business, which take less than
    training does. Not seen: processes that live for less than ``POLL_S`` and that no rank waits for.
    """

    def __init__(self, server):
        self.server, self._asked_at = server, 0.0
        self._ranks, self._others = {}, {}  # by process: seconds of its own, and of those that it has waited for

    def look(self):
        """Note what has been computed so far. Returns False, that nothing is stuck."""
        if time.monotonic() < self._asked_at + POLL_S:
            return False
        ranks = self.server.rank_processes()
        for one in self.server.members() - self.server.own:
            with suppress(psutil.Error):
                times = one.cpu_times()
                kept = self._ranks if one in ranks or one in self._ranks else self._others
                kept[one] = times.user + times.system, times.children_user + times.children_system
        self._asked_at = time.monotonic()
        return False

    def told(self, least):
        """Return in words that others than the ranks have computed more than ``least`` allows, "" where none have."""
        own = sum(seconds for seconds, _ in self._ranks.values())
        seen = sum(seconds for seconds, _ in self._others.values())
        others = max(seen, sum(waited_for for _, waited_for in self._ranks.values()))
        seconds, share = least
        if others <= seconds + share * own:
            return ""
        return f"processes that the ranks started computed for {others:.0f} s, the ranks themselves for {own:.0f} s"
