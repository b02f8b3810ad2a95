"""The law of gradients: every step applies the mean gradient of all images that all ranks saw in it.

What each rank applied is solved for, by least squares over sketches, as a sum of all ranks' local gradients:
applied = c_0 local_0 + c_1 local_1 + ... Together with the weight that each image had in its rank's loss
this says how much every image counts, whoever did the averaging: DDP, hooks, flat buckets, a loss divided by
the world size and a sum, accumulation. Each must count 1 / (images of the step).
"""

import math

import torch

from assessment.laws.verdict import HOLDS, broken, listed, unseen

CLOSE = 0.03  # compressed gradients (16 bits) are nearer than this, mistakes are not
FIT = 0.02
BLUR = 0.1
MANY = 1000  # numbers in a collective, of which sums of losses and counts have a few
CLIPPED = "clipped"  # the kind of a verdict: a clip that binds would look like that
UNEVEN = "uneven"  # another kind: shares of several sizes, in a loss that blurs how much an image weighs
CERTAIN = "certain"  # a third kind: nothing that a script may do to the mean makes a gradient so


def gradients_are_averaged(evidence):
    """Every step applies the mean gradient over all ranks' images."""
    rounds = [steps for steps in evidence.rounds if all(step.rows for step in steps)]
    if not rounds or not any(own(steps) for steps in rounds):
        return unseen("no rank's own gradients were seen")
    for number, steps in enumerate(rounds, start=1):
        lost = next(filter(is_no_number, steps), None)
        if lost:
            return broken(f"the gradient of step {number} is no number: the training has diverged", lost.line, CERTAIN)
    found = [count_images(steps) for steps in rounds]
    if weights_are_averaged(rounds, found):
        return HOLDS
    clipped_apart = clips_its_own(rounds, found)
    if clipped_apart is not None:
        return clipped_apart
    scales = []
    for number, (steps, counts) in enumerate(zip(rounds, found, strict=True), start=1):
        for rank, (count, rest, step) in enumerate(zip(*counts, steps, strict=True)):
            if rest > FIT:
                return mixed(rounds, number, rank)
            if is_unequal(count):
                return unequal(count, rank, number, steps, line_of_an_average(evidence.ranks[rank]))
            scales.append((number, count.mean().item(), step))
    return scaled(scales, evidence.world_size)


def is_no_number(step):
    """Say whether a gradient of ``step``, a rank's own or the applied one, is infinite or not a number."""
    sketched = (number for one in step.local.values() if one for number in one)
    return not all(map(math.isfinite, (*step.norms.values(), *sketched)))


def own(steps):
    """Return the names of the weights whose local gradients all ranks showed."""
    names = [set(step.applied) & {name for name, one in step.local.items() if one} for step in steps]
    return sorted(set.intersection(*names))


def stacked(sketches, names):
    return torch.tensor([sketches[name] for name in names], dtype=torch.float64).flatten()


def count_images(steps):
    """Return, for each rank, how much the images of every rank count in what it applied, and what is left over.

    1 is what is right: the weight of one image times the images of the step. What is left over is relative.
    """
    names = own(steps)
    if not names:
        return [torch.ones(len(steps))] * len(steps), [0.0] * len(steps)
    total = sum(len(step.rows) for step in steps)
    weight = torch.tensor([image_weight(step, len(steps), total) * total for step in steps])
    found, rests = shares(steps, names)
    return [share.float() * weight for share in found], rests


def shares(steps, names):
    """Return, for each rank, how much of every rank's own gradient is in what it applied, and what is left over."""
    local = torch.stack([stacked(step.local, names) for step in steps], dim=1)
    found, rests = [], []
    for step in steps:
        applied = stacked(step.applied, names)
        share = torch.linalg.lstsq(local, applied.unsqueeze(1), driver="gelsd").solution[:, 0]
        rests.append(((local @ share - applied).norm() / applied.norm().clamp_min(1e-12)).item())
        found.append(share)
    return found, rests


def are_means(evidence):
    """Say whether every step applies the plain mean of the ranks' own gradients, of shares of one size."""
    for steps in evidence.rounds:
        names = own(steps)
        if not names or len({len(step.rows) for step in steps}) > 1:
            return False
        found, rests = shares(steps, names)
        wanted = torch.full((len(steps),), 1 / len(steps), dtype=torch.float64)
        if max(rests) > FIT or any((share - wanted).abs().max() > CLOSE / len(steps) for share in found):
            return False
    return bool(evidence.rounds)


def weighs_images(evidence):
    """Say whether the loss weighs the images of a pass by itself: by their class, or by how hard they are."""
    weights = (torch.tensor(step.weights) for rank in evidence.ranks for step in rank.steps if len(step.weights) > 1)
    return any(one.std() > BLUR * one.mean() for one in weights)


