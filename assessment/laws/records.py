"""The laws of what a run leaves: its record, who prints and who writes, who prepares the data."""

import itertools
import math
import re
from operator import itemgetter
from pathlib import Path

from assessment.laws.lockstep import per_rank
from assessment.laws.verdict import HOLDS, Verdict, broken, listed, number, unseen
from assessment.trials.trial import RECORD
from utils.runs import COLUMNS

EXACT = 1e-4  # of a rate
UNPREPARED = "is not prepared"  # what reading a dataset that is not there says
PART = re.compile(r"\.([^/]+)\.\d+-\d+\.part$")  # of a file that is being written whole or not at all


def without(trial, name):
    """Return the verdict on a run that kept no file ``name``: other formats are free, and are not judged."""
    if trial.outcome.state != "finished":
        return unseen(f"the run ended before it wrote {name}")
    return Verdict(True, f"there is no {name}, so what it should say was not judged")


def is_below(path, folders):
    """Say whether ``path`` lies in one of ``folders``."""
    return any(Path(path).is_relative_to(folder) for folder in folders)


def one_rank_prints(trial):
    """Only one rank prints, logs or draws a bar.

    Seen are ``print``, ``sys.stdout.write``, handlers of ``logging`` and bars of tqdm. Not seen: standard error,
    and what other programs print.
    """
    printing = [[*rank.named("print"), *rank.named("bar")] for rank in trial.evidence.ranks]
    talking = [rank for rank, said in enumerate(printing) if said]
    if len(talking) < 2:
        return HOLDS
    said = printing[talking[1]][0]
    if said["event"] == "bar":
        return broken(f"ranks {listed(talking)} all show how far they are; rank {talking[1]} draws a bar", said["line"])
    return broken(f"ranks {listed(talking)} all print; rank {talking[1]}: {said['text'][:80]!r}", said["line"])


def one_rank_writes(trial):
    """Only one rank keeps the record of the run; files of their own, as parts of a checkpoint, all may write.

    Seen are files opened for writing below the run's folder, or beside it under a name that begins like it.
    Where ranks that all keep a record were each given a folder of its own, all these are the run's. Not seen: what a
    program writes that the script starts.
    """
    folder, ranks = str(trial.artifacts.folder), trial.evidence.ranks
    if trial.run.apart:  # every rank was given a folder of its own: run-0, run-1
        folder = folder.removesuffix("0")
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
    """``metrics.csv`` has a row for each epoch, with times that are the training's and counts over all ranks.

    Images within 2 %, times within 1 % and 0.01 s, rates within 1e-4 between those of the epoch's first and the
    next epoch's last step; after the last epoch a schedule may have gone on to 0. Not seen: other formats than the
    course's record.
    """
    rows, evidence = trial.artifacts.metrics, trial.evidence
    if not rows:
        return without(trial, "metrics.csv")
    if list(rows[0]) != list(COLUMNS):
        return broken(f"the columns of metrics.csv are {listed(rows[0], 9)}")
    epochs = [evidence.epochs(rank) for rank in range(evidence.world_size)]
    taken = len(epochs[0])
    if trial.outcome.state == "finished" and len(rows) < taken == evidence.settings["epochs"]:
        return broken(f"metrics.csv has {len(rows)} rows for {taken} epochs")
    total = 0.0
    for epoch, row in enumerate(rows, start=1):
        values = {name: number(row[name]) for name in COLUMNS}
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        if bad:
            return broken(f"epoch {epoch} reports {bad[0]} as {row[bad[0]]}")
        steps = [step for own in epochs for step in nth(own, epoch)]
        seen = sum(len(step.rows) for step in steps)
        counted = values["images_per_s"] * values["epoch_time_s"]
        if seen and abs(counted / seen - 1) > 0.02:
            return broken(f"epoch {epoch} reports {counted:.0f} images (images/s x seconds); all ranks took {seen}")
        total += values["epoch_time_s"]
        if abs(values["time_s"] - total) > 0.01 * total + 0.01:
            return broken(
                f"after epoch {epoch} time_s is {values['time_s']:.2f} s; the epochs took {total:.2f} s in all"
            )
        low, high = rates_around(epochs[0], epoch)
        if not low * (1 - EXACT) <= values["lr"] <= high * (1 + EXACT):
            return broken(f"epoch {epoch} reports lr {values['lr']:.4g}; its steps took {low:.4g} to {high:.4g}")
    state = trial.artifacts.summary.get("state", "finished")
    if trial.outcome.state == "finished" and state != "finished":
        return broken(f"the run came to its end, but summary.json says {state!r}: runs.finish(record) ends a script")
    return HOLDS


def rates_around(epochs, epoch):
    """Return the lowest and the highest rate that a record may state for one of ``epochs``: of its steps, or the next.

    After the last epoch the next would have been further, by as much as rates go in two steps, or nothing at all: many
    schedules end there.
    """
    steps = [step for at in (epoch, epoch + 1) for step in nth(epochs, at) if step.rates]
    if not steps:
        return 0.0, math.inf
    is_last = not nth(epochs, epoch + 1)
    rates = [step.rates[0] for own in epochs for step in own if is_last and step.rates]
    changes = [abs(later - earlier) for earlier, later in itertools.pairwise(rates)]
    beyond = 2 * max(changes, default=0.0) if is_last else 0.0
    low = 0.0 if is_last else min(min(step.rates) for step in steps)
    return low, max(max(step.rates) for step in steps) + beyond


