"""What an assignment's script calls: ``report`` after each epoch, ``finish`` at the end."""

import os
from contextlib import suppress

from assessment.task import assignment, told
from utils.errors import UserError

# Of the rank that reports: its record, the names of its dataset and its device, and the accuracies of its epochs.
_records, _asked, _curve = [], [], []


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
        _asked.append((getattr(args, "dataset", None), next((str(one.device) for one in model.parameters()), "cpu")))
    record = _records[0]
    _curve.append(row["val_accuracy"])
    record.epoch(model, target_reached=_is_at_target(args), **row)
    print(
        f"epoch {record.summary['epochs']}: {row['epoch_time_s']:.1f} s, {row['images_per_s']:,.0f} images/s,"
        f" train loss {row['train_loss']:.3f}, val accuracy {row['val_accuracy']:.4f}"
    )


def _is_at_target(args):
    """Say whether ``--patience`` epochs in a row have reached ``--target-accuracy``, where a script has such flags."""
    target, patience = getattr(args, "target_accuracy", None), getattr(args, "patience", None) or 1
    return target is not None and len(_curve) >= patience and min(_curve[-patience:]) >= target


def finish():
    """End this process once every rank is done, with the record closed; nothing runs after it.

    The rank that reported says whether the assignment's target was reached, and whether within its time.
    """
    from assessment import pace
    from utils import runs

    for record, (dataset, device) in zip(_records, _asked, strict=True):
        with suppress(UserError):  # a dataset that the assignment sets no target for
            task, rows = assignment(dataset), runs.read_metrics(record.folder)
            print(told([row["val_accuracy"] for row in rows], task))
            print(pace.told(rows[-1]["time_s"], task, device))
    runs.finish(*_records)
