"""What checks labs and grades the assignment, and what an assignment's script calls.

from assessment import assignment, finish, report

task = assignment()                 # what config.json asks for
report(args, model, **row)          # rank 0, after each epoch
finish()                            # every rank, at the end; rank 0 says whether the target was reached
"""

import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from assessment.config import read_config
from utils.errors import UserError

CONFIG = Path(__file__).with_name("config.json")
_records, _asked = [], []  # of the rank that reports: its record, and the name of its dataset


def assignment(dataset=None, config=CONFIG):
    """Return the assignment: what ``config.json`` says for ``dataset`` (by default its own), with its fields as names.

    ``model``, ``processes`` and ``batch_size`` (images a step in each); ``epochs`` at most, within ``minutes``;
    ``target`` accuracy in ``patience`` epochs in a row, and that for a ``distinction``. Raises ``UserError`` for a
    dataset that has no target, and for what is wrong in ``config``.
    """
    return SimpleNamespace(**read_config(config, dataset))


def report(args, model, **row):
    """Keep a finished epoch's numbers, and the weights of the bare ``model``, in ``args.run_dir``; print a line.

    Call it on rank 0 alone. ``args`` are the script's settings (argparse's namespace, with ``run_dir`` and
    ``batch_size``); ``row`` has ``time_s``, ``epoch_time_s``, ``images_per_s`` (over all ranks), ``lr``,
    ``train_loss``, ``train_accuracy``, ``val_loss`` and ``val_accuracy``. Raises ``TypeError`` where one is missing.
    """
    from utils import runs  # imports torch, which making the labs does without

    missing = set(runs.COLUMNS) - {"epoch"} - row.keys()
    if missing:
        raise TypeError(f"report() lacks {', '.join(sorted(missing))}")
    if not _records:
        world_size = int(os.environ.get("WORLD_SIZE", 1))
        facts = {"world_size": world_size, "effective_batch": world_size * args.batch_size}
        _records.append(runs.Record(args.run_dir, vars(args), **facts))
        _asked.append(getattr(args, "dataset", None))
    record = _records[0]
    record.epoch(model, **row)
    print(
        f"epoch {record.summary['epochs']}: {row['epoch_time_s']:.1f} s, {row['images_per_s']:,.0f} images/s,"
        f" train loss {row['train_loss']:.3f}, val accuracy {row['val_accuracy']:.4f}"
    )


def finish():
    """End this process once every rank is done, with the record closed; nothing runs after it.

    The rank that reported says whether the assignment's target was reached.
    """
    from utils import runs

    for record, dataset in zip(_records, _asked, strict=True):
        with suppress(UserError):  # a dataset that the assignment sets no target for
            print(told([row["val_accuracy"] for row in runs.read_metrics(record.folder)], assignment(dataset)))
    runs.finish(*_records)


def told(accuracies, task):
    """Return in words whether ``accuracies``, one an epoch, reach the target of ``task``, and with distinction."""
    ends = [(name, reached_in(accuracies, at, task.patience), at) for name, at in _targets(task)]
    parts = [f"{name} {at:g}: " + (f"reached in epoch {end}" if end else "not reached") for name, end, at in ends]
    best = f"the best epoch has {max(accuracies):.4f}" if accuracies else "no epoch has ended"
    return f"{task.patience} epochs in a row at {'; '.join(parts)} ({best})"


def _targets(task):
    return ("the target", task.target), ("distinction", task.distinction)


def reached_in(accuracies, target, patience):
    """Return the epoch with which ``patience`` epochs in a row have reached ``target``, None where none has."""
    here = 0
    for epoch, accuracy in enumerate(accuracies, start=1):
        here = here + 1 if accuracy >= target else 0
        if here == patience:
            return epoch
    return None
