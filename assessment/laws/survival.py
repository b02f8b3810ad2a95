"""The laws of runs that are killed, stopped or poisoned: what goes on must end as what was never disturbed.

A run that goes on is held against the undisturbed one (``trial.reference``), step by step from where it goes on, and
against the one in whose folders it goes on (``trial.before``). All three have the same settings and the same seed.
"""

import math
import re
import signal

from assessment.laws.group import parting
from assessment.laws.lockstep import per_rank
from assessment.laws.records import is_below, is_record
from assessment.laws.validation import saved_weights
from assessment.laws.verdict import HOLDS, Verdict, broken, listed, number, unseen
from assessment.trials.trial import RECORD

LOST = 2  # steps that may be lost where a checkpoint is made behind each: one that is made, one that is agreed on
TIMES = ("time_s", "epoch_time_s", "images_per_s")


def place(trial):
    """Return after how many steps ``trial`` goes on, or the ``Verdict`` that says why that is not known.

    That is where the undisturbed run had the weights with which this one begins; else as many steps as it does not take
    any more.
    """
    whole, before = trial.reference, trial.before
    if whole is None or before is None or whole.outcome.state != "finished":
        return unseen("there is no undisturbed run to compare with")
    if trial.outcome.state != "finished":
        return unseen("the run that goes on did not finish")
    if saves(before).holds is False:
        return unseen("nothing was saved that it could go on from")
    total, taken, done = (len(one.evidence.ranks[0].steps) for one in (whole, trial, before))
    first = trial.evidence.ranks[0].steps[0].before if taken else {}
    for at in range(min(done, total - 1), 0, -1):
        if first and first == whole.evidence.ranks[0].steps[at].before:
            return at
    if taken >= total:
        return broken(f"started again with --resume, the run takes all {taken} steps anew; {done} had been done")
    if total - taken > done:
        return broken(f"the run was ended after {done} of {total} steps; of the rest it takes {taken} only")
    return total - taken


def saves_together(trial):
    """Where a checkpoint is made behind every step, all ranks go on until the kill comes.

    Not seen: what is saved, and where.
    """
    if -signal.SIGKILL in trial.outcome.exits.values():
        return HOLDS
    if trial.outcome.state == "hung":
        return broken("; ".join(["a checkpoint is due behind every step, and the run hangs", *parting(trial)]))
    if trial.outcome.state == "failed":
        why = trial.outcome.failure.strip().splitlines()[-1:] or [""]
        return broken(f"a checkpoint is due behind every step, and the run fails before it is killed: {why[0][:200]}")
    return unseen("the run was over before it was killed")


def saves(trial):
    """A run with ``--checkpoint-every 0`` that is killed late has left more than its record.

    Seen are files that were opened to be written in the run's folder. Not seen: what is in them, whether ``os.fsync``
    has brought them to the disk, and how many are kept.
    """
    if not saves_together(trial):
        return unseen("the run was not killed")
    written = [one["path"] for rank in trial.evidence.ranks for one in rank.named("write")]
    if any(is_below(path, [trial.artifacts.folder.parent]) and not is_of_the_record(path) for path in written):
        return HOLDS
    every, done = trial.run.flags.get("checkpoint_every"), max(len(rank.steps) for rank in trial.evidence.ranks)
    return broken(f"with --checkpoint-every {every} the run was killed behind step {done}, and had saved nothing")


def is_of_the_record(path):
    """Say whether a file is one of the record, or one that becomes it (``utils.files.written_whole``)."""
    name = path.rpartition("/")[2]
    return is_record(path) or name.startswith(tuple(f".{one}." for one in RECORD))


def goes_on(trial):
    """A run that is started again with ``--resume`` goes on near the step at which it ended.

    A checkpoint is made behind every step, or when the run is told to stop: ``LOST`` steps may be lost, and where the
    last checkpoint was damaged, as many more. Not seen: what a checkpoint costs.
    """
    at = place(trial)
    if isinstance(at, Verdict):
        return at
    done = len(trial.before.evidence.ranks[0].steps)
    if done - at <= (2 * LOST if trial.run.is_damaged else LOST):
        return HOLDS
    every = trial.before.run.flags.get("checkpoint_every")
    return broken(f"with --checkpoint-every {every} the run ended in step {done}, and goes on after step {at}")


