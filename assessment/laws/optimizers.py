"""The laws of the way from gradient to weight: memory of past steps, the optimizer that was asked for, NovoGrad."""

import torch

from assessment.laws.gradients import stacked
from assessment.laws.rates import choice, flag
from assessment.laws.verdict import HOLDS, broken, unseen

ROUNDING = 3e-6  # of a sketch of float32 weights, relative to it
NOVOGRAD_BETAS = 0.95, 0.98


def _names(steps):
    return sorted(set.intersection(*(set(step.applied) & set(step.before) & set(step.after) for step in steps)))


def _move(step, names):
    """Return how far a step moved the weights, by the rate, and how much of that may be rounding: both sketches."""
    before, after, rate = stacked(step.before, names), stacked(step.after, names), step.rates[0]
    return (before - after) / rate, ROUNDING * before.norm() / rate


def remembers(trial):
    """Each step moves along v = momentum x v + gradient (Polyak's momentum as torch.optim.SGD has it).

    With ``--weight-decay``, decay x weight joins the gradient.

    Compared are sketches of how far each step moved the weights, within 0.5 % and the rounding of float32. Assumes
    that momentum is not dampened. Not seen: parameters that the optimizer does not hold.
    """
    steps = trial.evidence.ranks[0].steps
    if not steps or not _names(steps) or not all(step.rates for step in steps):
        return unseen("no step was seen")
    names, momentum, decay = _names(steps), flag(trial, "momentum", 0.9), flag(trial, "weight_decay")
    velocity = torch.zeros(len(stacked(steps[0].applied, names)), dtype=torch.float64)
    for number, step in enumerate(steps, start=1):
        gradient = stacked(step.applied, names)
        velocity = momentum * velocity + gradient + decay * stacked(step.before, names)
        moved, rounding = _move(step, names)
        if step.rates[0] and not _close(moved, velocity, rounding):
            what = " moves along the gradient alone" if _close(moved, gradient) else " moves otherwise"
            wanted = "momentum x velocity + gradient" + (" + decay x weight" if decay else "")
            told = f"--momentum {momentum:g}" + (f" and --weight-decay {decay:g}" if decay else "")
            return broken(f"with {told}, step {number}{what}, not along {wanted}", step.line)
    return HOLDS


def _close(one, other, rounding=0.0):
    return (one - other).norm() <= 5e-3 * other.norm() + rounding


def chooses_the_optimizer(trial):
    """``--optimizer novograd`` takes other steps than SGD, whose first goes along the gradient as it is.

    The same direction is within 0.5 %. Not seen: which other optimizer it is.
    """
    steps = trial.evidence.ranks[0].steps
    if not steps or not _names(steps) or not all(step.rates for step in steps):
        return unseen("no step was seen")
    names = _names(steps)
    gradient, weights = stacked(steps[0].applied, names), stacked(steps[0].before, names)
    if _close(_move(steps[0], names)[0], gradient + flag(trial, "weight_decay") * weights):
        return broken(f"with --optimizer {choice(trial, 'optimizer', 'sgd')} the first step is still that of SGD")
    return HOLDS


def divides_by_the_layers_size(trial):
    """The first step of each layer is as long as its gradient divided by its own size; without decay, 1.

    Within 2 % and the rounding of float32. Not seen: optimizers that are not torch's.
    """
    if not chooses_the_optimizer(trial):
        return unseen("NovoGrad was not seen at work yet")
    return _novograd(trial, lambda kind: kind in ("size", "first size"))


def takes_novograd_steps(trial):
    """Each step is NovoGrad's (Ginsburg et al. 2019, algorithm 1): gradient / size of the layer, decay, momentum.

    Within 2 % and the rounding of float32, for every layer and step, with the betas that the lab names. Not seen:
    variants (averaged gradients, AMSGrad), which the lab does not ask for.
    """
    if not chooses_the_optimizer(trial):
        return unseen("NovoGrad was not seen at work yet")
    return _novograd(trial, lambda kind: True)


def _novograd(trial, concerns):
    steps = trial.evidence.ranks[0].steps
    for number, name, kind, told in _first_miss(steps, _names(steps), flag(trial, "weight_decay")):
        if concerns(kind):
            return broken(f"step {number} of {name} is not NovoGrad's: {told}")
    return HOLDS


def _first_miss(steps, names, decay):
    """Yield the first step and layer whose move is not NovoGrad's, and how it differs."""
    beta1, beta2 = NOVOGRAD_BETAS
    first, second = {}, {}
    for number, step in enumerate(steps, start=1):
        for name in names:
            square = step.norms[name] ** 2
            second[name] = beta2 * second[name] + (1 - beta2) * square if name in second else square
            gradient, weight = stacked(step.applied, [name]), stacked(step.before, [name])
            moved, rounding = _move(step, [name])
            direction = gradient / (second[name] ** 0.5 + 1e-8) + decay * weight
            earlier = first.get(name)
            first[name] = direction if earlier is None else beta1 * earlier + direction
            if not step.rates[0] or (moved - first[name]).norm() <= 0.02 * first[name].norm() + 1e-6 + rounding:
                continue
            rates = step.rates[0], steps[0].rates[0]
            yield number, name, *_kind(moved, first[name], gradient, direction, weight, decay, earlier, rates)
            return


def _kind(moved, wanted, gradient, direction, weight, decay, earlier, rates):
    """Name what differs, as (kind, text)."""
    rate, first_rate = rates
    ratio = (moved.norm() / wanted.norm()).item()
    along = torch.nn.functional.cosine_similarity(moved, gradient, dim=0).item()
    if earlier is None and decay and _close(moved, direction - decay * weight):
        return "decay", "weight decay does not move it"
    if earlier is None and along > 0.999:
        return (
            "first size",
            f"it goes along the gradient, but {ratio:.3g} times as far as gradient / size of the gradient",
        )
    beta1 = NOVOGRAD_BETAS[0]
    if earlier is not None and _close(moved, beta1 * earlier + (1 - beta1) * direction, 0.02 * moved.norm()):
        return "momentum", "what joins the first moment is multiplied by 1 - beta1, as in Adam; here it joins whole"
    if _close(moved, direction):
        return "momentum", "it forgets the earlier directions"
    if _close(moved * rate / first_rate, wanted):
        return "rate", f"it goes as far as at the first rate, {first_rate:g}, but the rate is {rate:g} by then"
    if _close(moved / ratio, wanted):
        return "size", f"it goes {ratio:.3g} times as far as it should"
    return "other", "it goes elsewhere"
