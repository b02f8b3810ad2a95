"""What a run did, rank by rank: the recorder's events put into steps, epochs and evaluations.

In events ``rows`` are the images of a forward pass: their indices in the split that it is about, None for others. An
image is found by its pixels, however bright; one of training that was changed more than that, by where it was fetched.

evidence = Evidence.read(folder, world_size, data, settings)
evidence.ranks[1].steps[0].rows      # the training images of rank 1's first optimizer step
"""

import itertools
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch

from assessment.trials.identify import identify

NOTHING = ("local", "applied", "norms", "weights_before", "weights_after")  # what an optimizer would show
SAME = 0.02  # fingerprints of different images are further apart than this, roundings of one image are not


@dataclass
class Step:
    """One optimizer step of one rank, with all forward passes whose gradients it applied."""

    rows: list  # index of each training image, None for one that is not in the training set
    labels: list  # what the loss took for each image's label
    weights: list  # weight of each image in this rank's loss: 1 / images for a mean
    sizes: list  # images of each forward pass
    seen: dict  # the weights that the forward passes used, as sketches by name
    rates: list
    local: dict  # name -> sketch of this rank's own gradient, None where it was not seen
    applied: dict  # name -> sketch of the gradient that the optimizer applied
    norms: dict  # name -> size of the applied gradient
    before: dict  # name -> sketch of the weight before the step
    after: dict
    clipped: bool
    in_training_mode: bool
    line: int | None
    time: float
    dtype: str
    buffers: dict  # of the last forward pass, once it is done
    own_norm: float | None  # size of this rank's own gradient, where it was one pass
    inputs: list  # the sum of the fingerprints of what the network was given
    correct: int | None  # images whose own label was the network's first choice; None where its choices were not seen


@dataclass
class Evaluation:
    """The forward passes without backward between two training steps of one rank."""

    after: int  # optimizer steps before it
    rows: list  # index of each test image, None for one that is not in the test set
    in_training_mode: bool
    buffers: dict
    line: int | None
    weights: dict  # of the network that is judged, as sketches by name
    training_images: int = 0  # that were judged besides
    correct: int | None = None  # of the test images, by their own labels; None where it was not seen
    pixels: list = field(default_factory=list)  # the least and the greatest that the network was given


@dataclass
class Rank:
    """What one rank did."""

    number: int
    events: list
    steps: list = field(default_factory=list)
    evaluations: list = field(default_factory=list)
    unused: int = 0  # images of training in passes whose outcome teaches nobody

    def named(self, event):
        """Return the events of one kind, in order."""
        return [one for one in self.events if one["event"] == event]


@dataclass
class Evidence:
    """What all ranks of one run did, and the data that they did it to."""

    ranks: list
    data: object
    settings: dict

    @classmethod
    def read(cls, folder, world_size, data, settings, is_whole=True):
        """Read what the recorder wrote into ``folder``; ``is_whole`` where the run came to its end."""
        events = {rank: [] for rank in range(world_size)}
        for path in sorted(Path(folder).glob("*.jsonl")):
            whole, _, _unfinished = path.read_text(encoding="utf-8").rpartition("\n")  # a rank may die while it writes
            written = [json.loads(line) for line in whole.splitlines()]
            told = [one["rank"] for one in written if one["event"] in ("start", "group") and one["rank"] is not None]
            if told and int(told[-1]) in events:
                events[int(told[-1])] += written
        ranks = [Rank(rank, sorted(found, key=lambda one: one["time"])) for rank, found in events.items()]
        for rank in ranks:
            identify(rank, data, is_whole)
            _assemble(rank, data)
        return cls(ranks, data, settings)

    @property
    def world_size(self):
        return len(self.ranks)

    @property
    def rounds(self):
        """Return the steps that all ranks took, each as the list of its ranks' ``Step``."""
        return list(zip(*(rank.steps for rank in self.ranks), strict=False))

    def epochs(self, rank):
        """Return a rank's steps cut into epochs: at validation, where it stands between all of them.

        Some scripts validate on rank 0 alone, some in the end alone or within an epoch. Then the steps are cut into
        as many equal parts as times the training set was seen.
        """
        steps = self.ranks[rank].steps
        cuts = sorted({0, len(steps), *(one.after for other in self.ranks for one in other.evaluations)})
        seen = sum(len(step.rows) for other in self.ranks for step in other.steps)
        count = max(1, round(seen / len(self.data.train)))
        if len(cuts) - 1 == self.settings["epochs"] or not steps or len(steps) % count:
            return [steps[low:high] for low, high in itertools.pairwise(cuts)]
        size = len(steps) // count
        return [steps[at : at + size] for at in range(0, len(steps), size)]


def _assemble(rank, data):
    """Fill in the steps and evaluations of ``rank`` from its events."""
    told = {one["number"]: one for one in rank.named("backward")}
    waiting, clipped, stepped = [], False, None  # and the optimizer that has taken the last step
    has_optimizer = bool(rank.named("step"))
    for event in rank.events:
        kind = event["event"]
        if kind == "forward" and event["teaches"]:
            waiting.append(event | {"told": told.get(event["number"])})
            if not has_optimizer:  # weights moved by the script itself, or by another rank: a step a forward pass
                unseen = {name: {} for name in NOTHING} | {"rates": [], "time": event["time"]}
                rank.steps.append(_step(unseen, waiting, False, data))
                waiting = []
        elif kind == "forward" and "rows" in event:
            _judged(rank, event)
        elif kind == "call" and event["name"].startswith("clip_grad"):
            clipped = True
        elif kind == "step" and not waiting and event["optimizer"] != stepped and _other_half(rank.steps, event):
            stepped = event["optimizer"]
            last = rank.steps[-1]
            for mine, theirs in _halves(last, event):
                mine.update(theirs)
            last.rates += event["rates"]
        elif kind == "zeroed":
            for one in waiting:
                one["is_thrown_away"] = bool(one["told"]) and one["told"]["time"] < event["time"]
        elif kind == "step":
            left = [one for one in waiting if not one.get("is_thrown_away")]  # a pass whose gradients nobody applies
            rank.steps.append(_step(event, left or waiting, clipped, data))
            waiting, clipped, stepped = [], False, event["optimizer"]


