"""The laws of BatchNorm on many ranks: statistics of all of them (lab 04), running ones put together (lab 02)."""

import torch

from assessment.laws.calls import ended, returned
from assessment.laws.verdict import HOLDS, Verdict, broken, listed, unseen

NEAR = 1e-2  # relative
ROUNDED = 0.05  # of numbers of size 1 in bfloat16, which are off by 0.01 at most; from sums in bfloat16 by 0.2
COMBINED = 2e-5
ALIKE = 1e-4  # of running statistics: leaving out count / (count - 1) moves them by more


def _first(trial):
    """Return the first teaching forward pass of each rank, None where there was none."""
    return [next((one for one in rank.named("forward") if one["teaches"]), None) for rank in trial.evidence.ranks]


def _logits(trial):
    """Return the logits of the first step by training image."""
    found = {}
    for one in _first(trial):
        found.update(zip(one["rows"], one["logits"], strict=True))
    return found


def computes_as_undivided(trial):
    """The logits of the first step are those of one process with the undivided batch."""
    if not all(_first(trial)) or not all(_first(trial.reference)):
        return unseen("not every rank trained")
    ours, whole = _logits(trial), _logits(trial.reference)
    shared = sorted(set(ours) & set(whole) - {None})
    if len(shared) < len(ours) / 2:
        return unseen("the two runs trained on other images")
    apart = _distance([ours[row] for row in shared], [whole[row] for row in shared])
    return (
        HOLDS
        if apart < NEAR
        else broken(
            f"in the first step the outputs differ by {100 * apart:.0f} % from one process with the whole batch",
            _first(trial)[0]["line"],
        )
    )


def _distance(ours, theirs):
    ours, theirs = torch.tensor(ours), torch.tensor(theirs)
    return ((ours - theirs).norm() / theirs.norm().clamp_min(1e-12)).item()


def is_used(trial):
    """``--sync-batchnorm`` makes the ranks exchange something while a training batch goes forward.

    Any collective but a barrier between the last barrier and the end of the first pass counts. Not seen: what it
    carries.
    """
    if not all(_first(trial)):
        return unseen("not every rank trained")
    if computes_as_undivided(trial):
        return HOLDS
    for rank, first in zip(trial.evidence.ranks, _first(trial), strict=True):
        earlier = [one for one in rank.named("collective") if one["time"] < first["time"]]
        last_barrier = max((one["time"] for one in earlier if one["name"] == "barrier"), default=0.0)
        if not any(one["time"] > last_barrier and one["name"] != "barrier" for one in earlier):
            return broken(f"with --sync-batchnorm rank {rank.number} exchanged nothing in the first forward pass")
    return HOLDS


def takes_statistics_of_all(trial):
    """BatchNorm normalises by mean and variance over the images of all ranks.

    Compared are the logits of the first step, image by image, within ``NEAR`` (1 %): rounding moves them by a
    hundredth of that, statistics of a share by tens of per cent. Assumes that both runs begin with the same
    weights. Not seen: later steps.
    """
    return computes_as_undivided(trial) if is_used(trial) else unseen("the layers are not used yet")