def goes_on_with_the_next_images(trial):
    """Each step takes the images that it takes in the undisturbed run, on every rank.

    Judged by their numbers, exactly. Not seen: images that the recorder does not know.
    """
    at = place(trial)
    if isinstance(at, Verdict):
        return unseen("it is not known where the run goes on")
    for step, ours, theirs in steps_of_both(trial, at):
        if ours.rows == theirs.rows:
            continue
        an_epoch = len(trial.reference.evidence.ranks[0].steps) // trial.reference.evidence.settings["epochs"]
        begun = trial.reference.evidence.ranks[0].steps[at - at % an_epoch]
        is_first = at % an_epoch and step == at + 1 and ours.rows == begun.rows
        what = "those with which its epoch began" if is_first else "others"
        return broken(
            f"the run goes on after step {at}; step {step} of the undisturbed run takes the images"
            f" {listed(theirs.rows)}, this one takes {what}",
            ours.line,
        )
    return HOLDS


def restores_the_weights(trial):
    """The first step begins with the weights of the undisturbed run at that step, to the last bit.

    Compared are sketches. Not seen: buffers, which training does not read.
    """
    at = place(trial)
    if isinstance(at, Verdict):
        return unseen("it is not known where the run goes on")
    _step, ours, theirs = next(steps_of_both(trial, at), (0, None, None))
    if ours is None:
        return HOLDS
    apart = [name for name, one in theirs.before.items() if ours.before.get(name) != one]
    if not apart:
        return HOLDS
    return broken(f"the run goes on after step {at} with other weights than were there: {listed(apart)}", ours.line)


def draws_on(trial):
    """Every rank draws on where it was: images are changed, and units dropped, as in the undisturbed run.

    Judged where weights and images are the same: by what the network is given, then by each rank's own gradient, where
    the mean is another as well (a pass that nobody learns from, ahead of the step, is in the former alone). Not seen:
    numbers that are drawn later than in the first step.
    """
    at = place(trial)
    if isinstance(at, Verdict) or not goes_on_with_the_next_images(trial) or not restores_the_weights(trial):
        return unseen("it is not known where the run goes on, or it has other images or weights there")
    an_epoch = len(trial.reference.evidence.ranks[0].steps) // trial.reference.evidence.settings["epochs"]
    for rank, ours, theirs in ranks_of_both(trial, at):
        if ours.inputs != theirs.inputs:
            what = "changes its images by other random numbers than the undisturbed run"
        elif ours.local != theirs.local and ours.applied != theirs.applied:
            what = "drops other units than the undisturbed run"
        else:
            continue
        where = " (an epoch's first)" if at % an_epoch == 0 else ""
        return broken(f"in step {at + 1}{where}, where the run goes on, rank {rank} {what}", ours.line)
    return HOLDS


def restores_the_optimizer(trial):
    """The first step moves the weights as in the undisturbed run, where the gradients are the same.

    Judged to the last bit. Not seen: what the first step does not read.
    """
    at = place(trial)
    if isinstance(at, Verdict) or not draws_on(trial):
        return unseen("where the run goes on, gradients are others already")
    found = (steps_otherwise(at, ours, theirs) for _, ours, theirs in ranks_of_both(trial, at))
    return next((one for one in found if not one), HOLDS)


def steps_otherwise(at, ours, theirs):
    """Say whether a rank's first step behind ``at`` others does with its gradient what it did undisturbed."""
    if ours.applied == theirs.applied and ours.rates != theirs.rates:
        rates = f"{listed(ours.rates)}; it was {listed(theirs.rates)} in the undisturbed run"
        return broken(f"where the run goes on, step {at + 1} is taken with the rate {rates}", ours.line)
    if ours.applied == theirs.applied and ours.after != theirs.after:
        return broken(
            f"where the run goes on, the same gradient moves the weights otherwise (step {at + 1}): what the"
            " optimizer remembers of earlier steps is lost",
            ours.line,
        )
    return HOLDS