def counts_correct_answers(trial):
    """``train_accuracy`` is that of all ranks' images of the epoch, as the network saw them while it learned.

    Within one and a half images of an epoch. Assumes that logits are returned and labels seen. Not seen: accuracies
    counted in passes of their own.
    """
    rows, evidence = trial.artifacts.metrics, trial.evidence
    if not rows or "train_accuracy" not in rows[0]:
        return without(trial, "metrics.csv")
    if any(rank.unused or any(one.training_images for one in rank.evaluations) for rank in evidence.ranks):
        return HOLDS  # counted in passes of its own over the images of training
    epochs = [evidence.epochs(rank) for rank in range(evidence.world_size)]
    for epoch, row in enumerate(rows, start=1):
        steps = [step for own in epochs for step in nth(own, epoch)]
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
    """An epoch takes as long as its slowest rank, from its first forward pass to its last step, without validation.

    Within 0.05 s at either end. The trial holds up single steps, the loading of all ranks, and one rank's
    validation by 0.3 s each. Not seen: time that no rank spends between two validations.
    """
    rows, evidence = trial.artifacts.metrics, trial.evidence
    if not rows or "epoch_time_s" not in rows[0]:
        return without(trial, "metrics.csv")
    epochs = [evidence.epochs(rank) for rank in range(evidence.world_size)]
    for epoch, row in enumerate(rows, start=1):
        own = [nth(one, epoch) for one in epochs]
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

    Without end where not every rank was seen to judge before and after it. What was held up behind a pass that teaches
    is no validation: training moves running statistics by a pass of its own, say.
    """
    earlier, later = [], []
    for rank, steps in zip(ranks, own, strict=True):
        passes = rank.named("forward")
        judged = [one["time"] for one in passes if not one["teaches"]]
        held_up = [one["time"] for one in rank.named("delayed") if one["what"] == "evaluation"]
        for at in held_up:
            behind = max((one for one in passes if one["time"] <= at), key=itemgetter("time"), default=None)
            judged += [at] if behind and not behind["teaches"] else []
        before = [time for time in judged if steps and time < steps[0].time]
        after = [time for time in judged if steps and time > steps[-1].time]
        if not before or not after:
            return math.inf
        earlier.append(max(before))
        later.append(min(after))
    return min(later) - max(earlier)


def states_the_effective_batch(trial):
    """``summary.json`` states the images of a step over all ranks, and how many those are.

    Exactly. Not seen: other formats than the course's record.
    """
    told, rounds = trial.artifacts.summary.get("effective_batch"), trial.evidence.rounds
    if told is None or not rounds:
        return without(trial, "summary.json")
    processes, world_size = trial.artifacts.summary.get("world_size"), trial.evidence.world_size
    if processes not in (None, world_size):
        return broken(f"summary.json says world_size {processes}; {world_size} processes trained")
    taken = sum(len(step.rows) for step in rounds[0])
    if told == taken:
        return HOLDS
    return broken(
        f"summary.json says effective_batch {told}; a step took {taken} images: "
        + per_rank(len(step.rows) for step in rounds[0])
    )


def prepares_once(trial):
    """One rank of each machine writes the dataset, and the others wait until it is whole.

    The trial makes the first rank of each machine slow to write, and gives each machine a folder of its own, in which
    a second one finds what was prepared from other images. Not seen is a script that lets another rank write and has
    the others wait for a while: nobody may sleep for long.
    """
    run, ranks = trial.run, trial.evidence.ranks
    written = [[one for one in rank.named("write") if is_below(one["path"], run.data_dirs)] for rank in ranks]
    writing = [rank for rank, files in enumerate(written) if files]
    by_machine = [[rank for rank in writing if run.machine(rank) == machine] for machine in range(run.machines)]
    for together in by_machine:
        if len(together) > 1:
            return broken(
                f"ranks {listed(together)} of one machine all prepare the dataset, at the same time",
                written[together[1]][0]["line"],
            )
    if writing and not all(by_machine) and trial.outcome.state != "finished":
        machine = by_machine.index([])
        lacking = [rank for rank in range(run.processes) if run.machine(rank) == machine]
        return broken(
            f"on {run.machines} machines, rank {writing[0]} alone prepares the dataset: ranks {listed(lacking)}"
            " find none on theirs",
            written[writing[0]][0]["line"],
        )
    if trial.outcome.state != "finished" and not all(rank.steps for rank in trial.evidence.ranks):
        why = trial.outcome.failure.strip().splitlines() or [""]
        if all(by_machine) and trial.outcome.state == "failed" and UNPREPARED not in trial.outcome.failure:
            return unseen("the run ended for another reason")
        lacking = "data that were prepared from other images" if run.earlier else "no prepared data"
        return broken(
            f"with {lacking} and the rank that prepares them slow, the run ends: {why[-1][:160] or trial.outcome.state}"
        )
    return HOLDS if writing else unseen("no rank prepared the dataset")


def waits_with_patience(trial):
    """Who waits for the data, at a barrier or in a store, gives up later than ``--timeout`` says.

    Judged is where a rank stands when the one that was made slow to write goes on. Not seen: patience of other ways
    to wait (a loop), which have limits of their own.
    """
    slow = [one["time"] for rank in trial.evidence.ranks for one in rank.named("delayed") if one["what"] == "writing"]
    for rank in trial.evidence.ranks:
        calls = sorted(rank.named("collective") + rank.named("waits in a store"), key=lambda one: one["time"])
        entered = [one for one in calls if slow and one["time"] < min(slow)]
        groups = rank.named("group")
        if not entered or not groups or entered[-1].get("name", "barrier") != "barrier":
            continue
        patience, usual = entered[-1].get("patience_s"), groups[0].get("timeout_s")
        if patience and usual and patience <= usual:
            return broken(
                f"rank {rank.number} waits for the data with a patience that ends after {patience:g} s, and a download"
                " may take longer",
                entered[-1]["line"],
            )
    return HOLDS
