"""Processes that stay, so that many small tests share one start: call a function on every rank.

    with Ranks(3) as ranks:
        results = ranks(function, argument)          # function(argument) on each rank, a list of results

Functions and results cross by pickle. A call has a time limit; whatever goes wrong ends all processes.
"""

import os
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from programs import fork_context


class RankError(AssertionError):
    """A function failed on some rank; the text holds each traceback."""


class Ranks:
    """``world_size`` processes in one gloo group. ``timeout`` is the group's, in seconds."""

    def __init__(self, world_size, timeout=30):
        self.world_size, self.is_closed = world_size, False
        context = fork_context()
        self._folder = tempfile.TemporaryDirectory(prefix="lockstep-ranks-")
        self._pipes, self.processes = [], []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            args = (rank, world_size, f"{self._folder.name}/meet", timeout, theirs)
            process = context.Process(target=_serve, args=args, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __call__(self, function, *args, limit=90):
        """Run ``function(*args)`` on every rank and return the results, by rank. Raises ``RankError``."""
        self.start(function, *args)
        outcomes = self.outcomes(limit)
        failed = {rank: told for rank, (ok, told) in enumerate(outcomes) if not ok}
        if failed:
            self.close()  # the ranks that did not fail may be waiting for the others
            raise RankError("\n".join(f"rank {rank}:\n{told}" for rank, told in failed.items()))
        return [told for _, told in outcomes]

    def start(self, function, *args):
        """Start ``function`` on every rank and return at once."""
        for pipe in self._pipes:
            pipe.send((function, args))

    def outcomes(self, limit=90, of=None):
        """Return (True, result) or (False, traceback) of each rank, or of some; a lost rank's is (False, "lost")."""
        found = []
        for pipe in [self._pipes[rank] for rank in of] if of else self._pipes:
            try:
                if not pipe.poll(limit):
                    self.close()
                    raise RankError(f"not done after {limit} s")
                found.append(pipe.recv())
            except (EOFError, ConnectionError):
                found.append((False, "lost"))
        return found

    def close(self):
        """End all processes."""
        if self.is_closed:
            return
        self.is_closed = True
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
        self._folder.cleanup()


def _serve(rank, world_size, meeting_point, timeout, pipe):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{meeting_point}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=timeout),
    )
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            outcome = True, function(*args)
        except Exception:
            outcome = False, traceback.format_exc()
        pipe.send(outcome)
