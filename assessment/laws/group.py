"""The laws of the process group: every rank knows its place, joins, meets the others and comes to its end."""

import re

from assessment.laws.verdict import HOLDS, broken, unseen
from utils.launch.failures import LOST_PEER

DAY_S = 86_400
MISMATCH = re.compile(r"collective mismatch|preamble\.length|Mismatch between collective", re.IGNORECASE)  # gloo, NCCL
SENDS_BUFFERS = "_sync_buffers"  # what DistributedDataParallel does in a forward pass
NO_GROUP = "process group has not been initialized"  # what torch says to a rank that has joined none


def joins(trial):
    """All ranks join one process group of the world's size.

    The world's size is that of the trial. A timeout of a day or more counts as a slip of units, and where the trial
    gave ``--timeout`` it must be that many seconds. Not seen: the timeout of a group without one of its own, and
    groups made besides.
    """
    world_size = trial.evidence.world_size
    for rank in trial.evidence.ranks:
        groups = rank.named("group")
        if not groups:
            joining = rank.named("joining")
            if joining and (trial.outcome.state == "hung" or NO_GROUP in trial.outcome.failure):
                return broken(f"rank {rank.number} waits in init_process_group for the others", joining[0]["line"])
            if rank.events and (rank.steps or trial.outcome.state == "finished"):
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
    asked, told = (
        trial.run.flags.get("timeout"),
        [rank.named("group")[0].get("timeout_s") for rank in trial.evidence.ranks],
    )
    if asked and any(one and one != float(asked) for one in told):
        off = next(one for one in told if one and one != float(asked))
        return broken(f"--timeout {asked} are seconds, but a rank waits {off:g} s for one that died")
    numbers = [rank.named("group")[0]["rank"] for rank in trial.evidence.ranks]
    return HOLDS if sorted(numbers) == list(range(world_size)) else broken(f"the ranks in the group are {numbers}")


def knows_its_rank(trial):
    """The script asks which rank it is: torchrun's variables, or the group.

    Seen are looks at RANK and LOCAL_RANK and calls of ``get_rank`` within three calls of the script. Not seen:
    whether the answer is used.
    """
    for rank in trial.evidence.ranks:
        if not rank.events:
            return unseen(f"rank {rank.number} ended before it began")
        if not rank.named("asks its rank"):
            if trial.outcome.state == "failed" and not any(map(has_begun, trial.evidence.ranks)):
                return unseen("the run ended before anything was done")
            count = trial.evidence.world_size
            return broken(f"{count} processes were started, and none of them asked which of the {count} it is")
    return HOLDS


def waits_for_what_it_starts(trial):
    """Whoever starts a collective with ``async_op=True`` waits for it: until then its tensor holds anything.

    A look at its future or at whether it is completed counts as waiting. Not seen: tensors that are read before that.
    """
    if trial.outcome.state != "finished":
        return unseen("the run did not finish")
    for rank in trial.evidence.ranks:
        waited = {one["number"] for one in rank.named("waited")}
        lost = next((one for one in rank.named("started") if one["number"] not in waited), None)
        if lost:
            return broken(
                f"{lost['name']} is started with async_op=True, and nobody waits for it: its tensor holds anything",
                lost["line"],
            )
    return HOLDS


def has_begun(rank):
    """Say whether a rank has come as far as to write, to join a group or to train."""
    return bool(rank.steps or rank.named("write") or rank.named("joining"))


def survives(trial):
    """No rank dies, but of waiting for another or of meeting it in another collective: ``meets`` tells of that.

    A rank that was left by another counts as its consequence. Not seen: errors that a script catches.
    """
    if trial.outcome.state != "failed" or is_left_behind(trial) or is_mismatched(trial):
        return HOLDS
    return broken(trial.outcome.failure, failing_line(trial))


def is_left_behind(trial):
    """Say whether ranks failed only because another had finished and left them waiting for it."""
    exits, logs = trial.outcome.exits, trial.outcome.logs
    lost = [rank for rank, code in exits.items() if code]
    last_lines = [logs[rank].strip().splitlines()[-1:] for rank in lost]
    return bool(lost) and 0 in exits.values() and all(one and LOST_PEER.search(one[0]) for one in last_lines)


