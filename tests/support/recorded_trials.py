"""A trial as plain values, to be kept as JSON, and back: as it is judged, less what laws do not tell from the rest.

Numbers are rounded to what laws allow for, some of the network's like layers are left out, and of the trials that are
judged by their records alone (eight epochs) all sketches and times are.
"""

import math
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, cached_property
from itertools import accumulate, pairwise
from pathlib import Path

import torch

from assessment.recorder.networks import bare
from assessment.recorder.sketch import DIRECTIONS
from assessment.starters.regions import ROOT
from assessment.trials.artifacts import Artifacts, Weights
from assessment.trials.data import trial_data
from assessment.trials.evidence import Evaluation, Evidence, Rank, Step
from assessment.trials.trial import Outcome, Run, Trial

# Layers of the network like those that are kept: its first ones, its last one, and one of few numbers a channel.
LEFT_OUT = (
    "5.conv2", "5.norm2", "6.conv", "6.norm", "8.conv", "8.norm", "8.shortcut", "9.conv", "9.norm", "11.conv",
    "11.norm2", "11.shortcut", "12.conv", "12.norm",
)  # fmt: skip
OTHERS = "layers left out"  # the size of their gradients together: clipping goes by the size of all
SKETCHES = ("seen", "before", "after", "local", "applied")
# Digits: a rank's own gradients are compared within 2 %, applied ones within 0.5 %, weights within float32. Where the
# gradient of one rank is much smaller than that of another, what is told of it takes more.
COARSE, FINE, WEIGHT = {"local": 3, "applied": 4}, {"local": 6, "applied": 6}, 7
CHANNELS = 16  # of running statistics
TICK_S = 1e-4
RUN = ("settings", "flags", "delays", "is_watched", "is_calm", "machines", "probe", "is_damaged")
SHORT = 3  # epochs of a trial whose steps are judged
# Where a recording was made is nobody's business.
PLACES = {sys.prefix: "/environment", sys.base_prefix: "/python", str(ROOT): "/course"}


_left_out = ContextVar("left_out", default=LEFT_OUT)


@contextmanager
def all_layers():
    """Leave no layer out in the block: where a mistake shows in one of those alone."""
    token = _left_out.set(())
    yield
    _left_out.reset(token)


def plain(trial, digits):
    """Return ``trial`` as plain values, gradients with ``digits`` (by name) as long as what it left is there."""
    run, outcome, left = trial.run, trial.outcome, trial.artifacts
    places = {str(left.folder.parent.parent): "/check", str(run.script.parent): "/submission"} | PLACES
    is_whole = run.settings["epochs"] <= SHORT
    text = {"failure": outcome.failure, "logs": outcome.logs, "stacks": outcome.stacks, "texts": left.texts}
    text |= {"script": str(run.script), "run_dir": str(left.folder), "data_dir": str(run.data_dir)}
    facts = _moved(text, places) | {name: getattr(run, name) for name in RUN}
    facts |= {"state": outcome.state, "exits": sorted(outcome.exits.items()), "images": len(run.data.train)}
    facts["ranks"] = _ranks(trial.evidence.ranks, is_whole, places, digits)
    facts["undivided"] = trial.undivided and [plain(one, digits) for one in trial.undivided]
    if is_whole:
        facts["weights"] = _weights(left.weights)
    if is_whole and run.is_watched:
        found = left.predictions
        facts["predictions"] = None if found is None else "".join(map(str, found.tolist()))
    return facts


def _weights(found):
    if not isinstance(found, Weights):
        return found
    return {"names": [name for name in found.names if _is_kept(name)], "sketches": _columns(found.sketches, WEIGHT)}


def _ranks(ranks, is_whole, places, digits):
    """Return what ``ranks`` did, with times in ticks: the first since the trial's beginning, others since the last."""
    began = min((one["time"] for rank in ranks for one in rank.events), default=0.0)
    kept = []
    for rank in ranks:
        events = list(_events(rank, is_whole))
        last = [one.after - 1 for one in rank.evaluations[:1]]
        kept.append(
            {
                "number": rank.number,
                **({"unused": rank.unused} if rank.unused else {}),
                "events": [{name: _moved(one[name], places) for name in one if name != "time"} for one in events],
                "event_ticks": _ticks([one["time"] - began for one in events], is_whole),
                "steps": [_step(one, is_whole, is_whole and at in last, digits) for at, one in enumerate(rank.steps)],
                "step_ticks": _ticks([one.time - began for one in rank.steps], is_whole),
                "evaluations": [_evaluation(one, is_whole) for one in rank.evaluations],
            }
        )
    return kept


def _events(rank, is_whole):
    """Yield the events that are no steps; of forward passes all but the first that teaches tell only when they were."""
    is_first = True
    for one in rank.events:
        if one["event"] == "forward" and is_whole:
            names = ("event", "time", "teaches", "is_averaged", "line")
            if is_first and one["teaches"]:
                names, is_first = (*names, "rows", "logits", "buffers", "generator"), False
            kept = {name: one[name] for name in names if name in one}
            if "buffers" in kept:
                kept["buffers"] = _buffers(kept["buffers"])
            if "logits" in kept:
                kept["logits"] = [_rounded(row, COARSE["applied"]) for row in kept["logits"]]
            yield kept
        elif one["event"] == "forward" and one["teaches"] and is_first:
            is_first = False
            yield {name: one[name] for name in ("event", "time", "teaches", "generator") if name in one}
        elif one["event"] not in ("forward", "backward", "step"):
            yield one


