"""Change one thing in the evidence of a right script: what was seen of a lab's solution, altered, and judged again.

    altered("03", each(steps(put(applied=times(2))), TWO))   # every gradient twice as large as it should be

A change gets the trials by name, copied so that it may put other things in the places of what is there.
"""

import csv
import json
from copy import copy
from dataclasses import replace
from io import StringIO

from outcomes import run_of
from recording import judged
from submitted import submissions

from assessment.trials.evidence import Evidence, Rank

RIGHT = {(one.lab, one.name): one for one in submissions("right")}


def copied(trial):
    """Return a copy of ``trial`` down to its steps and events, without what it is compared with."""
    ranks = [
        Rank(
            rank.number,
            *([copy(one) for one in kind] for kind in (rank.events, rank.steps, rank.evaluations)),
            unused=rank.unused,
        )
        for rank in trial.evidence.ranks
    ]
    evidence = Evidence(ranks, trial.evidence.data, trial.evidence.settings)
    return replace(trial, evidence=evidence, artifacts=copy(trial.artifacts), reference=None)


def altered(lab, change, script="the solution"):
    """Return the ``Result`` of judging a right script of ``lab`` once ``change`` has had its trials."""
    recorded = run_of(RIGHT[lab, script])
    trials = {name: copied(one) for name, one in recorded.items()}
    for name, one in recorded.items():
        for told in ("reference", "before"):
            whole = next((trials[other] for other in recorded if recorded[other] is getattr(one, told)), None)
            setattr(trials[name], told, whole)
    change(trials)
    return judged(RIGHT[lab, script], trials)


def each(what, *names):
    """Return a change that does ``what`` to each trial in ``names``."""

    def change(trials):
        for name in names:
            what(trials[name])

    return change


def steps(do, *numbers, rank=None):
    """Return what does ``do`` to steps, by default to all of all ranks; ``numbers`` count from 0."""

    def change(trial):
        for one in trial.evidence.ranks if rank is None else [trial.evidence.ranks[rank]]:
            for at, step in enumerate(one.steps):
                if not numbers or at in numbers:
                    do(step)

    return change


def put(**values):
    """Return what gives each of ``values``, made from what it holds by a function, to an object."""

    def change(thing):
        for name, make in values.items():
            setattr(thing, name, make(getattr(thing, name)))

    return change


