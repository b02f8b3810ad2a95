"""The laws of lab 02: the batch divided by load, and gradients that travel round a ring."""

import itertools
import statistics

from assessment.laws.calls import ended, returned
from assessment.laws.gradients import count_images, gradients_are_averaged, is_local, is_no_number
from assessment.laws.group import is_mismatched, parting
from assessment.laws.lockstep import per_rank
from assessment.laws.properties import ends_as_one_process
from assessment.laws.rates import choice
from assessment.laws.verdict import HOLDS, broken, unseen
from assessment.recorder.probes import BASE, NUMBERS


def divides_by_load(trial):
    """Each rank takes its part of the global batch, in proportion to its load: none without load, within one image.

    Within one image of the exact share, in the first step. Not seen: images that the recorder does not know.
    """
    rounds, world_size = trial.evidence.rounds, trial.evidence.world_size
    if not rounds:
        return unseen("not every rank trained")
    batch = trial.evidence.settings["global_batch_size"]
    loads = [float(one) for one in choice(trial, "worker_load", ",".join(["1"] * world_size)).split(",")]
    taken = [len(step.rows) for step in rounds[0]]
    wanted = [batch * load / sum(loads) for load in loads]
    is_near = all(abs(one - other) < 1.001 for one, other in zip(taken, wanted, strict=True))
    if sum(taken) == batch and is_near and not any(one for one, load in zip(taken, loads, strict=True) if not load):
        return HOLDS
    if len(set(taken)) == 1 and taken[0] == batch:
        return unseen("every rank takes the whole global batch, so the division does not show")
    return broken(f"of {batch} images with loads {per_rank(loads)} the ranks take: {per_rank(taken)}")


def takes_its_part(trial):
    """No image of a step is taken by two ranks.

    Judged by the images' numbers, exactly. Not seen: images that the recorder does not know.
    """
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
    """The gradients are added up with send and receive between neighbours alone.

    A message of more than 1,000 numbers is one of gradients; a ring takes 2 (ranks - 1) of them, and as many for each
    bucket, which is judged by the median: between epochs more may go round. Not seen: in which order chunks travel,
    where the sum is right.
    """
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
    is_own_seen = any(one for step in rounds[0] for one in step.local.values())
    if gradients_are_averaged(trial.evidence) or (not is_own_seen and ends_as_one_process(trial)):
        messages = 2 * (world_size - 1)
        times = [(earlier.time, later.time) for earlier, later in itertools.pairwise(rank.steps)]
        each = statistics.median(
            [sum(begun < one["time"] <= over for one in sent) for begun, over in times] or [len(sent)]
        )
        return (
            HOLDS
            if each <= messages or each % messages == 0
            else broken(f"a step sends {each:.0f} times; a ring of {world_size} needs {messages}")
        )
    if any(is_local(count, number) for number, count in enumerate(counts)):
        return broken(
            "messages are sent, but what the other ranks computed does not arrive in the gradient", sent[0]["line"]
        )
    return unseen("the gradient is not right yet")


def divides_batches(trial):
    """``divide`` gives every rank its part of a batch: whole numbers, all images, none to a rank without load.

    Near is within one image of the exact share. Not seen: a script whose function has another name or takes
    something else, which is judged by its steps alone.
    """
    for one in returned(trial, "divide"):
        (batch, loads), told = one["given"], one.get("returned")
        call = f"divide({batch}, {loads})"
        if "raised" in one:
            return broken(f"{call} ends with {one['raised']}", one["line"])
        is_list = isinstance(told, list) and len(told) == len(loads) and all(isinstance(part, int) for part in told)
        if not is_list:
            return broken(f"{call} returns {told!r}: {len(loads)} whole numbers are asked for", one["line"])
        wanted = [batch * load / sum(loads) for load in loads]
        is_near = all(abs(part - exact) < 1.001 for part, exact in zip(told, wanted, strict=True))
        if sum(told) != batch or not is_near or any(part for part, load in zip(told, loads, strict=True) if not load):
            exact = ", ".join(f"{one:.4g}" for one in wanted)
            return broken(f"{call} returns {told}, of {batch} images {sum(told)}: near {exact} is right", one["line"])
    return ended(trial, "divide")


def adds_up_round_the_ring(trial):
    """``ring_all_reduce`` leaves on every rank the sum of what all ranks brought.

    Three ranks bring numbers from whose sum it can be read how often each is in it; compared within 1 %. Not seen:
    a function of another name, which is judged by the gradients alone.
    """
    calls = [next(iter(returned(trial, "ring_all_reduce", rank)), None) for rank in range(trial.evidence.world_size)]
    if is_mismatched(trial):
        return broken(
            "ring_all_reduce breaks off: a message has another size than the one that is waited for, so the ranks do"
            " not mean the same chunk"
        )
    if trial.outcome.state != "finished" and not all(calls) and not ended(trial, "ring_all_reduce"):
        return broken("; ".join(["ring_all_reduce does not come to its end", *parting(trial)]))
    if not all(calls):
        return ended(trial, "ring_all_reduce")
    for rank, one in enumerate(calls):
        if "raised" in one:
            return broken(f"ring_all_reduce ends on rank {rank} with {one['raised']}", one["line"])
    held = [counts_in_chunks(one["left"][0], len(calls)) for one in calls]
    right = [1] * len(calls)
    off = [(rank, chunk) for rank, chunks in enumerate(held) for chunk, one in enumerate(chunks) if one != right]
    if not off:
        return HOLDS
    rank, chunk = off[0]
    whole = {chunk for chunks in held for chunk, one in enumerate(chunks) if one == right}
    where = (
        "every chunk is whole on some rank, so look at the steps that pass on"
        if len(whole) == len(calls)
        else f"no rank has a whole sum of chunk {min(set(range(len(calls))) - whole)}, so look at the steps that add"
    )
    told = holding(held[rank][chunk])
    return broken(f"after the ring chunk {chunk} of rank {rank} holds {told}; {where}", calls[rank]["line"])


def counts_in_chunks(numbers, world_size):
    """Return for each chunk how often each rank's numbers are in it; None where they are of another place."""
    parts = [number / (1 + at / NUMBERS) for at, number in enumerate(numbers)]
    ends = [sum(NUMBERS // world_size + (one < NUMBERS % world_size) for one in range(at)) for at in range(world_size)]
    chunks = [parts[start:end] for start, end in zip(ends, [*ends[1:], NUMBERS], strict=True)]
    return [counts(chunk[0], world_size) if max(chunk) - min(chunk) < 0.01 else None for chunk in chunks]


def counts(total, world_size):
    whole = round(total)
    return None if abs(total - whole) > 0.01 else [whole // BASE**rank % BASE for rank in range(world_size)]


def holding(found):
    """Return in words what a chunk holds."""
    if found is None:
        return "numbers of another place"
    often = ("not", "once", "twice")
    times = [f"rank {rank}'s {often[one] if one < 3 else f'{one} times'}" for rank, one in enumerate(found)]
    return ", ".join(times) + ", and each once is right"