def image_weight(step, world_size, total):
    """Return how much each image weighs in a rank's loss, taken as the simple fraction that is nearest.

    Losses other than plain cross-entropy (label smoothing, a penalty) blur what is measured a little. Where a loss
    weighs its images by itself (by their class, by how hard they are), it is the mean of their weights.
    """
    measured = measured_weight(step)
    nearest = simple_weight(step, world_size, total)
    return nearest if abs(nearest / max(measured, 1e-12) - 1) < 0.25 else measured


def measured_weight(step):
    """Return how much one image weighs in a rank's loss as far as it was seen, and an equal part where it was not."""
    if not step.weights or len(step.weights) != len(step.rows):
        return 1 / len(step.rows)
    weights = torch.tensor(step.weights)
    return (weights.median() if weights.std() < BLUR * weights.mean() else weights.mean()).item()


def simple_weight(step, world_size, total):
    """Return the simple fraction that is nearest to what one image weighs in a rank's loss."""
    measured, images, passes = measured_weight(step), len(step.rows), len(step.sizes)
    simple = [1 / (images * parts) for parts in (1, world_size, 1 / world_size, 1 / passes, world_size / passes)]
    simple += [1.0, 1 / total]
    return min(simple, key=lambda one: abs(one / measured - 1) if measured else one)


def weighs_simply(steps):
    """Say whether an image weighs a simple fraction in every rank's loss, as with plain cross-entropy."""
    total = sum(len(step.rows) for step in steps)
    return all(
        abs(simple_weight(step, len(steps), total) / max(measured_weight(step), 1e-12) - 1) < CLOSE for step in steps
    )


def weights_are_averaged(rounds, found):
    """Say whether the ranks average their weights after each step instead: the same, where steps are linear (SGD)."""
    if not all(is_linear(step) for step in rounds[0]):
        return False
    for (steps, counts), following in zip(zip(rounds, found, strict=True), rounds[1:], strict=False):
        names = sorted(set.intersection(*(set(step.after) & set(step.seen) for step in (*steps, *following))))
        if not names or not all(is_local(count, rank) for rank, count in enumerate(counts[0])):
            return False
        mean = torch.stack([stacked(step.after, names) for step in steps]).mean(dim=0)
        moved = (mean - stacked(steps[0].before, names)).norm()
        if any((stacked(step.seen, names) - mean).norm() > FIT * moved for step in following):
            return False
    return len(rounds) > 1


def is_linear(step):
    """Say whether the first step goes along its gradient (and, with weight decay, along the weights)."""
    names = sorted(set(step.applied) & set(step.before) & set(step.after))
    if not names:
        return False
    gradient, weights = stacked(step.applied, names), stacked(step.before, names)
    moved = weights - stacked(step.after, names)
    columns = torch.stack([gradient, weights], dim=1)
    share = torch.linalg.lstsq(columns, moved.unsqueeze(1), driver="gelsd").solution[:, 0]
    return bool((columns @ share - moved).norm() <= FIT * moved.norm())


def is_local(count, rank):
    """Say whether a rank's images alone count in what it applied."""
    others = torch.cat([count[:rank], count[rank + 1 :]])
    return len(others) > 0 and others.abs().max() < CLOSE * count[rank].abs()


def is_unequal(count):
    """Say whether the images of the ranks do not count alike in what a rank applied."""
    return bool(count.max() - count.min() > CLOSE * count.abs().max().clamp_min(1e-9))


def clips_its_own(rounds, found):
    """Return the verdict on ranks of which each clips its own gradient, before they are averaged; None elsewhere.

    Then each rank's gradient is in the sum as often as 1 / ranks, or where it was larger than the limit, as much less
    as it was larger: that size, times what it counts, is the same number for all of them.
    """
    if any(rest > FIT for _, rests in found for rest in rests):
        return None
    seen = [
        (count, step.own_norm or 0.0, steps)
        for steps, (counts, _) in zip(rounds, found, strict=True)
        for count, step in zip(counts[0].tolist(), steps, strict=True)
    ]
    less = [(count * size, steps) for count, size, steps in seen if 0 < count < 1 - CLOSE]
    if len(less) < 3 or not any(map(is_unequal, (counts[0] for counts, _ in found))):
        return None
    limits = torch.tensor([limit for limit, _ in less])
    limit = limits.median().item()
    is_limited = (limits / limit - 1).abs().max() < CLOSE
    is_whole = all(
        abs(count - 1) < CLOSE and size < limit * (1 + CLOSE) for count, size, _ in seen if count >= 1 - CLOSE
    )
    if not limit or not is_limited or not is_whole:
        return None
    return broken(
        f"each rank clips its own gradient, to a size of {limit:.3g}, before they are averaged: a mean of clipped"
        " gradients is not the clipped mean",
        less[0][1][0].line,
        CERTAIN,
    )


