"""The laws of lab 02: the batch divided by load, and gradients that travel round a ring."""

from assessment.laws.gradients import count_images, gradients_are_averaged, is_local, is_no_number
from assessment.laws.lockstep import per_rank
from assessment.laws.rates import choice
from assessment.laws.verdict import HOLDS, broken, unseen


def divides_by_load(trial):
    """Each rank takes its part of the global batch, in proportion to its load, within one image."""
    rounds, world_size = trial.evidence.rounds, trial.evidence.world_size
    if not rounds:
        return unseen("not every rank trained")
    batch = trial.evidence.settings["global_batch_size"]
    loads = [float(one) for one in choice(trial, "worker_load", ",".join(["1"] * world_size)).split(",")]
    taken = [len(step.rows) for step in rounds[0]]
    wanted = [batch * load / sum(loads) for load in loads]
    if sum(taken) == batch and all(abs(one - other) < 1.001 for one, other in zip(taken, wanted, strict=True)):
        return HOLDS
    if len(set(taken)) == 1 and taken[0] == batch:
        return unseen("every rank takes the whole global batch, so the division does not show")
    return broken(f"of {batch} images with loads {per_rank(loads)} the ranks take: {per_rank(taken)}")


def takes_its_part(trial):
    """No image of a step is taken by two ranks."""
    if not trial.evidence.rounds:
        return unseen("not every rank trained")
    for number, steps in enumerate(trial.evidence.rounds, start=1):
        rows = [row for step in steps for row in step.rows if row is not None]
        twice = len(rows) - len(set(rows))
        if twice:
            return broken(
                f"in step {number} {twice} of {len(set(rows))} images were taken by more than one rank", steps[0].line
            )
    return HOLDS


def goes_round_the_ring(trial):
    """The gradients are added up with send and receive between neighbours alone."""
    world_size, rounds = trial.evidence.world_size, trial.evidence.rounds
    if not rounds:
        return unseen("not every rank trained")
    rank = trial.evidence.ranks[0]
    first, last = rank.steps[0].time, rank.steps[-1].time
    calls = [one for one in rank.named("collective") if first <= one["time"] <= last]
    sent = [one for one in calls if one["name"] in ("batch_isend_irecv", "isend", "send")]
    size = max((one["numel"] or 0 for one in calls if one["name"] not in ("isend", "irecv", "send", "recv")), default=0)
    if size > 1000:
        large = next(one for one in calls if one["numel"] == size)
        return broken(
            f"{large['name']} carries {size:,} numbers, where the lab asks for send and receive", large["line"]
        )
    if not sent:
        return unseen("nothing was sent between the ranks yet")
    if any(is_no_number(step) or not step.rows for step in rounds[0]):
        return unseen("the first step shows no images, or no gradient")
    counts = count_images(rounds[0])[0]
    steps = max(1, len(rank.steps) - 1)
    if gradients_are_averaged(trial.evidence):
        messages = 2 * (world_size - 1)
        each = len(sent) / steps
        return (
            HOLDS
            if each <= messages + 0.5
            else broken(f"a step sends {each:.0f} times; a ring of {world_size} needs {messages}")
        )
    if any(is_local(count, number) for number, count in enumerate(counts)):
        return broken(
            "messages are sent, but what the other ranks computed does not arrive in the gradient", sent[0]["line"]
        )
    return unseen("the gradient is not right yet")
