"""The ranks of one run, forked off by a ``ForkServer`` with what torchrun would give them.

with ForkServer() as server:
    ranks = ForkedRanks(server, ["labs/03_ddp.py", "--epochs", 1], processes=2)
    ranks.wait(limit=60)
    ranks.kill()
    ranks.exits, ranks.logs.text(0)
"""

import time
from contextlib import suppress

import psutil
from torch.distributed import TCPStore

from assessment.fork_server import exit_code
from utils import processes as system
from utils.failures import explain_failure
from utils.ranklogs import RankLogs

GRACE_S, POLL_S = 3, 0.05


class ForkedRanks:
    """``processes`` ranks of the script ``argv[0]`` with its arguments; ``env`` adds to their environment.

    ``{rank}`` in an argument stands for the rank's number.
    """

    def __init__(self, server, argv, processes, env=None):
        self.logs = RankLogs(processes)
        # The ranks find each other at a port that the system chose for this store, as under torchrun.
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._ended = None  # the exit codes when the ranks were killed
        self._files = [self.logs.folder / f"{rank}.exit" for rank in range(processes)]
        shared = _environment(processes, self._store.port) | (env or {})
        self._pids = []
        for rank, file in enumerate(self._files):
            own_argv = [str(one).replace("{rank}", str(rank)) for one in argv]
            own_env = shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self._pids.append(server.fork(own_argv, own_env, self.logs.path(rank), file))

    @property
    def exits(self):
        """Return the exit code of each rank that has ended by itself, by rank; negative for a signal."""
        if self._ended is not None:
            return self._ended
        return {rank: code for rank, file in enumerate(self._files) if (code := exit_code(file)) is not None}

    def wait(self, limit, is_stuck=lambda: False):
        """Wait until all ranks ended, or a little longer than the first failure, and return True.

        False after ``limit`` seconds, or where ``is_stuck()`` says that nothing goes on.
        """
        began, failed_at = time.monotonic(), None
        while len(exits := self.exits) < len(self._files):
            now = time.monotonic()
            if failed_at is None and any(exits.values()):
                failed_at = now
            if failed_at is not None and now > failed_at + GRACE_S:
                return True
            if now > began + limit or is_stuck():
                return False
            time.sleep(POLL_S)
        return True

    def cpu_s(self):
        """Return the processor time that the ranks that run, and all that they started, have taken so far."""
        total = 0.0
        for one in set().union(*(system.family(pid) for pid in self._pids)):
            with suppress(psutil.NoSuchProcess):
                total += sum(one.cpu_times()[:2])
        return total

    def failure(self):
        """Return the output of the rank that failed first and the others' last lines; nothing where none failed."""
        failed = {rank: code for rank, code in self.exits.items() if code}
        return explain_failure(self.logs, failed) if failed else ""

    def kill(self):
        """End every rank that still runs, and all that it started."""
        self._ended = self.exits
        system.kill(set().union(*(system.family(pid) for pid in self._pids)))


def _environment(processes, port):
    """Return what torchrun puts into the environment of all ranks on one machine."""
    return {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_WORLD_SIZE": "1",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
