"""Problems that the user can put right, told in one line instead of a traceback."""

import os
import re
import sys
from contextlib import contextmanager, suppress

import psutil

IN_VAIN = re.compile("timed out|timeout", re.IGNORECASE)


class UserError(Exception):
    """Something is missing or wrong outside the code; the text is one line that says what to do."""

    def _render_traceback_(self):
        """Show the line alone in a notebook (IPython asks exceptions for this method)."""
        return [f"{type(self).__name__}: {self}"]


@contextmanager
def one_line_errors():
    """End the process with code 1 and the text of a ``UserError``; let every other exception pass.

    To that of a rank that has waited for another in vain, it adds which rank of this machine is stopped, if one is.
    """
    try:
        yield
    except UserError as problem:
        sys.exit(str(problem))
    except RuntimeError as error:
        if type(error).__name__ == "DistNetworkError":  # of torch, which not every program here imports
            place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            sys.exit(f"nobody answers at {place}, where rank 0 should be ({first_line(error)}): use torchrun")
        stopped = stopped_ranks() if IN_VAIN.search(str(error)) else []
        if stopped:
            who = " and ".join(f"rank {rank} (process {pid})" for rank, pid in stopped)
            error.add_note(f"Timed out waiting for {who}: stopped from outside (SIGSTOP, Ctrl-Z, a debugger)")
        raise


def stopped_ranks():
    """Return rank and process number of each rank of this machine that a signal or a debugger holds.

    torchrun starts the ranks of a machine in turn, so their order tells which is which.
    """
    with suppress(KeyError, psutil.Error):
        local_rank, count = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
        first = int(os.environ["RANK"]) - local_rank
        ranks = sorted(psutil.Process(os.getppid()).children(), key=lambda one: (one.create_time(), one.pid))
        if len(ranks) == count and ranks[local_rank].pid == os.getpid():
            held = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
            return [(first + number, one.pid) for number, one in enumerate(ranks) if one.status() in held]
    return []


def shortened(value, most=60):
    """Return what ``value`` looks like, for a message of one line: no more than ``most`` letters of it."""
    if isinstance(value, int) and value.bit_length() > 1000:
        return f"a number of {value.bit_length():,} bits"  # Python writes none of more than 4,300 digits
    told = repr(value)
    return told if len(told) <= most else f"{told[: most - 3]}..."


def first_line(error):
    """Return the first line of what ``error`` says, or else what it is."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