def ends_as_if_undisturbed(trial):
    """Weights and record are those of the undisturbed run: to the last bit, and in every column but times.

    Compared are sketches of the saved weights. Not seen: records of other forms.
    """
    at = place(trial)
    if isinstance(at, Verdict):
        return unseen("it is not known where the run goes on")
    ours, theirs = saved_weights(trial), saved_weights(trial.reference)
    if isinstance(ours, Verdict) or isinstance(theirs, Verdict):
        return unseen("there are no saved weights to compare")
    apart = [name for name, one in theirs.sketches.items() if ours.sketches.get(name) != one]
    if apart:
        return broken(
            f"the run that went on after step {at} ends with other weights than the undisturbed one: {listed(apart)}"
        )
    rows, wanted = trial.artifacts.metrics, trial.reference.artifacts.metrics
    if len(rows) != len(wanted):
        return broken(f"metrics.csv has {len(rows)} rows; that of the undisturbed run has {len(wanted)}")
    for epoch, (row, other) in enumerate(zip(rows, wanted, strict=True), start=1):
        off = [name for name in other if name not in TIMES and number(row.get(name)) != number(other[name])]
        if off:
            told = f"{off[0]} {row.get(off[0])}; it is {other[off[0]]} in the undisturbed run"
            return broken(f"epoch {epoch} of the run that went on after step {at} reports {told}")
    return HOLDS


def stops_after_the_same_step(trial):
    """Told to stop one after another, all ranks end after the same step, by themselves, and the record says so.

    The trial sends SIGTERM to one rank in a step, to the others in the next. Not seen: how fast.
    """
    if trial.outcome.state == "hung":
        told = "SIGTERM comes to one rank a step before the others, and the run hangs"
        return broken("; ".join([told, *parting(trial)]))
    counts = [len(rank.steps) for rank in trial.evidence.ranks]
    killed = sorted(rank for rank, code in trial.outcome.exits.items() if code < 0)
    if killed:
        return broken(f"SIGTERM ends rank {killed[0]} at once, in the middle of a step: nothing can be saved there")
    if len(set(counts)) > 1:
        return broken(f"SIGTERM comes to one rank a step before the others; steps taken: {per_rank(counts)}")
    if trial.reference is not None and counts[0] >= len(trial.reference.evidence.ranks[0].steps):
        return broken("SIGTERM came in the middle of training, and the run goes on to its end")
    state = trial.artifacts.summary.get("state", "stopped")
    if state != "stopped":
        return broken(f"the run was stopped, and summary.json says {state!r}")
    return HOLDS


def names_the_culprit(trial):
    """A loss that is no number ends the run, and the rank that brought it is named.

    The trial spoils one rank's logits once; what all ranks print is read. Not seen: what else the message says.
    """
    (what,) = trial.run.delays
    step, culprit = map(int, re.findall(r"\d+", what))
    taken = min(len(rank.steps) for rank in trial.evidence.ranks)
    if taken < step - 1:
        return unseen("the run ended before")
    if trial.outcome.state == "finished" or taken > step + 1:
        return broken(f"in step {step} the loss of rank {culprit} is no number, and training goes on")
    if trial.outcome.state == "hung":
        return broken("; ".join([f"the loss of rank {culprit} is no number, and the run hangs", *parting(trial)]))
    named = {int(one) for one in re.findall(r"\brank\W{0,3}(\d+)\b", "\n".join(trial.outcome.logs))}
    if named == {culprit}:
        return HOLDS
    told = f"it names rank {listed(sorted(named))}" if named else "it names no rank"
    return broken(f"in step {step} the loss of rank {culprit} is no number; the run ends, and {told}")


def saves_no_spoilt_step(trial):
    """A run that a loss of no number has ended goes on as if that step had never been.

    A checkpoint is due behind every step, that one too. Judged by the weights with which the run goes on. Not seen:
    what else is in the checkpoint.
    """
    before, steps = trial.before, trial.evidence.ranks[0].steps
    if before is None or not names_the_culprit(before):
        return unseen("no run was ended by a loss that is no number")
    spoilt = [name for name, one in (steps[0].before if steps else {}).items() if not all(map(math.isfinite, one))]
    if spoilt:
        return broken(
            "with a checkpoint behind every step, the one in which a loss is no number was saved as well: started again"
            f" with --resume, the run begins with weights that are none: {listed(spoilt)}"
        )
    return HOLDS


def steps_of_both(trial, at):
    """Yield the number, counted from 1, of each step of every rank from ``at`` on, as taken here and undisturbed."""
    for ours, theirs in zip(trial.evidence.ranks, trial.reference.evidence.ranks, strict=True):
        yield from zip(range(at + 1, len(theirs.steps) + 1), ours.steps, theirs.steps[at:], strict=False)


def ranks_of_both(trial, at):
    """Yield each rank's number with its first step here, and the same step undisturbed."""
    for ours, theirs in zip(trial.evidence.ranks, trial.reference.evidence.ranks, strict=True):
        if ours.steps and at < len(theirs.steps):
            yield ours.number, ours.steps[0], theirs.steps[at]
