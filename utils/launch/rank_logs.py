"""What each rank of a run prints: kept in a file a rank, read whole or followed line by line."""

import re
import tempfile
from pathlib import Path

RANK_MARK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch puts it before each line of a traceback

# What gloo's threads make the C++ runtime say when an interpreter shuts down; it hides the last real line.
ABORT = "terminate called without an active exception"
MOST_BYTES = 20_000_000  # of one rank's output that are read at once
MOST_LINE = 100_000  # bytes: what is longer is shown before it ends


class RankLogs:
    """The output of ``processes`` ranks, in a temporary folder that lives as long as this object.

    With a folder ``within`` it is made there, and stays as long as that does.
    """

    def __init__(self, processes, within=None):
        self.processes = processes
        self._temporary = None if within else tempfile.TemporaryDirectory(prefix="lockstep-")
        self.folder = Path(tempfile.mkdtemp(prefix="logs-", dir=within) if within else self._temporary.name)
        self._shown = dict.fromkeys(range(processes), 0)  # bytes of each file

    def path(self, rank):
        """Return the file of ``rank``; ``{rank}`` gives the pattern that a tether fills in."""
        return self.folder / f"{rank}.log"

    def text(self, rank):
        """Return what ``rank`` has printed so far, of more than 20 MB the end."""
        return self._end(rank, MOST_BYTES)

    def _end(self, rank, size):
        path = self.path(rank)
        if not path.is_file():  # a rank may have put anything in its place
            return ""
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return readable(file.read(size))

    def last_line(self, rank):
        """Return the last line that ``rank`` has printed of its own."""
        lines = [line for line in self._end(rank, MOST_LINE).strip().splitlines() if line != ABORT]
        return lines[-1] if lines else "(nothing printed)"

    def show(self, *, name_all=False, is_over=False):
        """Print the whole lines that have come since the last call, each with its rank.

        Rank 0 goes without its number unless ``name_all``; ``is_over`` prints an unfinished line too.
        """
        for rank in range(self.processes):
            mark = f"[rank {rank}] " if rank or name_all else ""
            while ready := self._unseen(rank, is_over):
                for line in readable(ready).splitlines():
                    print(mark + line, flush=True)

    def _unseen(self, rank, is_over):
        """Return the next bytes that ``rank`` has printed: whole lines, unless ``is_over`` or they grow too long."""
        path = self.path(rank)
        if not path.is_file():
            return b""
        with open(path, "rb") as file:
            file.seek(self._shown[rank])
            found = file.read(MOST_LINE)
        ready = found[: found.rfind(b"\n") + 1] or (found if is_over or len(found) == MOST_LINE else b"")
        self._shown[rank] += len(ready)
        return ready


def readable(printed):
    return RANK_MARK.sub("", printed.decode("utf-8", "replace"))
