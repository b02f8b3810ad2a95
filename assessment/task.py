"""The assignment: what ``config.json`` asks for, what is wrong in one, and when its target is reached."""

import json
from difflib import get_close_matches
from pathlib import Path
from types import SimpleNamespace

from utils.errors import UserError

CONFIG = Path(__file__).with_name("config.json")
COUNT, SHARE, MORE_THAN_NONE = (int, 1, float("inf")), (float, 0, 1), (float, 1e-9, float("inf"))  # type, least, most
ASSIGNMENT = {
    "model": (str, None, None),
    "processes": COUNT,
    "batch_size": COUNT,
    "patience": COUNT,
    "pace": MORE_THAN_NONE,
    "taught_epochs": COUNT,
    "taught_batch_size": COUNT,
    "taught_accuracy": SHARE,
    "hidden_images": (int, 0, float("inf")),
    "source_kb": COUNT,
}
TARGETS = {
    "target": SHARE,
    "distinction": SHARE,
    "tolerance": SHARE,
    "epochs": COUNT,
    "minutes": MORE_THAN_NONE,
}
LIMITS = {
    "wall_s": (float, 10, float("inf")),
    "cpu_s": (int, 10, float("inf")),
    "memory_mb": (int, 1000, float("inf")),  # with less, and with fewer processes, no rank starts
    "processes": (int, 50, float("inf")),
    "open_files": (int, 100, float("inf")),
    "file_mb": COUNT,
    "disk_mb": COUNT,
    "output_mb": COUNT,
}
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
    """Return what the file ``path`` asks for with ``dataset`` (by default its own), as a dictionary.

    What the entry of a dataset says goes before what is said for all. Raises ``UserError`` with the file, the key
    and what may stand there.
    """
    try:
        asked = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): name a config.json") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON: {error}") from None
    _hold(asked, {"dataset": (str, None, None), "datasets": dict, "limits": dict}, ASSIGNMENT, path)
    datasets, name = asked.pop("datasets"), dataset or asked["dataset"]
    if name not in datasets:
        raise UserError(f"{path} sets no target for {name}: choose one of {', '.join(datasets)}, or add it there")
    for key, entry in datasets.items():
        _hold(entry, TARGETS, ASSIGNMENT, path, f"datasets, {key}: ", may_lack=ASSIGNMENT)
        if entry["target"] > entry["distinction"]:
            raise UserError(f"{path}, datasets, {key}: the target {entry['target']} is above the distinction")
    _hold(asked["limits"], LIMITS, {}, path, "limits: ", may_lack=LIMITS)
    asked |= datasets[name] | {"dataset": name}
    _refuse_unknown_model(asked["model"], path)
    return asked


def _hold(found, own, common, path, where="", may_lack=()):
    """Hold the mapping ``found`` against what its keys may be."""
    known = own | common
    if not isinstance(found, dict):
        raise UserError(f"{path}, {where or 'as a whole: '}{found!r} is not {NAMES[dict]}")
    for key in found.keys() - known.keys():
        close = get_close_matches(key, known, 1)
        meant = f"did you mean {close[0]}?" if close else f"it may hold {', '.join(known)}"
        raise UserError(f"{path}, {where}there is no {key}; {meant}")
    for key in known:
        if key not in found and key not in may_lack:
            raise UserError(f"{path}, {where}{key} is missing")
    for key, value in found.items():
        kind, least, most = known[key] if isinstance(known[key], tuple) else (known[key], None, None)
        fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
        if not fits or (least is not None and not least <= value <= most):
            raise UserError(f"{path}, {where}{key} is {value!r}; it must be {NAMES[kind]}{_between(least, most)}")


def _between(least, most):
    if least is None:
        return ""
    if most == 1:
        return f" from {least:g} to {most:g}"
    return " above 0" if 0 < least < 1 else f" of {least:g} or more"


def _refuse_unknown_model(name, path):
    from utils.models import MODELS  # imports torch, which making the labs does without

    if name not in MODELS:
        raise UserError(f"{path}, model is {name!r}; choose one of {', '.join(MODELS)}")


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
