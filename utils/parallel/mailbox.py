"""All-gather of small vectors between the ranks of one machine, through memory that they share.

    rows = gather(vector)            # every rank's vector, a row a rank: [world size, len(vector)]

gloo hands even the shortest message through several threads and a socket, and on a machine whose cores are all
computing each of these may wait for its turn: milliseconds for a hundred numbers. Here a rank writes into
memory, and the others look until they see it.

Ranks on several machines, on a GPU or on processors that may reorder writes use the group's own all-gather.
"""

import os
import platform
import secrets
import sys
import tempfile
import time
from weakref import WeakKeyDictionary

import psutil
import torch
import torch.distributed as dist

from utils.errors import UserError

PREFIX = "lockstep-mailbox-"
CAPACITY = 4_097  # numbers a vector: mean and variance of 2,048 channels, and a count
SPIN_S = 0.002  # so long a rank looks without a pause; then it sleeps between looks
PAUSE_S = 0.0001
# x86 shows the writes of one processor to the others in their order (Intel's manual, volume 3, section on
# memory ordering), so whoever sees the counter sees the vector that was written before it.
IN_ORDER = platform.machine() == "x86_64"

_mailboxes = WeakKeyDictionary()


def gather(vector, group=None):
    """Return every rank's ``vector`` (float, 1-d, of one length on all ranks) as rows [world size, length].

    Every rank of ``group`` must call it. Raises ``RuntimeError`` when a rank has died or does not come within
    the group's timeout and, where the ranks share memory, ``UserError`` where lengths differ.
    """
    group = group or dist.group.WORLD
    if vector.device.type == "cpu":
        if group not in _mailboxes:
            _mailboxes[group] = _open(group)
        if _mailboxes[group] is not None:
            rows = _mailboxes[group].gather(vector)
            if len(vector) <= CAPACITY:
                return rows
    rows = vector.new_empty(dist.get_world_size(group) * len(vector))
    dist.all_gather_into_tensor(rows, vector, group=group)
    return rows.view(-1, len(vector))


def _open(group):
    """Return the ``_Mailbox`` of the group's ranks, or None where they do not all share one memory."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    words = 2 * size * CAPACITY + 4 * size + 1  # vectors and lengths twice over, counters, process numbers, a token
    told = [_lay_out(words) if rank == 0 else None]
    try:
        dist.broadcast_object_list(told, group=group, group_src=0)
        path, token, namespace = told[0] or ("", 0, "")
        shared = None
        if IN_ORDER and os.path.isfile(path) and namespace == _namespace():
            shared = torch.from_file(path, shared=True, size=words, dtype=torch.int64)
        sees = torch.tensor(int(shared is not None and shared[-1].item() == token))
        dist.all_reduce(sees, dist.ReduceOp.MIN, group)
    finally:
        if rank == 0 and told[0]:
            os.unlink(told[0][0])  # the memory stays until the last rank has ended
    if not sees:
        return None
    timeout = group._get_backend(torch.device("cpu")).options._timeout
    return _Mailbox(shared, rank, size, timeout.total_seconds())


def _lay_out(words):
    """Return the path of a file of zeros in memory, the token at its end and this process's namespace, or None."""
    token, path = secrets.randbits(62), None
    try:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        handle, path = tempfile.mkstemp(prefix=PREFIX, dir=memory)
        with open(handle, "wb") as file:  # every page is written, so that no room is lacking later
            file.write(bytes(8 * (words - 1)) + token.to_bytes(8, sys.byteorder))
    except OSError:
        if path:
            os.unlink(path)
        return None
    return path, token, _namespace()


def _namespace():
    """Return what tells whether two processes know each other by the same numbers."""
    return os.readlink("/proc/self/ns/pid") if os.path.exists("/proc/self/ns/pid") else ""


class _Mailbox:
    """Shared slots, two for each rank, and a counter for each that says how many vectors it has written.

    Rank r writes its n-th vector into its slot n mod 2 and then n into its counter. It can be one vector
    ahead of the others, never two, because it waits for all; so nothing is overwritten that is not read.
    """

    def __init__(self, shared, rank, size, timeout):
        self._rank, self._timeout, self._count = rank, timeout, 0
        self._others = [peer for peer in range(size) if peer != rank]
        self._slots = shared[: 2 * size * CAPACITY].view(torch.float64).view(2, size, CAPACITY)
        numbers = shared[2 * size * CAPACITY :].numpy()
        self._counters, self._processes = numbers[:size], numbers[size : 2 * size]
        self._lengths = numbers[2 * size : 4 * size].reshape(2, size)
        self._processes[rank] = os.getpid()

    def gather(self, vector):
        self._count += 1
        slots = self._slots[self._count % 2, :, : len(vector)]
        lengths = self._lengths[self._count % 2]
        slots[self._rank] = vector[:CAPACITY]  # of a longer one only the length counts
        lengths[self._rank] = len(vector)
        self._counters[self._rank] = self._count
        for peer in self._others:
            if self._counters[peer] < self._count:
                self._wait_for(peer)
            if lengths[peer] != len(vector):
                raise UserError(
                    f"rank {self._rank} gathers vectors of {len(vector)} numbers, rank {peer} of {lengths[peer]}:"
                    " build the same network on all ranks"
                )
        return slots.to(vector.dtype, copy=True)

    def _wait_for(self, peer):
        start = time.monotonic()
        while self._counters[peer] < self._count:
            waited = time.monotonic() - start
            if waited < SPIN_S:
                os.sched_yield()  # where there are more ranks than cores, the other may be waiting for this one
                continue
            time.sleep(PAUSE_S)
            if waited > self._timeout:
                raise RuntimeError(f"rank {peer} did not come to the collective within {self._timeout:g} s")
            if not _lives(int(self._processes[peer])):
                raise RuntimeError(f"rank {peer} has died while others waited for it in a collective")


def _lives(process):
    try:  # 0: it has not come so far yet
        return process == 0 or psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