def mixed(rounds, number, rank):
    """Name what else a gradient holds that is no sum of the ranks' local ones."""
    steps = rounds[number - 1]
    names, step = own(steps), steps[rank]
    local = torch.stack([stacked(one.local, names) for one in steps], dim=1)
    applied = stacked(step.applied, names)
    if number > 1:
        earlier = stacked(rounds[number - 2][rank].applied, names)
        columns = torch.cat([local, earlier.unsqueeze(1)], dim=1)
        share = torch.linalg.lstsq(columns, applied.unsqueeze(1), driver="gelsd").solution[:, 0]
        rest = (columns @ share - applied).norm() / applied.norm()
        if rest < FIT and abs(share[-1]) > CLOSE:
            return broken(
                f"the gradient of step {number} on rank {rank} still holds {share[-1]:.2f} times that of step"
                f" {number - 1}",
                step.line,
                CERTAIN if share[-1] > 1 - CLOSE else "",  # less would be a memory that a script means
            )
    mean = {name: torch.tensor([one.local[name] for one in steps]).mean(dim=0) for name in names}
    apart = [name for name in names if not near(torch.tensor(step.applied[name]), mean[name])]
    kept = [name for name in apart if near(torch.tensor(step.applied[name]), torch.tensor(step.local[name]))]
    if kept and len(kept) < len(names):
        return broken(
            f"rank {rank} applies the mean gradient to {len(names) - len(apart)} of {len(names)} parameters, but its"
            f" own to {listed(kept)}",
            step.line,
        )
    return broken(
        f"in step {number} the gradient that rank {rank} applies is no mean of the ranks' gradients"
        + (f" (parameters {listed(apart)})" if len(apart) < len(names) else ""),
        step.line,
    )


def near(one, other):
    return (one - other).norm() <= CLOSE * other.norm().clamp_min(1e-9)


def unequal(count, rank, number, steps, line=None):
    """Name a gradient in which the images of the ranks do not count alike.

    A loss may weigh the images of one share more than those of another, as long as both have as many. Shares of
    several sizes make it certain where an image weighs a simple fraction: in a loss that blurs it (focal, smoothed)
    the wrong fraction may be the nearest. ``line`` is that of an average that the rank took before its step.
    """
    if is_local(count, rank):
        told = f"rank {rank} applies its own gradient alone: what the others computed in step {number} does not count"
        if line:
            told += f"; what line {line} sends round does not come back into .grad"
        return broken(told, steps[rank].line, CERTAIN)
    told = ", ".join(f"{one:.2f} on rank {other}" for other, one in enumerate(count.tolist()))
    kind = "" if len({len(step.rows) for step in steps}) == 1 else CERTAIN if weighs_simply(steps) else UNEVEN
    return broken(
        f"in step {number} images count unequally in what rank {rank} applies (1 is right): {told}",
        steps[rank].line,
        kind,
    )


def line_of_an_average(rank):
    """Return the line of the collective of many numbers that ``rank`` entered in its first step, None without one."""
    began = next((one["time"] for one in rank.named("forward") if one["teaches"]), math.inf)
    calls = [one for one in rank.named("collective") if began < one["time"] < rank.steps[0].time]
    return next((one["line"] for one in calls if (one["numel"] or 0) >= MANY), None)


def scaled(scales, world_size):
    """Judge a gradient that is the mean times a number: 1 is right, and less where it was clipped."""
    off = [(number, scale, step) for number, scale, step in scales if abs(scale - 1) > CLOSE]
    if not off:
        return HOLDS
    sizes = torch.tensor([sum(norm**2 for norm in step.norms.values()) ** 0.5 for _, _, step in off])
    is_one_size = len(off) > 1 and sizes.std() < 0.01 * sizes.mean()
    number, scale, step = off[0]
    kind = CERTAIN if any(scale > 1 for _, scale, _ in off) else ""
    if not kind and (all(step.clipped for *_, step in off) or is_one_size):
        kind = CLIPPED
    if scale > 1 and len(step.sizes) > 1 and abs(scale / len(step.sizes) - 1) < CLOSE and weighs_each_pass_whole(step):
        name = f"the {len(step.sizes)} passes of a step are added up whole, as if each were a batch of its own"
    else:
        is_sum = abs(scale - world_size) < CLOSE * world_size
        name = "the sum over the ranks, not the mean" if is_sum else "not the mean"
    told = f"the gradient applied in step {number} is {scale:.2f} times the mean gradient: {name}"
    return broken(told, step.line, kind)


def weighs_each_pass_whole(step):
    """Say whether an image weighs in its rank's loss as if its forward pass were all of the step."""
    return bool(step.weights) and abs(image_weight(step, 1, len(step.rows)) * min(step.sizes) - 1) < 0.25
