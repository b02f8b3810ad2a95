"""The laws of what a run leaves: its record, who prints and who writes, who prepares the data, when it stops."""

import itertools
import math

from assessment.laws.group import ends_without_stopping, parting, waits_for_ever
from assessment.laws.lockstep import per_rank
from assessment.laws.verdict import HOLDS, Verdict, broken, listed, unseen
from utils.runs import COLUMNS

CLOSE = 1e-6  # less than one image in any test set
ONLY_ROSE = "that epochs at the target are counted in a row was not judged: no accuracy was seen to fall"


def without(trial, name):
    """Return the verdict on a run that kept no file ``name``: other formats are free, and are not judged."""
    if trial.outcome.state != "finished":
        return unseen(f"the run ended before it wrote {name}")
    return Verdict(True, f"there is no {name}, so what it should say was not judged")


def number(text):
    try:
        return float(text)
    except (TypeError, ValueError):
        return math.nan


def one_rank_prints(trial):
    """Only one rank prints."""
    printing = [rank.named("print") for rank in trial.evidence.ranks]
    talking = [rank for rank, said in enumerate(printing) if said]
    if len(talking) < 2:
        return HOLDS
    said = printing[talking[1]][0]
    return broken(f"ranks {listed(talking)} all print; rank {talking[1]}: {said['text'][:80]!r}", said["line"])


def one_rank_writes(trial):
    """Only one rank writes into the run's folder."""
    folder = str(trial.artifacts.folder)
    written = [[one for one in rank.named("write") if one["path"].startswith(folder)] for rank in trial.evidence.ranks]
    writing = [rank for rank, files in enumerate(written) if files]
    if not writing:
        return unseen("nothing was written")
    if len(writing) == 1:
        return HOLDS
    first = written[writing[1]][0]
    name = first["path"].removeprefix(folder).lstrip("/")
    what = "a record of the run" if name == ".lock" else name
    return broken(f"ranks {listed(writing)} all write into the run's folder: {what}", first["line"])


def records_epochs(trial):
    """``metrics.csv`` has a row for each epoch, with times that are the training's and counts over all ranks."""
    rows, evidence = trial.artifacts.metrics, trial.evidence
    if not rows:
        return without(trial, "metrics.csv")
    if list(rows[0]) != list(COLUMNS):
        return broken(f"the columns of metrics.csv are {listed(rows[0], 9)}")
    for epoch, row in enumerate(rows, start=1):
        values = {name: number(row[name]) for name in COLUMNS}
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            return broken(f"epoch {epoch} reports {bad[0]} as {row[bad[0]]}")
        seen = sum(len(step.rows) for rank in range(evidence.world_size) for step in nth(evidence.epochs(rank), epoch))
        counted = values["images_per_s"] * values["epoch_time_s"]
        if seen and abs(counted / seen - 1) > 0.02:
            return broken(f"epoch {epoch} reports {counted:.0f} images (images/s x seconds); all ranks took {seen}")
    return HOLDS


def nth(epochs, number):
    return epochs[number - 1] if number <= len(epochs) else []


def times_the_slowest_rank(trial):
    """An epoch takes as long as its slowest rank, from its first forward pass to its last step."""
    rows, evidence = trial.artifacts.metrics, trial.evidence
    if not rows or "epoch_time_s" not in rows[0]:
        return without(trial, "metrics.csv")
    for epoch, row in enumerate(rows, start=1):
        spans = []
        for rank in range(evidence.world_size):
            own = nth(evidence.epochs(rank), epoch)
            spans.append(own[-1].time - own[0].time if own else 0.0)
        told = number(row["epoch_time_s"])
        if told < max(spans) - 0.05:
            slow = spans.index(max(spans))
            return broken(f"epoch {epoch} took rank {slow} at least {max(spans):.2f} s; the record says {told:.2f} s")
    return HOLDS


