"""The laws of what the optimizer does: the rate of every step, and the way from gradient to weight."""

import torch

from assessment.laws.gradients import stacked
from assessment.laws.verdict import HOLDS, broken, unseen

EXACT = 1e-4  # relative
ROUNDING = 3e-6  # of a sketch of float32 weights, relative to it
NOVOGRAD_BETAS = 0.95, 0.98
NO_RATE = "no rate was seen: not every rank took a step of a torch.optim.Optimizer"
NO_IMAGES = "no image was seen in the first step, so its batch is unknown"


def choice(trial, name, default):
    """Return the word that ``--name`` was given in a trial."""
    return trial.flags.get(name, default)


def flag(trial, name, default=0.0):
    """Return the number that ``--name`` was given in a trial."""
    return float(choice(trial, name, default))


def effective_batch(trial):
    """Return the images of one step over all ranks."""
    return sum(len(step.rows) for step in trial.evidence.rounds[0])


def full_rate(trial):
    """Return base rate x rule(factor), and the factor: effective batch / reference batch."""
    factor = effective_batch(trial) / flag(trial, "reference_batch", 32)
    rule = {"none": 1.0, "sqrt": factor**0.5, "linear": factor}[choice(trial, "lr_scaling", "none")]
    return flag(trial, "base_lr", 0.05) * rule, factor


def wanted_rates(trial, count):
    """Return the rate of each of ``count`` steps: scaled, warmed up from rate / factor, divided by 1 + decay x step."""
    rate, factor = full_rate(trial)
    epochs = trial.evidence.settings["epochs"]
    warm = flag(trial, "warmup_epochs") * len(trial.evidence.ranks[0].steps) / epochs
    cold, decay = 1 / max(1.0, factor), flag(trial, "lr_decay")

    def at(step):
        climbed = min(1.0, step / warm) if warm else 1.0
        return rate * (cold + (1 - cold) * climbed) / (1 + decay * step)

    return [at(step) for step in range(count)]


def taken(trial):
    """Return the rates of rank 0's steps, none where it steps without an optimizer."""
    return [step.rates[0] for step in trial.evidence.ranks[0].steps if step.rates]


def follows_the_batch(trial):
    """The rate is the base rate times the rule of the factor: effective batch / reference batch."""
    if not trial.evidence.rounds or not taken(trial):
        return unseen(NO_RATE)
    if not effective_batch(trial):
        return unseen(NO_IMAGES)
    (rate, factor), first = full_rate(trial), taken(trial)[0]
    if abs(first / rate - 1) < EXACT:
        return HOLDS
    rule = choice(trial, "lr_scaling", "none")
    return broken(
        f"--lr-scaling {rule}, --base-lr {flag(trial, 'base_lr', 0.05):g}: a step takes {effective_batch(trial)}"
        f" images, {factor:g} times the reference, so the rate is {rate:.4g}; the script takes {first:.4g}"
    )


def knows_the_factor(trial):
    """The factor counts the images of all ranks: seen where the rate is the base rate times a factor."""
    if not trial.evidence.rounds or not taken(trial):
        return unseen(NO_RATE)
    if not effective_batch(trial):
        return unseen(NO_IMAGES)
    found, (_, factor) = taken(trial)[0] / flag(trial, "base_lr", 0.05), full_rate(trial)
    if abs(found - 1) < EXACT:
        return unseen("the rate does not follow the batch yet")
    if abs(found / factor - 1) < EXACT or abs(found / factor**0.5 - 1) < EXACT:
        return HOLDS
    return follows_the_batch(trial)


def rates_follow_the_plan(trial):
    """Every step has the rate that scaling, warm-up and decay give it."""
    rates = taken(trial)
    if not rates or not trial.evidence.rounds:
        return unseen(NO_RATE)
    if not effective_batch(trial):
        return unseen(NO_IMAGES)
    wanted = wanted_rates(trial, len(rates))
    off = [at for at, (one, other) in enumerate(zip(rates, wanted, strict=True)) if abs(one / other - 1) > 1e-3]
    if not off:
        return HOLDS
    at = off[0]
    return broken(
        f"the rate of step {at + 1} is {rates[at]:.4g}; the settings ask for {wanted[at]:.4g}{guessed(trial, rates)}"
    )


def guessed(trial, rates):
    """Say what the rates do instead, where it is one of the usual slips."""
    if max(rates) - min(rates) < 1e-9 * max(rates):
        return ": it is the same in every step"
    size = len(rates) // trial.evidence.settings["epochs"]
    if all(rates[at] == rates[at - at % size] for at in range(len(rates))):
        return ": it changes once an epoch, not once a step"
    return ""


