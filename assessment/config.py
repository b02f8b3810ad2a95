"""What an assignment's ``config.json`` may say, and what is wrong in one: found before anybody is graded by it."""

import json
from difflib import get_close_matches
from pathlib import Path

from utils.errors import UserError

COUNT, SHARE, MORE_THAN_NONE = (int, 1, float("inf")), (float, 0, 1), (float, 1e-9, float("inf"))  # type, least, most
ASSIGNMENT = {
    "model": (str, None, None),
    "processes": COUNT,
    "batch_size": COUNT,
    "patience": COUNT,
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
    "wall_s": MORE_THAN_NONE,
    "cpu_s": COUNT,
    "memory_mb": COUNT,
    "processes": COUNT,
    "open_files": COUNT,
    "file_mb": COUNT,
    "disk_mb": COUNT,
    "output_mb": COUNT,
}
NAMES = {int: "a whole number", float: "a number", str: "a name in quotes", dict: "a list of names and values"}


def read_config(path, dataset=None):
    """Return what the file ``path`` asks for with ``dataset`` (by default its own), as a dictionary.

    What the entry of a dataset says goes before what is said for all. Raises ``UserError`` with the file, the key
    and what may stand there.
    """
    try:
        asked = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): name a config.json") from None
    except ValueError as error:
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
