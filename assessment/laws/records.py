"""The laws of what a run leaves: its record, who prints and who writes, who prepares the data, when it stops."""

import itertools
import math
import re

from assessment.laws.group import ends_without_stopping, parting, waits_for_ever
from assessment.laws.lockstep import per_rank
from assessment.laws.verdict import HOLDS, Verdict, broken, listed, number, unseen
from utils.runs import COLUMNS

EXACT = 1e-4  # of a rate
CLOSE = 1e-6  # less than one image in any test set
PART = re.compile(r"\.([^/]+)\.\d+-\d+\.part$")  # of a file that is being written whole or not at all
RECORD = (".lock", "config.json", "metrics.csv", "model.pt", "summary.json")
ONLY_ROSE = "that epochs at the target are counted in a row was not judged: no accuracy was seen to fall"


def without(trial, name):
    """Return the verdict on a run that kept no file ``name``: other formats are free, and are not judged."""
    if trial.outcome.state != "finished":
        return unseen(f"the run ended before it wrote {name}")
    return Verdict(True, f"there is no {name}, so what it should say was not judged")


def one_rank_prints(trial):
    """Only one rank prints, logs or draws a bar."""
    printing = [[*rank.named("print"), *rank.named("bar")] for rank in trial.evidence.ranks]
    talking = [rank for rank, said in enumerate(printing) if said]
    if len(talking) < 2:
        return HOLDS
    said = printing[talking[1]][0]
    if said["event"] == "bar":
        return broken(f"ranks {listed(talking)} all show how far they are; rank {talking[1]} draws a bar", said["line"])
    return broken(f"ranks {listed(talking)} all print; rank {talking[1]}: {said['text'][:80]!r}", said["line"])


def one_rank_writes(trial):
    """Only one rank keeps the record of the run; files of their own, as parts of a checkpoint, all may write."""
    folder, ranks = str(trial.artifacts.folder), trial.evidence.ranks
    written = [[one for one in rank.named("write") if one["path"].startswith(folder)] for rank in ranks]
    if not any(written):
        return unseen("nothing was written")
    by_path = {}
    for rank, files in enumerate(written):
        for one in files:
            by_path.setdefault(PART.sub(r"\1", one["path"]), {}).setdefault(rank, one)
    records = {rank: one for path, found in by_path.items() if is_record(path) for rank, one in found.items()}
    for path, found in (("", records), *by_path.items()):
        if len(found) > 1:
            what = path.removeprefix(folder).lstrip("/") or "a record of the run"
            return broken(f"ranks {listed(sorted(found))} all write: {what}", found[sorted(found)[1]]["line"])
    writing = [rank for rank, files in enumerate(written) if files]
    if len(writing) > 1:
        return Verdict(True, f"ranks {listed(writing)} write files of their own beside the record")
    return HOLDS


def is_record(path):
    """Say whether a file of this name belongs to the record of a run."""
    return path.rpartition("/")[2] in RECORD


def records_epochs(trial):
    """``metrics.csv`` has a row for each epoch, with times that are the training's and counts over all ranks."""
    rows, evidence = trial.artifacts.metrics, trial.evidence
    if not rows:
        return without(trial, "metrics.csv")
    if list(rows[0]) != list(COLUMNS):
        return broken(f"the columns of metrics.csv are {listed(rows[0], 9)}")
    total = 0.0
    for epoch, row in enumerate(rows, start=1):
        values = {name: number(row[name]) for name in COLUMNS}
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            return broken(f"epoch {epoch} reports {bad[0]} as {row[bad[0]]}")
        steps = [step for rank in range(evidence.world_size) for step in nth(evidence.epochs(rank), epoch)]
        seen = sum(len(step.rows) for step in steps)
        counted = values["images_per_s"] * values["epoch_time_s"]
        if seen and abs(counted / seen - 1) > 0.02:
            return broken(f"epoch {epoch} reports {counted:.0f} images (images/s x seconds); all ranks took {seen}")
        total += values["epoch_time_s"]
        if abs(values["time_s"] - total) > 0.01 * total + 0.01:
            return broken(
                f"after epoch {epoch} time_s is {values['time_s']:.2f} s; the epochs took {total:.2f} s in all"
            )
        low, high = rates_around(evidence, epoch)
        if not low * (1 - EXACT) <= values["lr"] <= high * (1 + EXACT):
            return broken(f"epoch {epoch} reports lr {values['lr']:.4g}; its steps took {low:.4g} to {high:.4g}")
    state = trial.artifacts.summary.get("state", "finished")
    if trial.outcome.state == "finished" and state != "finished":
        return broken(f"the run came to its end, but summary.json says {state!r}: runs.finish(record) ends a script")
    return HOLDS


