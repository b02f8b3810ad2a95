"""The laws of lab 01: precision as asked, and a clock that counts training alone."""

import math

from assessment.laws.rates import choice
from assessment.laws.records import number
from assessment.laws.verdict import HOLDS, broken, unseen


def computes_as_asked(trial):
    """``--precision`` decides whether the network computes in bfloat16 or in float32."""
    steps = trial.evidence.ranks[0].steps
    if not steps:
        return unseen("no step was seen")
    asked = choice(trial, "precision", "auto")
    found = steps[0].dtype.removeprefix("torch.")
    return (
        HOLDS if found == asked else broken(f"--precision {asked}, but the network computes in {found}", steps[0].line)
    )


def times_training(trial):
    """``epoch_time_s`` runs from the first batch to the last step, and leaves validation out."""
    rows, rank = trial.artifacts.metrics, trial.evidence.ranks[0]
    epochs = trial.evidence.epochs(0)
    if len(rows) < 2 or len(rank.evaluations) < 2 or not all(epochs[:2]) or len(epochs) < 2:
        return unseen("no second epoch was seen")
    told = number(rows[1].get("epoch_time_s"))
    if not math.isfinite(told):
        return broken(f"epoch 2 reports {rows[1].get('epoch_time_s')} seconds")
    judged = [one["time"] for one in rank.named("forward") if not one["teaches"]]
    first, last = epochs[1][0].time, epochs[1][-1].time
    earlier, later = [time for time in judged if time < first], [time for time in judged if time > last]
    if not earlier or not later:
        return unseen("epoch 2 was not seen between two validations")
    least, most = last - first, min(later) - max(earlier)
    if told < least - 0.02:
        return broken(f"epoch 2 took at least {least:.2f} s; the record says {told:.2f} s")
    slow = trial.delays.get("evaluation:0", 0.0)
    if told > most - slow + 0.05:
        return broken(
            f"the training of epoch 2 took at most {most - slow:.2f} s; the record says {told:.2f} s, with validation"
        )
    return HOLDS
