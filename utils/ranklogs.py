"""What each rank of a run prints: kept in a file a rank, read whole or followed line by line."""

import re
import tempfile
from pathlib import Path

RANK_MARK = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)  # torch puts it before each line of a traceback

# What gloo's threads make the C++ runtime say when an interpreter shuts down; it hides the last real line.
ABORT = "terminate called without an active exception"


class RankLogs:
    """The output of ``processes`` ranks, in a temporary folder that lives as long as this object.

    The folder lies in ``within``, by default where the system has its temporary files.
    """

    def __init__(self, processes, within=None):
        self.processes = processes
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep-", dir=within, ignore_cleanup_errors=True)
        self._shown = dict.fromkeys(range(processes), 0)

    @property
    def folder(self):
        return Path(self._folder.name)

    def path(self, rank):
        """Return the file of ``rank``; ``{rank}`` gives the pattern that a tether fills in."""
        return self.folder / f"{rank}.log"

    def text(self, rank):
        """Return all that ``rank`` has printed so far."""
        path = self.path(rank)
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        return RANK_MARK.sub("", text)

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
