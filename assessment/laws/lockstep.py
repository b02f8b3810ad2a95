"""The laws of ranks that train together, each one function over what all ranks did (``Trial``), in causal order.

A law returns a ``Verdict``: it holds, it is broken (with the symptom in numbers), or nothing was seen that
could tell. What a law judges is behaviour: which images, gradients, weights and files, never how the script
is written.
"""

import re

from assessment.laws.gradients import gradients_are_averaged
from assessment.laws.verdict import HOLDS, broken, listed, unseen
from assessment.recorder.sketch import distance
from assessment.trials.artifacts import Weights
from utils.launch.failures import LOST_PEER

DAY_S = 86_400
NO_GROUP = "process group has not been initialized"  # what torch says to a rank that has joined none
UNDIVIDED = 1e-3  # relative to the size of all weights
EQUAL = 1e-4  # relative: sums taken in another order differ by less


def joins(trial):
    """All ranks join one process group of the world's size."""
    world_size = trial.evidence.world_size
    for rank in trial.evidence.ranks:
        groups = rank.named("group")
        if not groups:
            joining = rank.named("joining")
            if joining and (trial.state == "hung" or NO_GROUP in trial.failure):
                return broken(f"rank {rank.number} waits in init_process_group for the others", joining[0]["line"])
            if rank.events and (rank.steps or trial.state == "finished"):
                return broken(f"rank {rank.number} works without having joined a process group")
            return unseen(f"rank {rank.number} ended before it joined a process group")
        if groups[0]["world_size"] != world_size:
            return broken(
                f"{world_size} processes were started, but rank {rank.number} joined a group of"
                f" {groups[0]['world_size']}"
            )
        if (groups[0].get("timeout_s") or 0) >= DAY_S:
            days = groups[0]["timeout_s"] / DAY_S
            return broken(
                f"a rank waits {days:.0f} days for one that died: timedelta counts days first", groups[0]["line"]
            )
    numbers = [rank.named("group")[0]["rank"] for rank in trial.evidence.ranks]
    return HOLDS if sorted(numbers) == list(range(world_size)) else broken(f"the ranks in the group are {numbers}")


def knows_its_rank(trial):
    """The script asks which rank it is: torchrun's variables, or the group."""
    for rank in trial.evidence.ranks:
        if not rank.events:
            return unseen(f"rank {rank.number} ended before it began")
        if not rank.named("asks its rank"):
            if trial.state == "failed" and not any(map(has_begun, trial.evidence.ranks)):
                return unseen("the run ended before anything was done")
            count = trial.evidence.world_size
            return broken(f"{count} processes were started, and none of them asked which of the {count} it is")
    return HOLDS


def has_begun(rank):
    """Say whether a rank has come as far as to write, to join a group or to train."""
    return bool(rank.steps or rank.named("write") or rank.named("joining"))


def survives(trial):
    """No rank dies."""
    if trial.state != "failed" or is_left_behind(trial):
        return HOLDS
    return broken(trial.failure, failing_line(trial))


def is_left_behind(trial):
    """Say whether ranks failed only because another had finished and left them waiting for it."""
    lost = [rank for rank, code in trial.exits.items() if code]
    last_lines = [trial.logs[rank].strip().splitlines()[-1:] for rank in lost]
    return bool(lost) and 0 in trial.exits.values() and all(one and LOST_PEER.search(one[0]) for one in last_lines)


def failing_line(trial):
    """Return the line of the script at which the first traceback ends, or None."""
    first = trial.failure.partition("\n\nrank ")[0]
    lines = re.findall(rf'File "{re.escape(str(trial.script))}", line (\d+)', first)
    return int(lines[-1]) if lines else None


def meets(trial):
    """No rank waits for ever: all enter the same collectives in the same order."""
    if not waits_for_ever(trial) or ends_without_stopping(trial):
        return HOLDS
    return broken("the ranks do not meet: " + "; ".join(parting(trial)), parting_line(trial))


def waits_for_ever(trial):
    """Say whether a rank waits for another that does not come, or died of waiting."""
    return trial.state == "hung" or is_left_behind(trial)


def ends_without_stopping(trial):
    """Say whether the same run finished when it was not asked to stop early: then stopping is what is wrong."""
    free = trial.reference
    if free is None or "patience" not in trial.flags:
        return False
    return free.state == "finished" and free.evidence.settings == trial.evidence.settings


def collectives(trial):
    """Return what each rank entered, in order, as (name, numbers, line)."""
    ranks = trial.evidence.ranks
    return [[(one["name"], one["numel"], one["line"]) for one in rank.named("collective")] for rank in ranks]


def first_difference(calls):
    """Return the first place at which ranks enter different collectives, or the same one in different lines."""
    longest = max(map(len, calls))
    return next(
        (at for at in range(longest) if len({rank[at] if at < len(rank) else None for rank in calls}) > 1), None
    )


def parting(trial):
    """Return in words where each rank of a hanging run stands, and where the ranks parted."""
    calls = collectives(trial)
    told = [f"rank {rank} {standing(trial, rank, own)}" for rank, own in enumerate(calls)]
    at = first_difference(calls)
    if at is not None:
        names = [f"rank {rank} {described(own[at : at + 1])}" for rank, own in enumerate(calls)]
        told.append(f"they part at their collective number {at + 1}: " + ", ".join(names))
    return told


def parting_line(trial):
    """Return the line of the collective that only some ranks enter, None where none is known."""
    calls = collectives(trial)
    at = first_difference(calls)
    lines = [own[at][2] for own in calls if at is not None and at < len(own)]
    return min((line for line in lines if line), default=None)


def described(call):
    if not call:
        return "enters none"
    name, numel, line = call[0]
    return f"enters {name}" + (f" of {numel} numbers" if numel else "") + (f" in line {line}" if line else "")


def standing(trial, rank, calls):
    """Return where a rank of a hanging run stands."""
    stack = trial.stacks[rank] if rank < len(trial.stacks) else ""
    script = trial.script.name
    found = re.search(rf'File ".*{re.escape(script)}", line (\d+)', stack)
    where = f"stands in line {found[1]}" if found else "has ended" if not stack else "stands outside the script"
    last = f" (its last collective is {calls[-1][0]}, line {calls[-1][2]})" if calls else ""
    return where + last


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
    if many.state != "finished" or one.state != "finished":
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
    if trial.state == "failed" and not is_left_behind(trial):
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
