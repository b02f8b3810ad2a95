"""The assignment: what ``config.json`` asks for, what is wrong in one, and when its target is reached."""

import json
from difflib import get_close_matches
from pathlib import Path
from types import SimpleNamespace

from utils.errors import UserError, shortened

CONFIG = Path(__file__).with_name("config.json")
# The type of a value, the least and the most: what no machine of a course has is a slip of the pen.
SHARE, EPOCHS, BATCH, MEGABYTES = (float, 0, 1), (int, 1, 10_000), (int, 1, 65_536), (int, 1, 10_000_000)
ASSIGNMENT = {
    "model": (str, None, None),
    "processes": (int, 1, 1_024),
    "batch_size": BATCH,
    "patience": EPOCHS,
    "pace": (float, 1e-9, 1e6),
    "taught_epochs": EPOCHS,
    "taught_batch_size": BATCH,
    "taught_accuracy": SHARE,
    "hidden_images": (int, 0, 1_000_000),
    "source_kb": (int, 1, 10_000),
}
TARGETS = {
    "target": SHARE,
    "distinction": SHARE,
    "tolerance": SHARE,
    "epochs": EPOCHS,
    "minutes": (float, 1e-9, 100_000),
}
LIMITS = {
    "wall_s": (float, 10, 10_000_000),
    "cpu_s": (int, 10, 100_000_000),
    "memory_mb": (int, 1_000, 10_000_000),  # with less, and with fewer processes, no rank starts
    "processes": (int, 50, 1_000_000),
    "open_files": (int, 100, 1_000_000),
    "file_mb": MEGABYTES,
    "disk_mb": MEGABYTES,
    "output_mb": MEGABYTES,
}
THREADS = 20  # that a process of a group may have: for its messages, its gradients and its images
NAMES = {int: "a whole number", float: "a number", str: "a name in quotes", dict: "a list of names and values"}


def assignment(dataset=None, config=CONFIG):
    """Return the assignment: what ``config.json`` says for ``dataset`` (by default its own), with its fields as names.

    ``model``, ``processes`` and ``batch_size`` (images a step in each); ``epochs`` at most, within ``minutes`` of
    training on a machine that trains on ``pace`` images a second (``pace.py``);
    ``target`` accuracy in ``patience`` epochs in a row, and that for a ``distinction``. Raises ``UserError`` for a
    dataset that has no target, and for what is wrong in ``config``.
    """
    return SimpleNamespace(**read_config(config, dataset))


def read_config(path, dataset=None):
    """Return what the file ``path`` asks for with ``dataset`` (by default its own), as a dictionary."""
    return chosen(read(path), path, dataset)


def read(path):
    """Return all that the file ``path`` holds. Raises ``UserError`` where it is none, or no JSON."""
    path = Path(path)
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # who opens a pipe may wait for ever
            raise UserError(f"{path} is a pipe, a socket or a device: name a config.json that is a file")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): name a config.json") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}") from None


def chosen(config, path, dataset=None):
    """Return what ``config``, which was read from ``path``, asks for with ``dataset`` (by default its own).

    What the entry of a dataset says goes before what is said for all. Raises ``UserError`` with the file, the key
    and what may stand there.
    """
    _hold(config, {"dataset": (str, None, None), "datasets": dict, "limits": dict}, ASSIGNMENT, path)
    asked = dict(config)
    datasets, name = asked.pop("datasets"), dataset or asked["dataset"]
    if name not in datasets:
        raise UserError(f"{path} sets no target for {name[:60]}: choose one of {', '.join(datasets)}, or add it there")
    for key, entry in datasets.items():
        _hold(entry, TARGETS, ASSIGNMENT, path, f"datasets, {key}: ", may_lack=ASSIGNMENT)
        if entry["target"] > entry["distinction"]:
            raise UserError(f"{path}, datasets, {key}: the target {entry['target']} is above the distinction")
    _hold(asked["limits"], LIMITS, {}, path, "limits: ", may_lack=LIMITS)
    asked |= datasets[name] | {"dataset": name}
    most = asked["limits"].get("processes", asked["processes"] * THREADS)
    if asked["processes"] * THREADS > most:
        raise UserError(
            f"{path}, limits: processes is {most}; {asked['processes']} processes have up to {THREADS} threads"
            " each, which count as well: raise it, or ask for fewer processes"
        )
    _refuse_unknown_model(asked["model"], path)
    return asked


def _hold(found, own, common, path, where="", may_lack=()):
    """Hold the mapping ``found`` against what its keys may be."""
    known = own | common
    if not isinstance(found, dict):
        raise UserError(f"{path}, {where or 'as a whole: '}{shortened(found)} is not {NAMES[dict]}")
    for key in found.keys() - known.keys():
        close = get_close_matches(key, known, 1)
        meant = f"did you mean {close[0]}?" if close else f"it may hold {', '.join(known)}"
        raise UserError(f"{path}, {where}there is no {key[:60]}; {meant}")
    for key in known:
        if key not in found and key not in may_lack:
            raise UserError(f"{path}, {where}{key} is missing")
    for key, value in found.items():
        kind, least, most = known[key] if isinstance(known[key], tuple) else (known[key], None, None)
        fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
        if not fits or (least is not None and not least <= value <= most):
            raise UserError(
                f"{path}, {where}{key} is {shortened(value)}; it must be {NAMES[kind]}{_between(least, most)}"
            )


def _between(least, most):
    if least is None:
        return ""
    return f" above 0, and {most:,.0f} at most" if 0 < least < 1 else f" from {least:,} to {most:,}"


def _refuse_unknown_model(name, path):
    from utils.models import MODELS  # imports torch, which making the labs does without

    if name not in MODELS:
        raise UserError(f"{path}, model is {shortened(name)}; choose one of {', '.join(MODELS)}")


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
