"""The laws of lockstep: ranks start alike, average their gradients, step alike and end with the same weights."""

from assessment.laws.gradients import gradients_are_averaged
from assessment.laws.group import is_left_behind
from assessment.laws.verdict import HOLDS, broken, listed, unseen
from assessment.recorder.sketch import distance
from assessment.trials.artifacts import Weights

UNDIVIDED = 1e-3  # relative to the size of all weights
EQUAL = 1e-4  # relative: sums taken in another order differ by less


def starts_alike(trial):
    """All ranks begin with the same weights."""
    first = [steps[0] if (steps := rank.steps) else None for rank in trial.evidence.ranks]
    if any(step is None for step in first):
        return unseen("not every rank trained")
    if not all(step.seen for step in first):
        return equals_the_undivided(trial)
    apart = differing([step.seen for step in first])
    if not apart:
        return HOLDS
    count = len(first[0].seen)
    return broken(
        f"at the first step {len(apart)} of {count} parameters differ between the ranks: {listed(apart)}", first[0].line
    )


def trains_all_layers(trial):
    """Every parameter of the network moves: the optimizer holds those that the network has."""
    rounds = trial.evidence.rounds
    if len(rounds) < 2:
        return unseen("not every rank took two steps")
    first, last = rounds[0][0], rounds[-1][0]
    still = [name for name, one in first.seen.items() if last.seen.get(name) == one]
    if not still or len(still) == len(first.seen):
        return HOLDS  # where nothing moves at all, it is no layer's fault
    return broken(
        f"{len(still)} of the network's {len(first.seen)} parameters never move: {listed(still)}; the optimizer must"
        " hold the parameters that the network has when it trains",
        first.line,
    )


def stays_in_lockstep(trial):
    """The weights of all ranks are the same at every training step."""
    if trial.evidence.rounds and not all(step.seen for step in trial.evidence.rounds[0]):
        return equals_the_undivided(trial)
    for number, steps in enumerate(trial.evidence.rounds, start=1):
        apart = differing([step.seen for step in steps])
        if apart:
            return broken(f"at step {number} the weights of the ranks have come apart: {listed(apart)}", steps[0].line)
    return HOLDS if trial.evidence.rounds else unseen("not every rank trained")


def differing(sketches):
    """Return the names whose sketches are not the same everywhere."""
    names = set.intersection(*map(set, sketches))
    first, rest = sketches[0], sketches[1:]
    scale = {name: max(map(abs, first[name])) + 1e-6 for name in names}

    def apart(name):
        return any(
            abs(a - b) > EQUAL * scale[name] for one in rest for a, b in zip(first[name], one[name], strict=False)
        )

    return [name for name in first if name in names and apart(name)]


def averages(trial):
    """Every step applies the mean gradient of all images that all ranks saw in it."""
    if takes_the_same_images(trial.evidence):
        return unseen("all ranks take the same images, so their gradients are the same, averaged or not")
    verdict = gradients_are_averaged(trial.evidence)
    if verdict.holds is None and stays_in_lockstep(trial).holds is not False:
        return equals_the_undivided(trial)
    return verdict


def takes_the_same_images(evidence):
    """Say whether in every step all of several ranks take the same images."""
    rounds = evidence.rounds
    return bool(rounds) and all(
        len(steps) > 1
        and steps[0].rows
        and all(sorted(map(str, step.rows)) == sorted(map(str, steps[0].rows)) for step in steps)
        for steps in rounds
    )


def equals_the_undivided(trial):
    """N processes of batch b end with the weights of one process of N x b: the last judge, where nothing else shows.

    Wrappers that cut weights into shards (FSDP) hide a rank's own gradients and whole weights.
    """
    if trial.undivided is None:
        return unseen("no rank's own gradients were seen")
    many, one = trial.undivided
    if many.outcome.state != "finished" or one.outcome.state != "finished":
        return unseen("the run did not finish with the small network and as one process")
    batches = [
        [sorted(row for step in steps for row in step.rows if row is not None) for steps in run.evidence.rounds]
        for run in (many, one)
    ]
    if batches[0] != batches[1]:
        return unseen("one process with the undivided batch takes other images in a step, so nothing can be compared")
    ours, whole = (run.artifacts.weights for run in (many, one))
    if not isinstance(ours, Weights) or not isinstance(whole, Weights) or set(ours.names) != set(whole.names):
        return unseen("the two runs left no weights that could be compared")
    apart = distance(ours.sketches, whole.sketches)
    if apart < UNDIVIDED:
        return HOLDS
    return broken(
        f"in the end the weights differ by {100 * apart:.2g} % from those of one process with the undivided batch"
    )


def steps_alike(trial):
    """All ranks take the same number of steps, at the same rates."""
    ranks = trial.evidence.ranks
    counts = [len(rank.steps) for rank in ranks]
    if not all(counts):
        return unseen("not every rank trained")
    if trial.outcome.state == "failed" and not is_left_behind(trial):
        return unseen("the run ended with an error")  # where a rank died, the others took more steps
    if len(set(counts)) > 1:
        return broken("the ranks take different numbers of steps: " + per_rank(counts))
    for number, steps in enumerate(trial.evidence.rounds, start=1):
        rates = [step.rates[0] for step in steps if step.rates]
        if rates and max(rates) - min(rates) > 1e-9:
            return broken(f"in step {number} the rates differ: " + per_rank(f"{rate:.4g}" for rate in rates))
    return HOLDS


def per_rank(values):
    return ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
