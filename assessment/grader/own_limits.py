"""What the grader itself is limited to, where it is started: its limits for submissions must lie within."""

import resource
import subprocess
from contextlib import suppress

from assessment.grader.sandbox import MEGABYTE, Sandbox
from utils.errors import UserError

MOST_BYTES = 8_000_000_000  # of memory, for a process that grades
START_S = 20


def refuse_too_much(kind, limits):
    """Raise ``UserError`` where sandboxes of this ``kind`` cannot have these ``limits`` here: it is tried, not guessed.

    So it is where the process that grades cannot have the memory that it may take.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    if most != resource.RLIM_INFINITY and most < MOST_BYTES:
        raise UserError(
            f"a process may take {most // MEGABYTE:,} MB of memory here (ulimit -H -d), and the grader needs"
            f" {MOST_BYTES // MEGABYTE:,}: start it where that limit is higher"
        )
    with suppress(OSError, subprocess.TimeoutExpired):  # a sandbox that does not start at all is told elsewhere
        tried = Sandbox(kind, None, limits).wrap(["/bin/true"])
        done = subprocess.run(tried, timeout=START_S, capture_output=True, cwd="/", text=True, errors="replace")
        if "prlimit" in done.stderr:
            said = done.stderr.strip().splitlines()[0]
            raise UserError(
                f"the limits of the assignment cannot be set here ({said}): lower them in its"
                " config.json, or start the grader where ulimit -H -a allows them"
            )