def telling_target(trial):
    """Return a target by whose reaching, as ``trial`` went, one sees how a script counts epochs: in a row, or in all.

    Run again with the same seed, two epochs in a row reach it before the last one and, where accuracies went
    up and down enough, later than any two do. It lies so close below an epoch's accuracy that the shares of the
    ranks, of which one is better and one is worse, do not reach it in the same epoch.
    """
    accuracies = [number(row.get("val_accuracy")) for row in trial.artifacts.metrics]
    targets = [high - CLOSE for low, high in itertools.pairwise(sorted(accuracies)) if high - low > 2 * CLOSE]
    ends = {target: _ends([one >= target for one in accuracies]) for target in targets}
    late = [target for target, (_, in_a_row) in ends.items() if in_a_row < len(accuracies)]
    return max(late, key=lambda target: (ends[target][0] < ends[target][1], -ends[target][1]), default=0.0)


def _ends(reached):
    """Return the epochs after which two have reached the target: any two, and two in a row."""
    never = len(reached)
    in_all = next((at for at in range(1, never) if sum(reached[:at]) == 2), never)
    return in_all, next((at for at in range(2, never) if reached[at - 2] and reached[at - 1]), never)


def stops_together(trial):
    """All ranks stop in the epoch in which ``--patience`` epochs in a row have reached the target."""
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
    reached = [number(row.get("val_accuracy")) >= target for row in rows] or [target <= 0] * epochs
    wanted = next((at for at in range(patience, len(reached) + 1) if all(reached[at - patience : at])), epochs)
    each = steps_an_epoch(trial)
    if len(set(counts)) == 1 and abs(counts[0] - wanted * each) < each / 2:
        in_all, in_a_row = _ends(
            [number(row.get("val_accuracy")) >= target for row in trial.reference.artifacts.metrics]
        )
        return HOLDS if in_all < in_a_row else Verdict(True, ONLY_ROSE)
    return broken(
        f"--target-accuracy {target:g} --patience {patience} asks for {wanted} of the {epochs} epochs; steps taken:"
        f" {per_rank(counts)}, where {wanted} epochs have {wanted * each:.0f}"
    )


def steps_an_epoch(trial):
    """Return how many steps a rank takes in an epoch: seen in a run that was not to stop, or counted out."""
    evidence, free = trial.evidence, trial.reference
    if free is not None and free.outcome.state == "finished" and free.evidence.settings == evidence.settings:
        return len(free.evidence.ranks[0].steps) / evidence.settings["epochs"]
    return len(evidence.data.train) / evidence.world_size / evidence.settings["batch_size"]


def states_the_effective_batch(trial):
    """``summary.json`` states the images of a step over all ranks."""
    told, rounds = trial.artifacts.summary.get("effective_batch"), trial.evidence.rounds
    if told is None or not rounds:
        return without(trial, "summary.json")
    taken = sum(len(step.rows) for step in rounds[0])
    if told == taken:
        return HOLDS
    return broken(
        f"summary.json says effective_batch {told}; a step took {taken} images: "
        + per_rank(len(step.rows) for step in rounds[0])
    )


def prepares_once(trial):
    """One rank of a machine writes the dataset, and the others wait until it is whole."""
    folder = str(trial.run.data_dir)
    written = [[one for one in rank.named("write") if one["path"].startswith(folder)] for rank in trial.evidence.ranks]
    writing = [rank for rank, files in enumerate(written) if files]
    if len(writing) > 1:
        return broken(
            f"ranks {listed(writing)} all prepare the dataset, at the same time", written[writing[1]][0]["line"]
        )
    if trial.outcome.state != "finished" and not all(rank.steps for rank in trial.evidence.ranks):
        why = trial.outcome.failure.strip().splitlines() or [""]
        return broken(f"with no prepared data and rank 0 slow, the run ends: {why[-1][:160] or trial.outcome.state}")
    return HOLDS if writing else unseen("no rank prepared the dataset")
