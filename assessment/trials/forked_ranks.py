"""The ranks of one run, forked off by a ``ForkServer`` with what torchrun would give them.

with ForkServer() as server:
    ranks = ForkedRanks(server, ["labs/03_ddp.py", "--epochs", 1], processes=2)
    ranks.wait(limit=60)
    ranks.kill()
    ranks.exits, ranks.logs.text(0)
"""

import time

from assessment.trials.conversation import LostError
from utils.launch.failures import explain_failure
from utils.launch.rank_logs import RankLogs

GRACE_S, POLL_S, LONGEST_GAP_S = 3, 0.05, 0.5


class ForkedRanks:
    """``processes`` ranks of the script ``argv[0]`` with its arguments; ``env`` adds to their environment.

    ``{rank}`` and ``{machine}`` in an argument stand for the numbers of the rank and of its machine: the ranks take
    themselves to be on so many ``machines``, with as many on each. What they print goes to a folder in ``within``.
    Those that ``are_apart`` share nothing that a fork inherits.
    """

    def __init__(self, server, argv, processes, env=None, within=None, machines=1, are_apart=False):
        self._server, self._processes = server, processes
        self.logs = RankLogs(processes, within or server.work)
        server.open_to_ranks(self.logs.folder)
        self._ended = None  # the exit codes when the ranks were killed
        envs = [_environment(processes, rank, machines) | (env or {}) for rank in range(processes)]
        places = [{"{rank}": one["RANK"], "{machine}": one["GROUP_RANK"]} for one in envs]
        argvs = [[_filled(str(one), place) for one in argv] for place in places]
        logs = [self.logs.path(rank) for rank in range(processes)]
        server.start(argvs, envs, logs, are_apart)

    @property
    def exits(self):
        """Return the exit code of each rank that has ended by itself, by rank; negative for a signal."""
        return self._server.exits() if self._ended is None else self._ended

    def wait(self, limit, is_stuck=lambda: False):
        """Wait until all ranks ended, or a little longer than the first failure, and return True.

        False after ``limit`` seconds, or where ``is_stuck()`` says that nothing goes on.
        """
        began, failed_at = time.monotonic(), None
        while len(exits := self.exits) < self._processes:
            now = time.monotonic()
            if failed_at is None and any(exits.values()):
                failed_at = now
            if failed_at is not None and now > failed_at + GRACE_S:
                return True
            if now > began + limit or is_stuck():
                return False
            time.sleep(POLL_S)
        return True

    def failure(self):
        """Return the output of the rank that failed first and the others' last lines; nothing where none failed."""
        failed = {rank: code for rank, code in self.exits.items() if code}
        return explain_failure(self.logs, failed) if failed else ""

    def kill(self):
        """End every rank that still runs, and all that the ranks started."""
        if self._ended is None:
            try:
                self._ended = self.exits
            except LostError:
                self._ended = {}
            self._server.end()


class Idle:
    """Say, asked again and again, whether the processes of ``server`` have done nothing for ``limit_s`` seconds.

    They compute, or wait for a disk: importing torch from a cold one takes long. Only time in which it was asked
    counts: where it was not, or the whole machine stood still, nothing was seen.
    """

    def __init__(self, server, limit_s):
        self._server, self._limit_s = server, limit_s
        self._computed, self._idle_s, self._asked_at = 0.0, 0.0, time.monotonic()

    def __call__(self):
        (computed, is_reading), now = self._server.activity(), time.monotonic()
        self._idle_s += min(now - self._asked_at, LONGEST_GAP_S)
        self._asked_at = now
        if is_reading or abs(computed - self._computed) > 0.1:  # less, where a process that had computed has ended
            self._computed, self._idle_s = computed, 0.0
        return self._idle_s > self._limit_s


def _filled(text, places):
    for name, value in places.items():
        text = text.replace(name, value)
    return text


def _environment(processes, rank, machines):
    """Return what torchrun puts into the environment of a rank on one of ``machines``; the server adds the port."""
    local_processes = processes // machines
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local_processes),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(local_processes),
        "GROUP_WORLD_SIZE": str(machines),
        "GROUP_RANK": str(rank // local_processes),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
