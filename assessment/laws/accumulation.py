"""The laws of gradient accumulation: a batch in micro-batches gives the batch's gradient, and is sent once."""

import itertools
import statistics

from assessment.laws.verdict import HOLDS, broken, unseen

ALIKE = 0.02
LARGE = 1000  # numbers in a message: more than losses and counts have, fewer than gradients


def takes_micro_batches(trial):
    """No forward pass of training takes more images than ``--micro-batch-size``.

    Counted are the images of every training pass, exactly. Not seen: passes of a network of which no gradient comes
    back.
    """
    asked = trial.evidence.settings["micro_batch_size"]
    sizes = [(size, rank, step) for rank in trial.evidence.ranks for step in rank.steps for size in step.sizes]
    if not sizes:
        return unseen("no rank trained")
    most, rank, step = max(sizes, key=lambda one: one[0])
    if most <= asked:
        return HOLDS
    return broken(
        f"--micro-batch-size {asked}, but a forward pass on rank {rank.number} takes {most} images at once", step.line
    )


def weighs_images_alike(trial):
    """In a step every image counts alike, however many were taken with it.

    Compared are the mean weights of the images of a step's passes, within ``ALIKE`` (2 %). Assumes a loss from
    which weights can be read off (cross-entropy, smoothed or weighted by class). Not seen: other losses.
    """
    for rank in trial.evidence.ranks:
        for number, step in enumerate(rank.steps, start=1):
            if len(step.sizes) < 2 or len(step.weights) != sum(step.sizes):
                continue
            ends = [sum(step.sizes[:at]) for at in range(len(step.sizes) + 1)]
            means = [statistics.fmean(step.weights[low:high]) for low, high in itertools.pairwise(ends)]
            few, many = min(means), max(means)
            if many > (1 + ALIKE) * few:
                sizes = [step.sizes[means.index(one)] for one in (many, few)]
                return broken(
                    f"in step {number} on rank {rank.number} an image among {sizes[0]} counts {many / few:.1f} times"
                    f" as much as one among {sizes[1]}",
                    step.line,
                )
    return HOLDS if any(rank.steps for rank in trial.evidence.ranks) else unseen("no rank trained")


def communicates_once(trial):
    """A step in micro-batches sends its gradients as often as one that takes the batch at once.

    Up to one and a half times as many messages of more than ``LARGE`` numbers, in the median step. Not seen: what
    C++ sends besides the wrapper.
    """
    if not trial.reference.evidence.rounds or not trial.evidence.rounds:
        return unseen("not every rank trained")
    if not takes_micro_batches(trial):
        return unseen("the batch is not divided")
    times, at_once = messages(trial.evidence.ranks[0]), messages(trial.reference.evidence.ranks[0])
    if times <= 1.5 * at_once:
        return HOLDS
    step = trial.evidence.ranks[0].steps[0]
    return broken(
        f"a step of {len(step.sizes)} micro-batches sends gradients {times:g} times, at once {at_once:g} times: only"
        " the last needs to",
        step.line,
    )


def messages(rank):
    """Return how often gradients leave a rank in a step, in the median: collectives, and backward passes of DDP.

    Before the first step weights are sent, so that one counts only where there is no other.
    """
    sent = [one["time"] for one in rank.named("collective") if (one["numel"] or 0) > LARGE]
    sent += [one["time"] for one in rank.named("forward") if one["teaches"] and one["is_averaged"]]
    times = [step.time for step in rank.steps]
    spans = itertools.pairwise(times if len(times) > 1 else [0.0, *times])
    return statistics.median(sum(low < time <= high for time in sent) for low, high in spans)
