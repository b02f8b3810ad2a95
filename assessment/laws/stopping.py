"""The law of when a run stops: all ranks together, once the target was reached in enough epochs in a row."""

import itertools

from assessment.laws.group import ends_without_stopping, parting, waits_for_ever
from assessment.laws.lockstep import per_rank
from assessment.laws.records import without
from assessment.laws.verdict import HOLDS, Verdict, broken, number, unseen

CLOSE = 1e-6  # less than one image in any test set
ONLY_ROSE = "that epochs at the target are counted in a row was not judged: no accuracy was seen to fall"


def telling_target(trial):
    """Return a target by whose reaching, as ``trial`` went, one sees how a script counts epochs: in a row, or in all.

    Run again with the same seed, two epochs in a row reach it before the last one and, where accuracies went
    up and down enough, later than any two do. It lies so close below an epoch's accuracy that the shares of the
    ranks, of which one is better and one is worse, do not reach it in the same epoch.
    """
    accuracies = val_accuracies(trial)
    targets = [high - CLOSE for low, high in itertools.pairwise(sorted(accuracies)) if high - low > 2 * CLOSE]
    ends = {target: _ends([one >= target for one in accuracies]) for target in targets}
    late = [target for target, (_, in_a_row) in ends.items() if in_a_row < len(accuracies)]
    return max(late, key=lambda target: (ends[target][0] < ends[target][1], -ends[target][1]), default=0.0)


def val_accuracies(trial):
    """Return the reported accuracies as fractions, also where they are reported in percent: one an epoch at most."""
    rows = trial.artifacts.metrics[: trial.evidence.settings["epochs"]]
    told = [number(row.get("val_accuracy")) for row in rows]
    return [one / 100 for one in told] if any(one > 1 for one in told) else told


def _ends(reached):
    """Return the epochs after which two have reached the target: any two, and two in a row."""
    never = len(reached)
    in_all = next((at for at in range(1, never) if sum(reached[:at]) == 2), never)
    return in_all, next((at for at in range(2, never) if reached[at - 2] and reached[at - 1]), never)


def stops_together(trial):
    """All ranks stop in the epoch in which ``--patience`` epochs in a row have reached the target.

    Counted are steps, within half an epoch. Assumes that a repeated run reports the same accuracies. Not seen: the
    difference of above and at the target, and counting in a row where no accuracy fell.
    """
    if waits_for_ever(trial) and ends_without_stopping(trial):
        return broken("not all ranks leave the loop after the same epoch: " + "; ".join(parting(trial)))
    if trial.outcome.state != "finished":
        return unseen("the run did not finish")
    if "patience" not in trial.run.flags:
        return Verdict(True, "stopping early was not judged: the script does not know --target-accuracy or --patience")
    counts = [len(rank.steps) for rank in trial.evidence.ranks]
    if not all(counts):
        return unseen("not every rank trained")
    target, patience = float(trial.run.flags["target_accuracy"]), int(trial.run.flags["patience"])
    epochs, rows = trial.evidence.settings["epochs"], trial.artifacts.metrics
    if target > 0 and not rows and len(set(counts)) == 1:
        return without(trial, "metrics.csv")
    reached = [one >= target for one in val_accuracies(trial)] or [target <= 0] * epochs
    wanted = next((at for at in range(patience, len(reached) + 1) if all(reached[at - patience : at])), epochs)
    each = steps_an_epoch(trial)
    if len(set(counts)) == 1 and abs(counts[0] - wanted * each) < each / 2:
        in_all, in_a_row = _ends([one >= target for one in val_accuracies(trial.reference)])
        return HOLDS if in_all < in_a_row else Verdict(True, ONLY_ROSE)
    return broken(
        f"--target-accuracy {target:g} --patience {patience} asks for {wanted} of the {epochs} epochs; steps taken:"
        f" {per_rank(counts)}, where {wanted} epochs have {wanted * each:.0f}"
    )


def says_what_it_reached(trial):
    """``summary.json`` says that the target was reached where it was, in as many epochs in a row as asked for.

    Judged by the accuracies that the record reports. Not seen: records of other forms.
    """
    told, flags = trial.artifacts.summary.get("target_reached"), trial.run.flags
    accuracies = val_accuracies(trial)
    if told is None or trial.outcome.state != "finished" or not accuracies or "patience" not in flags:
        return HOLDS  # files are free, and stopping is judged by steps
    target, patience = float(flags["target_accuracy"]), int(flags["patience"])
    at_the_end = [one >= target for one in accuracies[-patience:]]
    is_reached = len(at_the_end) == patience and all(at_the_end)
    if bool(told) == is_reached:
        return HOLDS
    return broken(
        f"summary.json says target_reached {told}; --target-accuracy {target:g} was reached in {sum(at_the_end)} of the"
        f" last epochs, and --patience {patience} asks for as many in a row"
    )


def steps_an_epoch(trial):
    """Return how many steps a rank takes in an epoch: seen in a run that was not to stop, or counted out."""
    evidence, free = trial.evidence, trial.reference
    if free is not None and free.outcome.state == "finished" and free.evidence.settings == evidence.settings:
        return len(free.evidence.ranks[0].steps) / evidence.settings["epochs"]
    return len(evidence.data.train) / evidence.world_size / evidence.settings["batch_size"]