def _judged(rank, event):
    """Add a forward pass without backward to the evaluation that it belongs to."""
    last = rank.evaluations[-1] if rank.evaluations else None
    if last is None or last.after != len(rank.steps):
        buffers, weights = event["buffers"], event.get("weights", {})
        last = Evaluation(len(rank.steps), [], False, buffers, event["line"], weights, correct=0)
        rank.evaluations.append(last)
    last.rows += event["rows"]
    last.training_images += event["training_images"]
    last.in_training_mode |= event["layers_in_training"]
    last.correct = None if None in (last.correct, event["correct"]) else last.correct + event["correct"]
    pixels = [*last.pixels, *event.get("pixels", [])]
    last.pixels = [min(pixels), max(pixels)] if pixels else []


def _halves(step, event):
    names = ("local", "applied", "norms"), ("weights_before", "weights_after")
    yield from ((getattr(step, name), event[name]) for name in names[0])
    yield from ((getattr(step, name.removeprefix("weights_")), event[name]) for name in names[1])


def _other_half(steps, event):
    """Say whether ``event`` belongs to the last of ``steps``: its optimizer holds other weights."""
    return bool(steps) and not (steps[-1].before.keys() & event["weights_before"].keys())


def _step(event, forwards, clipped, data):
    rows, labels, weights, correct = [], [], [], 0
    for forward in forwards:
        rows += forward["rows"]
        known, logits = [data.label(row) for row in forward["rows"]], forward.get("logits", [])
        correct += sum(label == one.index(max(one)) for label, one in zip(known, logits, strict=False))
        if logits and forward["told"] and forward["told"]["gradient"]:
            told = read_off(logits, forward["told"]["gradient"], known)
            labels += told[0]
            weights += told[1]
    first, last = (forwards[0], forwards[-1]) if forwards else ({}, {})
    return Step(
        rows=rows,
        labels=labels,
        weights=weights,
        sizes=[len(forward["rows"]) for forward in forwards],
        seen=first.get("weights", {}),
        rates=event["rates"],
        local=event["local"],
        applied=event["applied"],
        norms=event["norms"],
        own_norm=event.get("own_norm"),
        before=event["weights_before"],
        after=event["weights_after"],
        clipped=clipped,
        in_training_mode=any(forward["in_training"] for forward in forwards) or not forwards,
        line=first.get("line"),
        time=event["time"],
        dtype=first.get("dtype", ""),
        buffers=last.get("buffers", {}),
        inputs=[sum(column) for column in zip(*(one["inputs"] for one in forwards if one["inputs"]), strict=True)],
        correct=correct if all("logits" in one for one in forwards) else None,
    )


def read_off(logits, gradient, known):
    """Return the label that the loss took for each image, and the weight that it gave it.

    Read from what a loss sends back to the logits. Cross-entropy sends weight x (softmax - label), the label as 0
    and 1. With labels smoothed by e it is weight x (softmax - label + e (label - 1 / classes)): then weight and e
    are solved for over the batch. ``known`` are the images' own labels, None where an image is not known. Of a loss
    of another kind (squared errors, mixed labels) nothing can be read off: two empty lists.
    """
    chances, gradient = torch.tensor(logits).softmax(dim=1), torch.tensor(gradient)
    gradient = gradient - chances * gradient.sum(dim=1, keepdim=True)  # where log-probabilities were returned
    lowest = gradient.argmin(dim=1)
    if not gradient.isfinite().all():
        return lowest.tolist(), [math.nan] * len(lowest)
    own = torch.tensor([low if label is None else label for low, label in zip(lowest.tolist(), known, strict=False)])
    own = own if len(own) == len(lowest) else lowest
    for labels in (lowest, own):
        told = torch.nn.functional.one_hot(labels, chances.shape[1]).float()
        error = chances - told
        weights = gradient.norm(dim=1) / error.norm(dim=1).clamp_min(1e-12)
        if (gradient - weights.unsqueeze(1) * error).norm() < 1e-3 * gradient.norm():
            return labels.tolist(), weights.tolist()
    basis = torch.stack([error.flatten(), (told - 1 / chances.shape[1]).flatten()], dim=1)
    solved = torch.linalg.lstsq(basis, gradient.flatten().unsqueeze(1), driver="gelsd").solution
    if (basis @ solved - gradient.flatten().unsqueeze(1)).norm() < 1e-2 * gradient.norm():
        return own.tolist(), solved[0].expand(len(own)).tolist()
    return [], []


def nearest(known, rows):
    """Return the index in ``known`` (fingerprints) of each of ``rows``, None where none is near."""
    if not rows:
        return []
    distance = torch.cdist(torch.tensor(rows), known)
    closest = distance.min(dim=1)
    return [int(at) if near < SAME else None for near, at in zip(closest.values, closest.indices, strict=True)]