def _step(step, is_whole, has_buffers, digits):
    kept = {name: value for name, value in vars(step).items() if name != "time"}
    for name in SKETCHES:
        kept[name] = _columns(kept[name] if is_whole else {}, digits.get(name, WEIGHT))
    norms = {name: [one] for name, one in step.norms.items() if _is_kept(name)}
    others = [one for name, one in step.norms.items() if name not in norms]
    norms |= {OTHERS: [math.hypot(*others)]} if others else {}
    kept["norms"] = _columns(norms if is_whole else {}, COARSE["applied"])
    kept["weights"] = _rounded(step.weights, COARSE["local"])
    (kept["own_norm"],) = _rounded([step.own_norm], COARSE["applied"])
    kept["inputs"] = _rounded(step.inputs, WEIGHT)
    kept["buffers"] = _buffers(step.buffers, has_buffers)
    return kept


def _evaluation(one, is_whole):
    weights = _columns(one.weights if is_whole else {}, WEIGHT)
    return vars(one) | {"buffers": _buffers(one.buffers, is_whole), "weights": weights}


def _columns(found, digits):
    """Return sketches by name as the names and one flat list of numbers."""
    names = [name for name in found if _is_kept(name)]
    flat = [number for name in names for number in (found[name] or [None] * DIRECTIONS)]
    return {"names": names, "values": _rounded(flat, digits)}


def _buffers(found, are_judged=True):
    kept = {name: one for name, one in found.items() if are_judged and _is_kept(name)}
    return {name: _rounded(one[:CHANNELS], WEIGHT) if isinstance(one, list) else one for name, one in kept.items()}


def _is_kept(name):
    parts = bare(name).split(".")  # of which the first may be the name of a wrapper
    return not any(".".join(parts[at:]).startswith(_left_out.get()) for at in range(len(parts)))


def _rounded(numbers, digits):
    return [number if number is None else float(f"{number:.{digits}g}") for number in numbers]


def _ticks(times, are_judged):
    ticks = [round(time / TICK_S) if are_judged else 0 for time in times]
    return [later - earlier for earlier, later in pairwise([0, *ticks])]


def _moved(value, places):
    """Return ``value`` with folders of the machine, in texts within it, put as ``places`` says."""
    if isinstance(value, str):
        for place, name in places.items():
            value = value.replace(place, name)
        return value
    if isinstance(value, dict):
        return {key: _moved(one, places) for key, one in value.items()}
    return [_moved(one, places) for one in value] if isinstance(value, list) else value


class Recorded(Artifacts):
    """What a recorded run left; what was not recorded cannot be asked for."""

    @cached_property
    def weights(self):
        raise LookupError("the weights were not recorded")

    @cached_property
    def predictions(self):
        raise LookupError("the predictions were not recorded")


def revived(facts, dataset):
    """Return the ``Trial`` of plain values, to be judged; ``dataset`` names the data that it ran on."""
    data = data_of(dataset)
    if facts.get("images") == len(data.by_label.train):
        data = data.by_label
    left = Recorded(Path(facts["run_dir"]), data)
    vars(left)["texts"] = facts["texts"]
    if "weights" in facts:
        vars(left)["weights"] = _revived_weights(facts["weights"])
    if "predictions" in facts:
        told = facts["predictions"]
        vars(left)["predictions"] = None if told is None else torch.tensor(list(map(int, told)))
    run = Run(
        script=Path(facts["script"]),
        processes=len(facts["ranks"]),
        data=data,
        dataset=dataset,
        data_dir=Path(facts["data_dir"]),
        **{name: facts[name] for name in RUN if name in facts},
    )
    told = {name: facts[name] for name in ("state", "failure", "logs", "stacks")}
    return Trial(
        run=run,
        outcome=Outcome(exits=dict(facts["exits"]), **told),
        evidence=Evidence([_revived_rank(one) for one in facts["ranks"]], data, facts["settings"]),
        artifacts=left,
        undivided=facts["undivided"] and tuple(revived(one, dataset) for one in facts["undivided"]),
    )


data_of = cache(trial_data)


def _revived_weights(told):
    return Weights(tuple(told["names"]), _uncolumned(told["sketches"])) if isinstance(told, dict) else told


def _revived_rank(told):
    times = [at * TICK_S for at in accumulate(told["event_ticks"])]
    events = [one | {"time": time} for one, time in zip(told["events"], times, strict=True)]
    ticks = accumulate(told["step_ticks"])
    steps = [_revived_step(one, at * TICK_S) for one, at in zip(told["steps"], ticks, strict=True)]
    evaluations = [Evaluation(**one | {"weights": _uncolumned(one["weights"])}) for one in told["evaluations"]]
    return Rank(told["number"], events, steps, evaluations, told.get("unused", 0))


def _revived_step(told, time):
    sketches = {name: _uncolumned(told[name]) for name in SKETCHES}
    norms = {name: one for name, (one,) in _uncolumned(told["norms"]).items()}
    return Step(**told | sketches | {"norms": norms, "time": time})


def _uncolumned(told):
    """Return sketches by name, None for one that was not seen; of the same columns the same dictionary."""
    if id(told) not in _sketches:
        names, values = told["names"], told["values"]
        width = len(values) // max(1, len(names))
        parts = (values[at : at + width] for at in range(0, len(values), max(1, width)))
        _sketches[id(told)] = told, {name: None if None in one else one for name, one in zip(names, parts, strict=True)}
    return _sketches[id(told)][1]


_sketches = {}
