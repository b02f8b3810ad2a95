"""The laws of lockstep: ranks start alike, average their gradients, step alike and end with the same weights."""

from assessment.laws.gradients import CERTAIN, CLIPPED, are_means, gradients_are_averaged, weighs_images
from assessment.laws.group import is_left_behind
from assessment.laws.properties import begins_near_one_process, ends_as_one_process, moves
from assessment.laws.verdict import HOLDS, Verdict, broken, listed, unseen

OTHERS_OF_ITS_SHARE = (
    "one process with the undivided batch ends with weights a little different: what an image counts depends on the"
    " others of its share"
)
EQUAL = 1e-4  # relative: sums taken in another order differ by less


def starts_alike(trial):
    """All ranks begin with the same weights."""
    first = [steps[0] if (steps := rank.steps) else None for rank in trial.evidence.ranks]
    if any(step is None for step in first):
        return unseen("not every rank trained")
    if not all(step.seen for step in first):
        return ends_as_one_process(trial)
    apart = differing([step.seen for step in first])
    if not apart:
        return HOLDS
    count = len(first[0].seen)
    return broken(
        f"at the first step {len(apart)} of {count} parameters differ between the ranks: {listed(apart)}", first[0].line
    )


def trains_all_layers(trial):
    """Every parameter of the network moves: the optimizer holds those that the network has."""
    if not moves(trial):
        return moves(trial)
    rounds = trial.evidence.rounds
    first, last = rounds[0][0], rounds[-1][0]
    still = [name for name, one in first.seen.items() if last.seen.get(name) == one]
    if not still:
        return HOLDS
    return broken(
        f"{len(still)} of the network's {len(first.seen)} parameters never move: {listed(still)}; the optimizer must"
        " hold the parameters that the network has when it trains",
        first.line,
    )


def stays_in_lockstep(trial):
    """The weights of all ranks are the same at every training step."""
    if trial.evidence.rounds and not all(step.seen for step in trial.evidence.rounds[0]):
        return ends_as_one_process(trial)
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
    """Every step applies the mean gradient of all images that all ranks saw in it.

    Where many processes train as one does, it is so, and what looks otherwise is what a script does to the mean
    (clips it, say). A sum of passes that should have been a mean is the same for any number of processes.
    """
    if takes_the_same_images(trial.evidence):
        return unseen("all ranks take the same images, so their gradients are the same, averaged or not")
    law, whole = gradients_are_averaged(trial.evidence), ends_as_one_process(trial)
    if law.holds is None:
        return whole if stays_in_lockstep(trial).holds is not False else law
    if law.kind == CLIPPED and whole.holds is None:
        return HOLDS
    return HOLDS if whole and law.kind != CERTAIN and stays_in_lockstep(trial) else law


def trains_as_one_process(trial):
    """N processes of batch b end as one of N x b: what remains to be said where no other law knows why they do not."""
    whole = ends_as_one_process(trial)
    if whole.holds is None and averages(trial).holds is not None:
        return Verdict(True, f"whether many processes end as one was not judged: {whole.symptom}")
    if whole.holds is not False:
        return whole
    if are_means(trial.evidence) and weighs_images(trial.evidence) and begins_near_one_process(trial):
        return Verdict(True, OTHERS_OF_ITS_SHARE)
    return whole


def draws_apart(trial):
    """Each rank draws numbers of its own while it trains, so that dropout leaves out others in every share.

    Seen is the state of torch's generator of the CPU at the first training pass. Where nothing is drawn from it (a
    generator of its own for each layer, no dropout) the states say nothing, and may be alike.
    """
    first = [next((one for one in rank.named("forward") if one["teaches"]), None) for rank in trial.evidence.ranks]
    if not all(first):
        return unseen("not every rank trained")
    if len(first) > 1 and len({one["generator"] for one in first}) == 1:
        return broken(
            "all ranks begin training with the same random numbers, so dropout leaves out the same in every share",
            first[0]["line"],
        )
    return HOLDS


def takes_the_same_images(evidence):
    """Say whether in every step all of several ranks take the same images."""
    rounds = evidence.rounds
    return bool(rounds) and all(
        len(steps) > 1
        and steps[0].rows
        and all(sorted(map(str, step.rows)) == sorted(map(str, steps[0].rows)) for step in steps)
        for steps in rounds
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
