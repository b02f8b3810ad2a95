"""All-gather of small vectors between the ranks of one machine, through memory that they share.

    rows = gather(vector)            # every rank's vector, a row a rank: [world size, len(vector)]

A vector of a hundred numbers takes a nanosecond or two for each; what it waits for are threads and sockets.
gloo hands a message through four threads, each of which has to be woken, and on a machine whose cores are
all computing that takes up to a few milliseconds. Here a rank writes into memory, and the others look
until they see it. (NCCL does the same between the GPUs of one machine.)

Ranks on several machines, on a GPU or on processors that may reorder writes use the group's own all-gather.
"""

import os
import platform
import secrets
import tempfile
import time
from pathlib import Path
from weakref import WeakKeyDictionary

import psutil
import torch
import torch.distributed as dist

from utils.errors import UserError

CAPACITY = 4_097  # numbers a vector: mean and variance of 2,048 channels, and a count
SPIN_S = 0.002  # so long a rank looks without a pause; then it sleeps between looks
PAUSE_S = 0.0001
# x86 shows the writes of one processor to the others in their order (Intel's manual, volume 3, section on
# memory ordering), so whoever sees the counter sees the vector that was written before it.
IN_ORDER = platform.machine() == "x86_64"

_mailboxes = WeakKeyDictionary()


def gather(vector, group=None):
    """Return every rank's ``vector`` (float, 1-d, of one length on all ranks) as rows [world size, length].

    Every rank of ``group`` must call it. Raises ``UserError`` where lengths differ, ``RuntimeError`` when a
    rank has died or does not come within the group's timeout.
    """
    group = group or dist.group.WORLD
    if vector.device.type == "cpu" and len(vector) <= CAPACITY:
        if group not in _mailboxes:
            _mailboxes[group] = _open(group)
        if _mailboxes[group] is not None:
            return _mailboxes[group].gather(vector)
    rows = vector.new_empty(dist.get_world_size(group) * len(vector))
    dist.all_gather_into_tensor(rows, vector, group=group)
    return rows.view(-1, len(vector))


def _open(group):
    """Return the ``_Mailbox`` of the group's ranks, or None where they do not all share one memory."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    words = 2 * size * CAPACITY + 4 * size + 1  # vectors and lengths twice over, counters, process numbers, a token
    told, path = [None, None], None
    if rank == 0:
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        handle, path = tempfile.mkstemp(prefix="lockstep-", dir=memory)
        os.close(handle)
        os.truncate(path, 8 * words)
        token = secrets.randbits(62)
        torch.from_file(path, shared=True, size=words, dtype=torch.int64)[-1] = token
        told = [path, token]
    dist.broadcast_object_list(told, group=group, group_src=0)
    shared = None
    if IN_ORDER and Path(told[0]).exists():
        shared = torch.from_file(told[0], shared=True, size=words, dtype=torch.int64)
    sees = torch.tensor(int(shared is not None and shared[-1].item() == told[1]))
    dist.all_reduce(sees, dist.ReduceOp.MIN, group)
    if rank == 0:
        os.unlink(path)  # the memory stays until the last rank has ended
    if not sees:
        return None
    timeout = group._get_backend(torch.device("cpu")).options._timeout
    return _Mailbox(shared, rank, size, timeout.total_seconds())


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
        slots[self._rank] = vector
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
