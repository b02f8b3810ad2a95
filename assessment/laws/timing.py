"""The laws of time: a clock that counts training alone, precision as asked, what a step consists of and a run costs.

The checker slows rank 1's forward passes by ``SLOW_S``, so that in a step rank 0 has something to wait for.
"""

import itertools
import math
import statistics

from assessment.laws.rates import choice
from assessment.laws.records import time_between, without
from assessment.laws.verdict import HOLDS, broken, number, unseen

SLOW_S = 0.04


def profiled(trial):
    """Return ``step_ms`` of the record as three numbers, or the ``Verdict`` that says what is missing."""
    if trial.outcome.state != "finished":
        return unseen("the run did not finish")
    told = trial.artifacts.summary.get("step_ms")
    parts = ("computing", "waiting", "communicating")
    if not isinstance(told, dict) or not all(isinstance(told.get(part), (int, float)) for part in parts):
        return broken("summary.json has no step_ms with computing, waiting and communicating")
    return [told[part] for part in parts]


def passes(trial, rank):
    """Return the milliseconds between the forward passes that a rank made after its training, in two halves."""
    steps, passed = trial.evidence.ranks[rank].steps, trial.evidence.ranks[rank].named("forward")
    times = [one["time"] for one in passed if steps and one["time"] > steps[-1].time and one["teaches"]]
    half = len(times) // 2
    return [[1000 * (b - a) for a, b in itertools.pairwise(part)] for part in (times[:half], times[half:])]


def measures_a_step(trial):
    """``computing`` is the time of a step without communication.

    Within a factor of two of the median time between two passes: clocks of busy machines are no better. Not seen:
    what is left out of a step by less.
    """
    told = profiled(trial)
    if not isinstance(told, list):
        return told
    alone, _ = passes(trial, 0)
    slow, _ = passes(trial, 1)
    if not alone or not slow:
        return broken("no rank computed anything between the end of training and the end of the run")
    took = statistics.median(alone)
    if statistics.median(slow) - took < 500 * SLOW_S:
        return broken(
            f"rank 1 was made {1000 * SLOW_S:.0f} ms slower, but rank 0's steps without communication took as long as"
            f" its own ({took:.0f} ms): they communicate, and so wait"
        )
    if took / 2 < told[0] < 2 * took:
        return HOLDS
    return broken(f"rank 0's steps without communication took {took:.0f} ms; the record says {told[0]:.0f} ms")


def measures_waiting(trial):
    """``waiting`` is how much longer the slowest rank computes.

    Within half a step, and at least a quarter of it. Not seen: waiting at places other than the averaging.
    """
    told = profiled(trial)
    if not isinstance(told, list):
        return told
    if not measures_a_step(trial):
        return unseen("it depends on the time of a step")
    took, slow = (statistics.median(passes(trial, rank)[0]) for rank in (0, 1))
    if abs(told[1] - (slow - took)) < 0.5 * took and told[1] > 0.25 * (slow - took):
        return HOLDS
    return broken(
        f"rank 0 computed {took:.0f} ms a step and rank 1 {slow:.0f} ms; the record of rank 0 says that it waits"
        f" {told[1]:.1f} ms"
    )


def measures_communication(trial):
    """``communicating`` is what a step with communication takes beyond the slowest rank's computing.

    Within its own size and 15 ms. Not seen: which message takes the time.
    """
    told = profiled(trial)
    if not isinstance(told, list):
        return told
    _, together = passes(trial, 0)
    _, wait = passes(trial, 1)[0], told[1]
    if not together or not measures_waiting(trial):
        return unseen("it depends on computing and waiting")
    left = max(0.0, statistics.median(together) - told[0] - wait)
    if math.isfinite(told[2]) and told[2] >= 0 and abs(told[2] - left) < 15 + left:
        return HOLDS
    return broken(
        f"a step with communication took {left:.0f} ms more than computing and waiting; the record says"
        f" {told[2]:.0f} ms"
    )


def counts_the_cost(trial):
    """``device_seconds`` is the training time of all devices together.

    Within 1 % of ranks x ``time_s``. Not seen: what devices cost.
    """
    rows = trial.artifacts.metrics
    if trial.outcome.state != "finished" or not rows:
        return unseen("the run did not finish")
    told, one = trial.artifacts.summary.get("device_seconds"), number(rows[-1].get("time_s"))
    wanted = trial.evidence.world_size * one
    if told is not None and abs(told - wanted) < 0.01 * wanted:
        return HOLDS
    return broken(
        f"{trial.evidence.world_size} devices trained {one:.2f} s each; the record says device_seconds {told}"
    )


def goes_by_one_clock(trial):
    """An epoch takes no longer than from a rank's first sign to its last; clocks count from their machine's start.

    Judged on two machines, of which one was started long before the other. Not seen: times of day that are off by as
    little as those of machines are.
    """
    rows, ranks = trial.artifacts.metrics, trial.evidence.ranks
    if not rows or "epoch_time_s" not in rows[0]:
        return without(trial, "metrics.csv")
    if trial.outcome.state != "finished" or not all(rank.events for rank in ranks):
        return unseen("the run did not finish")
    most = max(rank.events[-1]["time"] for rank in ranks) - min(rank.events[0]["time"] for rank in ranks)
    for epoch, row in enumerate(rows, start=1):
        told = number(row.get("epoch_time_s"))
        if not -0.05 < told < most + 0.05:
            return broken(
                f"the whole run took {most:.1f} s, and epoch {epoch} {told:.1f} s, says the record: time.perf_counter()"
                " counts from any moment, so two readings tell a time only where both are of one machine"
            )
    return HOLDS


def computes_as_asked(trial):
    """``--precision`` decides whether the network computes in bfloat16 or in float32.

    Judged by the dtype of the first logits. Not seen: layers within that compute otherwise.
    """
    steps = trial.evidence.ranks[0].steps
    if not steps:
        return unseen("no step was seen")
    asked = choice(trial, "precision", "auto")
    found = steps[0].dtype.removeprefix("torch.")
    return (
        HOLDS if found == asked else broken(f"--precision {asked}, but the network computes in {found}", steps[0].line)
    )


def times_training(trial):
    """``epoch_time_s`` runs from the first batch to the last step, and leaves validation out.

    Within 0.02 s at the lower and 0.05 s at the upper end. Not seen: a clock that is off by less.
    """
    rows, rank = trial.artifacts.metrics, trial.evidence.ranks[0]
    epochs = trial.evidence.epochs(0)
    if len(rows) < 2 or len(rank.evaluations) < 2 or not all(epochs[:2]) or len(epochs) < 2:
        return unseen("no second epoch was seen")
    told = number(rows[1].get("epoch_time_s"))
    if not math.isfinite(told):
        return broken(f"epoch 2 reports {rows[1].get('epoch_time_s')} seconds")
    least, most = epochs[1][-1].time - epochs[1][0].time, time_between([rank], [epochs[1]])
    if most == math.inf:
        return unseen("epoch 2 was not seen between two validations")
    if told < least - 0.02:
        return broken(f"epoch 2 took at least {least:.2f} s; the record says {told:.2f} s")
    if told > most + 0.05:
        return broken(
            f"the training of epoch 2 took at most {most:.2f} s; the record says {told:.2f} s, with validation"
        )
    return HOLDS
