"""A record is that of the epochs that took place: none left out, none written down twice."""

import itertools
import random

import pytest

from assessment.grader.training_run import dodge, unlike_epochs
from assessment.recorder.counts import ROW, STEP, SUFFIX

FLAGS, PROCESSES = {"batch_size": 8, "epochs": 12}, 2
moving = itertools.count()  # what the weights add up to, another number at each pass


def step():
    return f"8 17 {next(moving)}\n{STEP}\n"


def unlike(folder, *parts, images=160, rows=None, reporter=0):
    """Return what is said of a run whose ``reporter`` took so many steps (numbers), and wrote rows (``ROW``)."""
    for rank in range(PROCESSES):
        held = [part for part in parts if rank == reporter or part != ROW]
        text = "".join(f"{ROW}\n" if part == ROW else "".join(step() for _ in range(part)) for part in held)
        (folder / str(rank)).with_suffix(SUFFIX).write_text(text)
    return unlike_epochs(folder, PROCESSES, FLAGS, images, parts.count(ROW) if rows is None else rows)


EPOCH = (10, ROW)


@pytest.mark.parametrize("reporter", [0, 1])
@pytest.mark.parametrize("epochs", [1, 2, 7, 12])
def test_a_row_after_each_epoch_is_right_and_so_is_an_early_stop(epochs, reporter, tmp_path):
    assert not unlike(tmp_path, *EPOCH * epochs, reporter=reporter)
    assert not unlike(tmp_path, *EPOCH * epochs, 4, reporter=reporter)  # the time was over in the next epoch ...
    assert not unlike(tmp_path, *EPOCH * epochs, 10, reporter=reporter)  # ... or before its end was written down
    assert not unlike(tmp_path, 2, *EPOCH * epochs, reporter=reporter)  # a step or two to warm up
    assert not dodge(tmp_path, PROCESSES, FLAGS, 160)


@pytest.mark.parametrize("images", [17, 33, 160, 167, 4000])
def test_last_batches_may_be_left_out_filled_up_or_smaller(images, tmp_path):
    fewest, most = max(1, images // 16), -(-images // 16)
    for steps in (fewest, most):
        assert not unlike(tmp_path, *(steps, ROW) * 3, images=images)


@pytest.mark.parametrize(
    ("parts", "row"),
    [
        ((10, 10, 10, ROW, ROW), 1),  # the last epoch alone, twice
        ((10, ROW, ROW), 2),
        ((10, 10, ROW, 10, ROW), 1),  # an epoch left out at the beginning, between others, at the end
        ((*EPOCH, 20, ROW), 2),
        ((*EPOCH * 3, 20, ROW, ROW), 4),
        ((*EPOCH * 2, 20, ROW, 1, ROW), 3),  # as many rows as epochs
        ((ROW, *EPOCH), 1),
        ((3, ROW) * 4, 1),
    ],
)
def test_a_row_more_or_less_is_named(parts, row, tmp_path):
    said = unlike(tmp_path, *parts)
    assert said.startswith(f"row {row} of the record is no epoch's") and "\n" not in said


def test_whatever_row_is_moved_or_doubled_is_found(tmp_path):
    draw = random.Random(7)
    for _ in range(30):
        epochs = draw.randrange(2, 12)
        lines = list(EPOCH * epochs)
        where = draw.randrange(epochs)
        rows = [at for at, part in enumerate(lines) if part == ROW]
        if draw.random() < 0.5:
            lines.insert(rows[where], ROW)
        elif where < epochs - 1:
            del lines[rows[where]]
        else:
            lines[rows[where] :] = [10, 10, ROW]
        assert unlike(tmp_path, *lines)


def test_rows_that_report_has_not_written_are_told(tmp_path):
    assert "holds 2 accuracies, and report() was called 0 times" in unlike(tmp_path, 10, 10, rows=2)
    assert "holds 1 accuracies, and report() was called 2 times" in unlike(tmp_path, *EPOCH * 2, rows=1)
    assert not unlike(tmp_path, 10, rows=0)  # that there is none is told where it is marked
