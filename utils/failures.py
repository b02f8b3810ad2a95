"""Find out which rank of a failed run failed first, and say so with its own traceback.

torchrun reports the rank whose end it noticed first. The ranks that were waiting for the culprit in a
collective end within milliseconds of it, with an error about a lost connection, so that is often the
wrong one. Here a lost connection counts as a consequence, and among causes the earliest counts.
"""

import re
import signal

REPORTED = re.compile(r"rank\s*: (\d+) \(local_rank: \d+\)\s*exitcode\s*: (-?\d+)")
LOST_PEER = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused|remote process has terminated"
    r"|Socket Timeout|Timed out waiting|NCCL communicator was aborted|ncclRemoteError",
    re.IGNORECASE,
)
TRACEBACK = "Traceback (most recent call last)"
RANK_MARK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch puts it before each line of a traceback


def explain_failure(logs, report):
    """Return what went wrong: the first failing rank's output uncut, then a line for each other rank.

    ``logs`` maps each rank to the path of what it printed, ``report`` is what torchrun printed.
    """
    exits = {int(rank): int(code) for rank, code in REPORTED.findall(report)}
    # A rank that torchrun ended itself, because another had failed, is no cause.
    failed = {rank: code for rank, code in exits.items() if code != -signal.SIGTERM}
    if not failed:
        return f"torchrun failed:\n{report.strip()}"
    texts = {
        rank: RANK_MARK.sub("", path.read_text(encoding="utf-8", errors="replace"))
        for rank, path in logs.items()
        if path.exists()
    }

    def order(rank):
        text = texts.get(rank, "")
        is_consequence = failed[rank] > 0 and bool(LOST_PEER.search(_last_line(text)))
        return is_consequence, logs[rank].stat().st_mtime_ns if rank in texts else 0

    first = min(failed, key=order)
    others = [f"rank {rank}: {_last_line(texts.get(rank, ''))}" for rank in sorted(failed) if rank != first]
    told = _from_traceback(texts.get(first, ""))
    return "\n\n".join(filter(None, [f"rank {first} failed first{_how(failed[first])}", told, "\n".join(others)]))


def _how(code):
    if code >= 0:
        return f" (exit code {code}):"
    name = signal.Signals(-code).name
    hint = "; the system does this when memory runs out" if name == "SIGKILL" else ""
    return f": it was ended by signal {-code} ({name}){hint}"


def _from_traceback(text):
    start = text.find(TRACEBACK)
    return text[start:].strip() if start >= 0 else "\n".join(text.strip().splitlines()[-20:])


def _last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else "(nothing printed)"