def computes_in_float32(trial):
    """Images in bfloat16 are normalised by mean and variance in float32: sums in bfloat16 lose what the two are about.

    Seen is a layer ``SyncBatchNorm`` that is called by itself, on images whose mean is eight times their spread.

    Off is more than ``ROUNDED``. Not seen: a layer of another name.
    """
    calls = [returned(trial, "normalise", rank) for rank in range(trial.evidence.world_size)]
    if not all(len(own) == 2 for own in calls) or any("raised" in one for own in calls for one in own):
        return ended(trial, "normalise") and Verdict(True)  # what breaks off shows in a whole run
    images = torch.cat([torch.tensor(own[0]["given"][0]) for own in calls])
    wanted = torch.nn.functional.batch_norm(images, None, None, training=True).split(len(images) // len(calls))
    off = [
        max(
            (torch.tensor(own[at]["returned"]) - one).abs().max().item() for own, one in zip(calls, wanted, strict=True)
        )
        for at in range(2)
    ]
    if off[0] > ROUNDED or off[1] < ROUNDED:
        return HOLDS  # in float32 the whole runs tell
    return broken(
        f"images in bfloat16 come out {off[1]:.2f} off, in float32 they do not: turn them into float32 before they"
        " are added up"
    )


def sends_gradients_through(trial):
    """The gradient of the first step is that of the undivided batch: backward sums over the ranks, too.

    Compared are sketches of the first step's applied gradients, within ``NEAR`` (1 %). Not seen: later steps.
    """
    if not takes_statistics_of_all(trial):
        return unseen("it shows once forward is right")
    if not trial.evidence.ranks[0].steps or not trial.reference.evidence.ranks[0].steps:
        return unseen("no step was seen")
    ours, whole = trial.evidence.ranks[0].steps[0], trial.reference.evidence.ranks[0].steps[0]
    names = sorted(set(ours.applied) & set(whole.applied))
    apart = _distance([ours.applied[name] for name in names], [whole.applied[name] for name in names])
    return (
        HOLDS
        if apart < NEAR
        else broken(
            f"forward is right, but the gradient of the first step differs by {100 * apart:.0f} % from one process",
            ours.line,
        )
    )


def keeps_running_statistics(trial):
    """After the first forward pass the running statistics are those of one process with the undivided batch.

    Compared within ``ALIKE`` (1e-4): count / (count - 1) moves the variance by more. Not seen: later steps, and
    channels beyond those that the recorder keeps.
    """
    if not takes_statistics_of_all(trial):
        return unseen("it shows once forward is right")
    ours, whole = _first(trial)[0]["buffers"], _first(trial.reference)[0]["buffers"]
    names = [name for name in whole if name.endswith(("running_mean", "running_var"))]
    missing = [name for name in names if name not in ours]
    if missing:
        return broken(f"the network has no {listed(missing)}")
    off = [name for name in names if _distance(ours[name], whole[name]) > ALIKE]
    return HOLDS if not off else broken(f"after one step these differ from those of the undivided batch: {listed(off)}")


def combines_running_statistics(trial):
    """After an epoch all ranks hold one mean and variance: those of the ranks, put together by their shares.

    mean = sum of f mean_r, variance = sum of f (variance_r + (mean_r - mean)^2), f = own images / images of a step.

    Within ``COMBINED`` (2e-5). Not seen: later epochs, and channels beyond those that the recorder keeps.
    """
    ranks = trial.evidence.ranks
    if not all(rank.steps and rank.evaluations for rank in ranks):
        return unseen("no validation was seen")
    evaluations = [rank.evaluations[0] for rank in ranks]
    before = [rank.steps[one.after - 1].buffers for rank, one in zip(ranks, evaluations, strict=True)]
    counts = [len(rank.steps[0].rows) for rank in ranks]
    if not sum(counts):
        return unseen("no image was seen in the first step")
    shares = [count / sum(counts) for count in counts]
    for name in (name for name in before[0] if name.endswith("running_mean")):
        spread = name.replace("running_mean", "running_var")
        means, variances = (torch.tensor([one[key] for one in before]) for key in (name, spread))
        share = torch.tensor(shares).unsqueeze(1)
        mean = (share * means).sum(dim=0)
        variance = (share * (variances + (means - mean).square())).sum(dim=0)
        for rank, one in enumerate(evaluations):
            for key, wanted in ((name, mean), (spread, variance)):
                if _distance(one.buffers[key], wanted.tolist()) > COMBINED:
                    found = _what(one.buffers[key], before[rank][key], share, variances, key)
                    return broken(f"after an epoch {key} on rank {rank} is {found}")
    return HOLDS


def _what(found, own, share, variances, key):
    if _distance(found, own) < COMBINED:
        return "still that of its own images"
    if key.endswith("var") and _distance(found, (share * variances).sum(dim=0).tolist()) < COMBINED:
        return "the mean of the ranks' variances, which leaves out how far their means are apart"
    if key.endswith("var") and _distance(found, variances.mean(dim=0).tolist()) < COMBINED:
        return "the plain mean of the ranks' variances"
    return "not the one put together by shares"
