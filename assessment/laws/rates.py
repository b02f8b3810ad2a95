"""The laws of the learning rate: the rate of every step follows the batch and the plan."""

from assessment.laws.calls import ended, returned
from assessment.laws.properties import rates_that_differ
from assessment.laws.verdict import HOLDS, broken, unseen

EXACT = 1e-4  # relative
NO_RATE = "no rate was seen: not every rank took a step of a torch.optim.Optimizer"
NO_IMAGES = "no image was seen in the first step, so its batch is unknown"


def choice(trial, name, default):
    """Return the word that ``--name`` was given in a trial."""
    return trial.run.flags.get(name, default)


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
    """The rate is the base rate times the rule of the factor: effective batch / reference batch.

    Within ``EXACT`` (1e-4), in the first step, for every group of parameters. Assumes an optimizer of torch's, whose
    ``lr`` is the rate. Not seen: a rate that is multiplied in elsewhere.
    """
    if not trial.evidence.rounds or not taken(trial):
        return unseen(NO_RATE)
    if not effective_batch(trial):
        return unseen(NO_IMAGES)
    rate, factor = full_rate(trial)
    groups = trial.evidence.ranks[0].steps[0].rates
    first = next((one for one in groups if abs(one / rate - 1) >= EXACT), None)
    if first is None:
        return HOLDS
    rule = choice(trial, "lr_scaling", "none")
    return broken(
        f"--lr-scaling {rule}, --base-lr {flag(trial, 'base_lr', 0.05):g}: a step takes {effective_batch(trial)}"
        f" images, {factor:g} times the reference, so the rate is {rate:.4g}; the script takes"
        f" {first:.4g}{of_group(groups, first)}",
        stepping_line(trial, 0),
    )


def knows_the_factor(trial):
    """The factor counts the images of all ranks: seen where the rate is the base rate times a factor.

    Within ``EXACT`` (1e-4), in the first step. Not seen: a factor that happens to be 1.
    """
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
    """Every step has the rate that scaling, warm-up and decay give it.

    Within 1e-3 in every step, for every group of parameters, warm-up counted in steps of the loader. Not seen: a rate
    that is multiplied in elsewhere.
    """
    rates = taken(trial)
    if not rates or not trial.evidence.rounds:
        return unseen(NO_RATE)
    if not effective_batch(trial):
        return unseen(NO_IMAGES)
    wanted = wanted_rates(trial, len(rates))
    groups = [step.rates for step in trial.evidence.ranks[0].steps if step.rates]
    off = ((at, one) for at, own in enumerate(groups) for one in own if abs(one / wanted[at] - 1) > 1e-3)
    at, rate = next(off, (None, None))
    if at is None:
        return HOLDS
    return broken(
        f"the rate of step {at + 1} is {rate:.4g}{of_group(groups[at], rate)}; the settings ask for {wanted[at]:.4g}"
        f"{guessed(trial, rates)}",
        stepping_line(trial, at),
    )


def of_group(rates, rate):
    """Say which of several groups of parameters has ``rate``."""
    return f" for group {rates.index(rate) + 1} of {len(rates)} of its parameters" if len(rates) > 1 else ""


def stepping_line(trial, number):
    """Return the line of the script in which the step of that number takes its images."""
    return trial.evidence.ranks[0].steps[number].line


def guessed(trial, rates):
    """Say what the rates do instead, where it is one of the usual slips."""
    if max(rates) - min(rates) < 1e-9 * max(rates):
        return ": it is the same in every step"
    size = len(rates) // trial.evidence.settings["epochs"]
    if all(rates[at] == rates[at - at % size] for at in range(len(rates))):
        return ": it changes once an epoch, not once a step"
    return ""


def ignores_the_processes(trial):
    """The rate follows the batch, not the number of processes: N of batch b take the steps of one of N x b.

    Compared are the rates of each step, within 1e-4. Not seen: schedules of runs of other numbers of steps.
    """
    if trial.undivided is None or any(one.outcome.state != "finished" for one in trial.undivided):
        return HOLDS  # what keeps it from running as one process is told elsewhere, if it is a fault
    found = rates_that_differ(trial)
    if found is None:
        return HOLDS
    counts = [one.evidence.world_size for one in trial.undivided]
    return broken(
        f"the rate of a step is {found[0]:.4g} with {counts[0]} processes and {found[1]:.4g} with {counts[1]}, at the"
        " same effective batch: what counts is the batch, not the processes"
    )


def schedule_moves(trial):
    """The schedule is told of every step.

    As many calls as steps, within one; of schedules that are not torch's the rates tell. Not seen: what it was told.
    """
    steps = len(trial.evidence.ranks[0].steps)
    told = sum(one["name"] == "schedule step" for one in trial.evidence.ranks[0].named("call"))
    if not steps:
        return unseen("no step was taken")
    if not told:
        return HOLDS if rates_follow_the_plan(trial) else unseen("there is no schedule yet")
    # A schedule takes its first step when it is made.
    return (
        HOLDS
        if abs(told - 1 - steps) <= 1
        else broken(f"the schedule was told of {told - 1} steps; the optimizer took {steps}")
    )


def climbs(trial):
    """``warmed`` returns the part of the full rate for each step: evenly from 1 / factor to 1; 1 without warm-up.

    Within ``EXACT`` (1e-4) of the full rate. Not seen: a function of another name, which is judged by the rates
    alone.
    """
    for one in returned(trial, "warmed"):
        (step, steps, factor), told = one["given"], one.get("returned")
        call = f"warmed({step}, {steps}, {factor:g})"
        if "raised" in one:
            return broken(f"{call} ends with {one['raised']}", one["line"])
        cold = 1 / max(1.0, factor)
        wanted = cold + (1 - cold) * (min(1.0, step / steps) if steps else 1.0)
        if not isinstance(told, (int, float)) or abs(told - wanted) > EXACT:
            return broken(
                f"{call} returns {told}; of {steps} steps that climb from 1 / {factor:g}: {wanted:.4g}", one["line"]
            )
    return ended(trial, "warmed")