def rates_around(evidence, epoch):
    """Return the lowest and the highest rate that a record may state for ``epoch``: of its steps, or of the next.

    After the last epoch the next would have been further, by as much as rates go in two steps.
    """
    steps = [step for at in (epoch, epoch + 1) for step in nth(evidence.epochs(0), at) if step.rates]
    if not steps:
        return 0.0, math.inf
    rates = [step.rates[0] for step in evidence.ranks[0].steps if step.rates]
    changes = [abs(later - earlier) for earlier, later in itertools.pairwise(rates)]
    beyond = 0.0 if nth(evidence.epochs(0), epoch + 1) else 2 * max(changes, default=0.0)
    return min(min(step.rates) for step in steps) - beyond, max(max(step.rates) for step in steps) + beyond


def counts_correct_answers(trial):
    """``train_accuracy`` is that of all ranks' images of the epoch, as the network saw them while it learned."""
    rows, evidence = trial.artifacts.metrics, trial.evidence
    if not rows or "train_accuracy" not in rows[0]:
        return without(trial, "metrics.csv")
    if any(rank.unused or any(one.training_images for one in rank.evaluations) for rank in evidence.ranks):
        return HOLDS  # counted in passes of its own over the images of training
    for epoch, row in enumerate(rows, start=1):
        steps = [step for rank in range(evidence.world_size) for step in nth(evidence.epochs(rank), epoch)]
        images, told = sum(len(step.rows) for step in steps), number(row["train_accuracy"])
        if not images or not all(step.labels for step in steps):
            continue  # a loss of another kind, whose labels are not seen: they may be mixed
        right = sum(step.correct for step in steps)
        if abs(told - right / images) > 1.5 / images:
            return broken(f"epoch {epoch} reports a train_accuracy of {told:.4f}; {right} of {images} were right")
    return HOLDS


def nth(epochs, number):
    return epochs[number - 1] if number <= len(epochs) else []


def times_the_slowest_rank(trial):
    """An epoch takes as long as its slowest rank, from its first forward pass to its last step, without validation."""
    rows, evidence = trial.artifacts.metrics, trial.evidence
    if not rows or "epoch_time_s" not in rows[0]:
        return without(trial, "metrics.csv")
    for epoch, row in enumerate(rows, start=1):
        own = [nth(evidence.epochs(rank), epoch) for rank in range(evidence.world_size)]
        spans = [steps[-1].time - steps[0].time if steps else 0.0 for steps in own]
        told = number(row["epoch_time_s"])
        if told < max(spans) - 0.05:
            slow = spans.index(max(spans))
            return broken(f"epoch {epoch} took rank {slow} at least {max(spans):.2f} s; the record says {told:.2f} s")
        most = time_between(evidence.ranks, own)
        if told > most + 0.05:
            return broken(
                f"epoch {epoch} took no rank longer than {most:.2f} s; the record says {told:.2f} s, which are those of"
                " several ranks, or of validation too"
            )
    return HOLDS


def time_between(ranks, own):
    """Return the seconds between the validations before and after an epoch; ``own`` are its steps on each rank.

    Without end where not every rank was seen to judge before and after it.
    """
    earlier, later = [], []
    for rank, steps in zip(ranks, own, strict=True):
        judged = [one["time"] for one in rank.named("forward") if not one["teaches"]]
        judged += [one["time"] for one in rank.named("delayed") if one["what"] == "evaluation"]
        before = [time for time in judged if steps and time < steps[0].time]
        after = [time for time in judged if steps and time > steps[-1].time]
        if not before or not after:
            return math.inf
        earlier.append(max(before))
        later.append(min(after))
    return min(later) - max(earlier)


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