def times(factor):
    """Return a function that multiplies numbers, also within lists and dictionaries."""

    def multiplied(value):
        if isinstance(value, dict):
            return {name: multiplied(one) for name, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [multiplied(one) for one in value]
        return factor * value if isinstance(value, (int, float)) else value

    return multiplied


def first(value):
    """Return a function that puts ``value`` first in a list."""
    return lambda values: [value, *values[1:]]


def always(value):
    return lambda _: value


def evaluations(do, rank=1, at=-1):
    """Return what does ``do`` to a validation of ``rank``, by default to the last."""
    return lambda trial: do(trial.evidence.ranks[rank].evaluations[at])


def events(kind, of=1, **values):
    """Return what changes facts of one kind of events of a rank; without ``values`` they are gone."""

    def change(trial):
        one = trial.evidence.ranks[of]
        kept = [event for event in one.events if event["event"] != kind or values]
        one.events = [event | values if event["event"] == kind else event for event in kept]

    return change


def happens(kind, of=1, **values):
    """Return what adds an event to a rank at its last step; texts may name a folder of the trial as {run_dir}."""

    def change(trial):
        places = {"run_dir": trial.artifacts.folder, "data_dir": trial.run.data_dirs[0]}
        told = {name: one.format(**places) if isinstance(one, str) else one for name, one in values.items()}
        one = trial.evidence.ranks[of]
        one.events.append({"event": kind, "time": one.steps[-1].time, "line": 7} | told)

    return change


def metrics(row=-1, **values):
    """Return what changes columns of a row of ``metrics.csv`` by functions of their numbers."""

    def change(trial):
        rows = trial.artifacts.metrics
        for name, make in values.items():
            rows[row][name] = make(float(rows[row][name]))
        file = StringIO()
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        trial.artifacts.texts = trial.artifacts.texts | {"metrics.csv": file.getvalue()}

    return change


def written(old, new, name="summary.json"):
    """Return what replaces a text in a file of the record."""

    def change(trial):
        text = trial.artifacts.texts[name]
        assert old in text, text
        trial.artifacts.texts = trial.artifacts.texts | {name: text.replace(old, new)}

    return change


def weights(make):
    """Return what gives a trial, where its saved weights were recorded, those that ``make`` makes of them."""

    def change(trial):
        if "weights" in vars(trial.artifacts):
            trial.artifacts.weights = make(trial.artifacts.weights)

    return change


def ends(state, **values):
    """Return what makes a trial end as ``state``."""

    def change(trial):
        trial.outcome = replace(trial.outcome, state=state, **values)

    return change


def an_epoch_short(trial):
    for rank in trial.evidence.ranks:
        rank.steps = rank.steps[: len(rank.steps) // 2]
        rank.evaluations = rank.evaluations[:1]


def the_same_order_again(trial):
    for rank in trial.evidence.ranks:
        half = len(rank.steps) // 2
        for one, other in zip(rank.steps[:half], rank.steps[half:], strict=True):
            other.rows, other.labels = one.rows, one.labels


def images_of_the_other_rank(count):
    def change(trial):
        one, other = (rank.steps[0] for rank in trial.evidence.ranks)
        other.rows = [*one.rows[:count], *other.rows[count:]]
        other.labels = [*one.labels[:count], *other.labels[count:]]

    return change


def prefixed(one):
    return replace(one, names=tuple(f"module.{name}" for name in one.names))


def moved(one):
    return replace(one, sketches=times(1.01)(one.sketches))


def a_layer_that_stands_still(trial):
    own = trial.evidence.ranks[0].steps[0].seen["1.weight"]
    steps(put(seen=lambda seen: seen | {"1.weight": own}))(trial)


def each_call_twice(trial):
    rank = trial.evidence.ranks[0]
    rank.events = [one for one in rank.events for _ in range(1 + (one["event"] == "call"))]


def first_statistics(make):
    """Return what changes the buffers after the first forward pass of rank 0."""

    def change(trial):
        rank = trial.evidence.ranks[0]
        rank.events = [one | {"buffers": make(one["buffers"])} if "buffers" in one else one for one in rank.events]

    return change


def profile(**values):
    """Return what changes numbers in ``summary.json`` or in its ``step_ms``."""

    def change(trial):
        told = trial.artifacts.summary
        for name, make in values.items():
            place = told if name in told else told["step_ms"]
            place[name] = make(place[name])
        trial.artifacts.texts = trial.artifacts.texts | {"summary.json": json.dumps(told)}

    return change


def no_step_without_communication(trial):
    for rank in trial.evidence.ranks:
        rank.events = [one for one in rank.events if one["time"] <= rank.steps[-1].time]


def every_other_message_twice(trial):
    for rank in trial.evidence.ranks:
        sent = [one for one in rank.events if one.get("name") == "batch_isend_irecv"]
        again = {id(one) for one in sent[::2]}
        rank.events = [one for event in rank.events for one in [event] * (1 + (id(event) in again))]


def others_than_the_undivided(trial):
    """Give the run as many processes other weights at its end than the run as one."""
    many, one = trial.undivided
    trial.undivided = replace(many, artifacts=copy(many.artifacts)), one
    weights(moved)(trial.undivided[0])


def as_many(do):
    """Return what changes the run as many processes, and leaves the run as one as it was."""

    def change(trial):
        many, one = trial.undivided
        trial.undivided = copied(many), one
        do(trial.undivided[0])

    return change


def slower(factor):
    """Return what makes a trial one on a machine that is so many times slower, as its record says as well."""

    def change(trial):
        for rank in trial.evidence.ranks:
            rank.events = [one | {"time": factor * one["time"]} for one in rank.events]
            for step in rank.steps:
                step.time *= factor
        for at, row in enumerate(trial.artifacts.metrics):
            told = {name: times(factor) for name in ("time_s", "epoch_time_s") if row.get(name)}
            told |= {"images_per_s": times(1 / factor)} if row.get("images_per_s") else {}
            metrics(at, **told)(trial)

    return change


def held_up(seconds):
    """Return what makes all ranks take longer over the first pass of the second epoch, as their record says too."""

    def change(trial):
        epochs = [trial.evidence.epochs(rank.number) for rank in trial.evidence.ranks]
        if not all(len(own) > 1 and own[1] for own in epochs):
            return
        for rank, own in zip(trial.evidence.ranks, epochs, strict=True):
            step = own[1][0].time
            passed = max(one["time"] for one in rank.named("forward") if one["teaches"] and one["time"] <= step)
            for one in rank.events:
                one["time"] += seconds if one["time"] > passed else 0.0
            for one in rank.steps:
                one.time += seconds if one.time > passed else 0.0
        for at in range(1, len(trial.artifacts.metrics)):
            metrics(at, time_s=lambda told: told + seconds)(trial)
        if len(trial.artifacts.metrics) > 1:
            took = float(trial.artifacts.metrics[1]["epoch_time_s"])
            longer = times((took + seconds) / took)
            metrics(1, epoch_time_s=longer, images_per_s=times(took / (took + seconds)))(trial)

    return change