def ignores_the_processes(trial):
    """The rate does not follow the number of processes: two runs of equal effective batch take equal steps."""
    few, many = trial.reference, trial
    if not (few.evidence.rounds and many.evidence.rounds):
        return unseen("not every rank trained")
    if not taken(few) or not taken(many) or not taken(few)[0]:
        return HOLDS  # steps without an optimizer show no rate
    rates = taken(few)[0], taken(many)[0]
    counts = [one.evidence.world_size for one in (few, many)]
    if abs(rates[1] / rates[0] / (counts[1] / counts[0]) - 1) > EXACT:
        return HOLDS
    return broken(
        f"the rate is {rates[0]:.4g} with {counts[0]} processes and {rates[1]:.4g} with {counts[1]}, at effective"
        f" batches of {effective_batch(few)} and {effective_batch(many)}: what counts is the batch, not the processes"
    )


def schedule_moves(trial):
    """The schedule is told of every step."""
    steps = len(trial.evidence.ranks[0].steps)
    told = sum(one["name"] == "schedule step" for one in trial.evidence.ranks[0].named("call"))
    if not steps:
        return unseen("no step was taken")
    if not told:
        return unseen("there is no schedule yet")
    # A schedule takes its first step when it is made.
    return (
        HOLDS
        if abs(told - 1 - steps) <= 1
        else broken(f"the schedule was told of {told - 1} steps; the optimizer took {steps}")
    )


def _names(steps):
    return sorted(set.intersection(*(set(step.applied) & set(step.before) & set(step.after) for step in steps)))


def _move(step, names):
    """Return how far a step moved the weights, by the rate, and how much of that may be rounding: both sketches."""
    before, after, rate = stacked(step.before, names), stacked(step.after, names), step.rates[0]
    return (before - after) / rate, ROUNDING * before.norm() / rate


def remembers(trial):
    """Each step moves along v = momentum x v + gradient (Polyak's momentum as torch.optim.SGD has it)."""
    steps = trial.evidence.ranks[0].steps
    if not steps or not _names(steps) or not all(step.rates for step in steps):
        return unseen("no step was seen")
    names, momentum = _names(steps), flag(trial, "momentum", 0.9)
    velocity = torch.zeros(len(stacked(steps[0].applied, names)), dtype=torch.float64)
    for number, step in enumerate(steps, start=1):
        gradient = stacked(step.applied, names)
        velocity = momentum * velocity + gradient
        moved, rounding = _move(step, names)
        if step.rates[0] and not _close(moved, velocity, rounding):
            what = " moves along the gradient alone" if _close(moved, gradient) else " moves otherwise"
            return broken(
                f"with --momentum {momentum:g}, step {number}{what}, not along momentum x velocity + gradient",
                step.line,
            )
    return HOLDS


def _close(one, other, rounding=0.0):
    return (one - other).norm() <= 5e-3 * other.norm() + rounding


def chooses_the_optimizer(trial):
    """``--optimizer novograd`` takes other steps than SGD, whose first goes along the gradient as it is."""
    steps = trial.evidence.ranks[0].steps
    if not steps or not _names(steps) or not all(step.rates for step in steps):
        return unseen("no step was seen")
    names = _names(steps)
    gradient, weights = stacked(steps[0].applied, names), stacked(steps[0].before, names)
    if _close(_move(steps[0], names)[0], gradient + flag(trial, "weight_decay") * weights):
        return broken(f"with --optimizer {choice(trial, 'optimizer', 'sgd')} the first step is still that of SGD")
    return HOLDS


def divides_by_the_layers_size(trial):
    """The first step of each layer is as long as its gradient divided by its own size; without decay, 1."""
    if not chooses_the_optimizer(trial):
        return unseen("NovoGrad was not seen at work yet")
    return _novograd(trial, lambda kind: kind in ("size", "first size"))


def takes_novograd_steps(trial):
    """Each step is NovoGrad's (Ginsburg et al. 2019, algorithm 1): gradient / size of the layer, decay, momentum."""
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
            yield number, name, *_kind(moved, first[name], gradient, direction, weight, decay, earlier)
            return


def _kind(moved, wanted, gradient, direction, weight, decay, earlier):
    """Name what differs, as (kind, text)."""
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
    if _close(moved / ratio, wanted):
        return "size", f"it goes {ratio:.3g} times as far as it should"
    return "other", "it goes elsewhere"