def is_mismatched(trial):
    """Say whether a run died because its ranks entered different collectives at the same time."""
    return trial.outcome.state == "failed" and any(map(MISMATCH.search, trial.outcome.logs))


def failing_line(trial):
    """Return the line of the script at which the first traceback ends, or None."""
    first = trial.outcome.failure.partition("\n\nrank ")[0]
    lines = re.findall(rf'File "{re.escape(str(trial.run.script))}", line (\d+)', first)
    return int(lines[-1]) if lines else None


def meets(trial):
    """No rank waits for ever: all enter the same collectives in the same order.

    A run hangs where for ``SILENT_S`` nothing was noted and then for ``IDLE_S`` nothing computed. Named is the
    first collective of ``torch.distributed`` in which the ranks' names, sizes, roots or lines differ. Not seen: the
    names of what C++ sends, as the wrapper does.
    """
    if not waits_for_ever(trial) or ends_without_stopping(trial):
        return HOLDS
    told = "the ranks do not meet, and a collective ends only once every rank has made the call"
    return broken("; ".join([told, *parting(trial)]), parting_line(trial))


def waits_for_ever(trial):
    """Say whether a rank waits for another that does not come, or died of waiting or of meeting it elsewhere."""
    return trial.outcome.state == "hung" or is_left_behind(trial) or is_mismatched(trial)


def ends_without_stopping(trial):
    """Say whether the same run finished when it was not asked to stop early: then stopping is what is wrong."""
    free = trial.reference
    if free is None or "patience" not in trial.run.flags:
        return False
    return free.outcome.state == "finished" and free.evidence.settings == trial.evidence.settings


def collectives(trial):
    """Return what each rank entered, in order, as (name, numbers, line, rank that it goes out from)."""
    ranks = trial.evidence.ranks
    return [
        [(one["name"], one["numel"], one["line"], one.get("root")) for one in rank.named("collective")]
        for rank in ranks
    ]


def first_difference(calls):
    """Return the first place at which ranks enter different collectives, or the same one in different lines."""
    longest = max(map(len, calls))
    return next(
        (at for at in range(longest) if len({rank[at] if at < len(rank) else None for rank in calls}) > 1), None
    )


def parting(trial):
    """Return in words where the ranks of a hanging run parted, and where each stands."""
    calls = collectives(trial)
    told, at = [], first_difference(calls)
    if at is not None:
        names = [f"rank {rank} {described(own[at : at + 1])}" for rank, own in enumerate(calls)]
        told.append("the first call that they do not all make: " + ", ".join(names))
    return [*told, *(f"rank {rank} {standing(trial, rank, own)}" for rank, own in enumerate(calls))]


def parting_line(trial):
    """Return the line of the collective that only some ranks enter, None where none is known."""
    calls = collectives(trial)
    at = first_difference(calls)
    lines = [own[at][2] for own in calls if at is not None and at < len(own)]
    return min((line for line in lines if line), default=None)


def described(call):
    if not call:
        return "enters none"
    name, numel, line, root = call[0]
    told = f"enters {name}" + (f" of {numel} numbers" if numel else "")
    return told + (f" from rank {root}" if root is not None else "") + (f" in line {line}" if line else "")


def standing(trial, rank, calls):
    """Return where a rank of a run that does not go on stands, or ended."""
    is_hung = rank < len(trial.outcome.stacks)
    text = trial.outcome.stacks[rank] if is_hung else trial.outcome.logs[rank]
    lines = re.findall(rf'File ".*{re.escape(trial.run.script.name)}", line (\d+)', text)
    if lines:  # a stack begins with the innermost call, a traceback ends with it
        where = f"stands in line {lines[0] if is_hung else lines[-1]}"
        where += ", where the wrapper's forward pass sends buffers to all ranks" if SENDS_BUFFERS in text else ""
    else:
        where = "stands outside the script" if is_hung and text else "has ended"
    last = f" (its last collective is {calls[-1][0]}, line {calls[-1][2]})" if calls else ""
    return where + last
