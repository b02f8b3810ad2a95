"""What each rank of a run prints: kept in a file a rank, read whole or followed line by line."""

import re
import tempfile
from pathlib import Path

RANK_MARK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch puts it before each line of a traceback

# What gloo's threads make the C++ runtime say when an interpreter shuts down; it hides the last real line.
ABORT = "terminate called without an active exception"
MOST_BYTES = 20_000_000


class RankLogs:
    """The output of ``processes`` ranks, in a temporary folder that lives as long as this object.

    With a folder ``within`` it is made there, and stays as long as that does.
    """

    def __init__(self, processes, within=None):
        self.processes = processes
        self._temporary = None if within else tempfile.TemporaryDirectory(prefix="lockstep-")
        self.folder = Path(tempfile.mkdtemp(prefix="logs-", dir=within) if within else self._temporary.name)
        self._shown = dict.fromkeys(range(processes), 0)

    def path(self, rank):
        """Return the file of ``rank``; ``{rank}`` gives the pattern that a tether fills in."""
        return self.folder / f"{rank}.log"

    def text(self, rank):
        """Return all that ``rank`` has printed so far."""
        path = self.path(rank)
        return RANK_MARK.sub("", end_of(path)) if path.exists() else ""

    def last_line(self, rank):
        """Return the last line that ``rank`` has printed of its own."""
        lines = [line for line in self.text(rank).strip().splitlines() if line != ABORT]
        return lines[-1] if lines else "(nothing printed)"

    def show(self, *, name_all=False, is_over=False):
        """Print the whole lines that have come since the last call, each with its rank.

        Rank 0 goes without its number unless ``name_all``; ``is_over`` prints an unfinished line too.
        """
        for rank in range(self.processes):
            text = self.text(rank)[self._shown[rank] :]
            ready = text if is_over else text[: text.rfind("\n") + 1]
            self._shown[rank] += len(ready)
            mark = f"[rank {rank}] " if rank or name_all else ""
            for line in ready.splitlines():
                print(mark + line, flush=True)


def end_of(path):
    """Return the text of the file ``path``, of a very long one the end."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - MOST_BYTES))
        return file.read(MOST_BYTES).decode("utf-8", "replace")
