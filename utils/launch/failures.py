"""Find out which rank of a failed run failed first, and say so with its own traceback.

The ranks that were waiting for the culprit in a collective end within milliseconds of it, with an error
about a lost connection, and torchrun reports the rank whose end it noticed first: often the wrong one.
Here a lost connection counts as a consequence, and among causes the earliest counts.
"""

import re
import signal

REPORTED = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s*exitcode\s*: (-?\d+)")
LOST_PEER = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused|remote process has terminated"
    r"|Socket Timeout|Timed out waiting|NCCL communicator was aborted|ncclRemoteError",
    re.IGNORECASE,
)
HELD = re.compile(r"Timed out waiting for (rank (\d{1,6}) .*)")  # as one_line_errors says it, or a stranger's script
TRACEBACK = "Traceback (most recent call last)"
MOST_TEXT, MOST_LINE = 20_000, 500  # letters of what one rank printed that are told


def reported_exits(report):
    """Return the exit code of each failed rank from what torchrun printed."""
    return {int(rank): int(code) for rank, code in REPORTED.findall(report)}


def first_failure(logs, exits):
    """Return the rank that failed first and how it ended, as text.

    ``logs`` are the run's ``RankLogs``; ``exits`` maps the failed ranks to exit codes, negative for a signal.
    """
    for rank in exits:
        if held := HELD.match(logs.last_line(rank)):
            return int(held[2]), f"the others waited in vain for {held[1][:MOST_LINE]}"
    # A Python exception in a process with gloo's threads often ends in their abort; the exception counts.
    raised = {rank for rank, code in exits.items() if code == -signal.SIGABRT and TRACEBACK in logs.text(rank)}
    exits = exits | dict.fromkeys(raised, 1)

    def order(rank):
        is_consequence = exits[rank] > 0 and bool(LOST_PEER.search(logs.last_line(rank)))
        path = logs.path(rank)
        return is_consequence, path.stat().st_mtime_ns if path.exists() else 0

    # A rank that was ended because another had failed is no cause.
    causes = [rank for rank, code in exits.items() if code not in (-signal.SIGTERM, 128 + signal.SIGTERM)]
    first = min(causes or exits, key=order)
    return first, f"rank {first} failed first{_how(exits[first])}"


def explain_failure(logs, exits):
    """Return what went wrong: the end of the first failing rank's output, then a line for each other rank."""
    first, told = first_failure(logs, exits)
    others = [
        f"rank {rank}: {logs.last_line(rank)[:MOST_LINE]}"
        for rank in sorted(exits)
        if rank != first and exits[rank] > 0
    ]
    return "\n\n".join(filter(None, [f"{told}:", _from_traceback(logs.text(first)), "\n".join(others)]))


def _how(code):
    if code >= 0:
        return f" (exit code {code})"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "one of the real-time signals"
    hint = "; the system does this when memory runs out" if name == "SIGKILL" else ""
    return f", ended by signal {-code} ({name}{hint})"


def _from_traceback(text):
    start = text.find(TRACEBACK)
    told = text[start:].strip() if start >= 0 else "\n".join(text.strip().splitlines()[-20:])
    return told if len(told) <= MOST_TEXT else f"{told[:MOST_LINE]}\n[…]\n{told[-MOST_TEXT:]}"
