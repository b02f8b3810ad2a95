"""The laws of lockstep: ranks start alike, average their gradients, step alike and end with the same weights."""

from assessment.laws.gradients import CERTAIN, CLIPPED, UNEVEN, are_means, gradients_are_averaged, weighs_images
from assessment.laws.group import is_left_behind
from assessment.laws.properties import (
    begins_near_one_process,
    ends_as_one_process,
    ends_exactly_as_one_process,
    moves,
)
from assessment.laws.verdict import HOLDS, Verdict, broken, listed, unseen
from assessment.recorder.sketch import UNNAMED

OTHERS_OF_ITS_SHARE = (
    "one process with the undivided batch ends with weights a little different: what an image counts depends on the"
    " others of its share"
)
EQUAL = 1e-4  # relative: sums taken in another order differ by less


def starts_alike(trial):
    """All ranks begin with the same weights.

    Compared are sketches of all weights at the first training pass, within ``EQUAL``. Weights that no pass shows
    (shards of FSDP) are judged by the run as one process. Not seen: differences that are gone before the first
    pass, which do no harm.
    """
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
    """Every parameter of the network moves: the optimizer holds those that the network has.

    A parameter moves where its sketch at the last step is not that at the first, to the last bit. Not seen: one
    that should move more, and layers that the script means to keep (there are none in the course).
    """
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
    """The weights of all ranks are the same at every training step.

    Compared are sketches of all weights at each training pass, and where they are judged, within ``EQUAL`` (1e-4 of
    the size of each): sums taken in another order differ by less. What an optimizer holds beside the network (a
    temperature of the loss) is compared behind each step. Not seen: moments of optimizers, until they move
    weights; shards, which are held against one process.
    """
    rounds = trial.evidence.rounds
    if not rounds:
        return unseen("not every rank trained")
    for number, steps in enumerate(rounds, start=1):
        apart = differing_seen([step.seen for step in steps])
        if apart:
            return broken(f"at step {number} the weights of the ranks have come apart: {listed(apart)}", steps[0].line)
        beside = differing_seen([outside_the_network(step) for step in steps])
        if beside:
            return broken(
                f"after step {number} the ranks differ in what is learned outside the network: {listed(beside)}; nobody"
                " averages its gradient",
                steps[0].line,
            )
    judged = [rank.evaluations for rank in trial.evidence.ranks if rank.evaluations]
    for evaluations in zip(*judged, strict=False):
        apart = differing_seen([one.weights for one in evaluations])
        if apart:
            after = f"after step {evaluations[0].after}"
            return broken(f"{after} the weights of the ranks have come apart: {listed(apart)}", evaluations[0].line)
    return HOLDS if any(step.seen for step in rounds[0]) else ends_as_one_process(trial)


def outside_the_network(step):
    """Return the sketches of what a step moved and this rank's loss depends on, and the network does not hold."""
    return {name: one for name, one in step.after.items() if name.startswith(UNNAMED) and step.local.get(name)}


def differing_seen(sketches):
    """Return the names whose sketches differ among those that were seen."""
    seen = [one for one in sketches if one]
    return differing(seen) if len(seen) > 1 else []


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
    (clips it, say). A sum of passes that should have been a mean is the same for any number of processes. Where only
    shares of other sizes look unequal, in a loss that blurs what an image weighs, it must be so to rounding.

    The law of ``gradients.py`` allows for ``CLOSE`` (3 %) in what an image counts and ``FIT`` (2 %) in what is no
    sum of the ranks' gradients. It assumes that each rank's own gradient is seen before it is averaged. Not seen: a
    change of the mean that is the same on all ranks and for any number of processes, which is a script's right.
    """
    if takes_the_same_images(trial.evidence):
        return unseen("all ranks take the same images, so their gradients are the same, averaged or not")
    law, whole = gradients_are_averaged(trial.evidence), ends_as_one_process(trial)
    if law.holds is None:
        return whole if stays_in_lockstep(trial).holds is not False else law
    if law.kind == CLIPPED and whole.holds is None:
        return HOLDS
    is_excused = whole and law.kind != CERTAIN and (law.kind != UNEVEN or ends_exactly_as_one_process(trial))
    return HOLDS if is_excused and stays_in_lockstep(trial) else law


def trains_as_one_process(trial):
    """N processes of batch b end as one of N x b: what remains to be said where no other law knows why they do not.

    Within ``SAME`` (1 %) of the way that the weights went, with a small network in which nothing looks at one share
    alone. Not seen: what only the real network does, runs that take other images in a step, and losses that weigh
    an image by the others of its share.
    """
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

    Seen is the state of torch's generator of the CPU at the first training pass, of any two ranks: those that have the
    same number on two machines are two as well. Where nothing is drawn from it (a
    generator of its own for each layer, no dropout) the states say nothing, and may be alike. Not seen: later draws.
    """
    first = [next((one for one in rank.named("forward") if one["teaches"]), None) for rank in trial.evidence.ranks]
    if not all(first):
        return unseen("not every rank trained")
    alike = {}
    for rank, one in enumerate(first):
        alike.setdefault(one["generator"], []).append(rank)
    together = max(alike.values(), key=len)
    if len(together) < 2:
        return HOLDS
    who = "all ranks" if len(together) == len(first) else f"ranks {listed(together)}"
    return broken(
        f"{who} begin training with the same random numbers, so dropout leaves out the same in every share of theirs",
        first[0]["line"],
    )


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
    """All ranks take the same number of steps, at the same rates.

    Rates are compared within 1e-9, the numbers that a schedule by plateaus is fed with within ``EQUAL``. Not seen:
    rates of an optimizer that is not torch's.
    """
    ranks = trial.evidence.ranks
    counts = [len(rank.steps) for rank in ranks]
    if not all(counts):
        return unseen("not every rank trained")
    if trial.outcome.state == "failed" and not is_left_behind(trial):
        return unseen("the run ended with an error")  # where a rank died, the others took more steps
    if len(set(counts)) > 1:
        return broken("the ranks take different numbers of steps: " + per_rank(counts))
    fed = [[one for one in rank.named("call") if one["name"] == "plateau"] for rank in ranks]
    for calls in zip(*fed, strict=False):
        numbers = [one["metrics"] for one in calls]
        if None not in numbers and max(numbers) - min(numbers) > EQUAL * max(map(abs, numbers)):
            told = per_rank(f"{one:.4g}" for one in numbers)
            return broken(f"each rank's schedule looks at a number of its own, and will part: {told}", calls[0]["line"])
    for number, steps in enumerate(trial.evidence.rounds, start=1):
        rates = [step.rates[0] for step in steps if step.rates]
        if rates and max(rates) - min(rates) > 1e-9:
            return broken(f"in step {number} the rates differ: " + per_rank(f"{rate:.4g}" for rate in rates))
    return HOLDS


def per_rank(values):
    return ", ".join(f"{value} on rank {rank}" for rank, value in enumerate(values))
