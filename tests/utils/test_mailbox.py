"""Small vectors through shared memory: whole, in order, and nothing left behind."""

import os
import time

import torch
import torch.distributed as dist
from conftest import until

from utils.parallel.mailbox import CAPACITY, PREFIX, gather


def many_vectors(count):
    """Gather vectors of changing length, one rank late now and then, and return the sums of all rows."""
    rank, told = dist.get_rank(), []
    for number in range(count):
        if number % 50 == rank:
            time.sleep(0.01)
        length = 1 + number % 7
        rows = gather(torch.full((length,), float(1_000 * rank + number)))
        told.append(rows.tolist() == [[1_000.0 * one + number] * length for one in range(dist.get_world_size())])
    return all(told)


def test_vectors_come_whole_and_in_order(ranks):
    assert all(ranks(many_vectors, 2_000))


def gather_once():
    gather(torch.zeros(3))


def test_nothing_is_left_in_the_shared_memory(ranks_of):
    """Other tests that run meanwhile have theirs for a moment; what is left behind would stay."""
    ranks_of(2)(gather_once)
    until(lambda: not [name for name in os.listdir("/dev/shm") if name.startswith(PREFIX)], 60, "no memory left")


def longer_than_a_slot():
    return gather(torch.full((CAPACITY + 1,), float(dist.get_rank()))).sum(1).tolist()


def test_a_long_vector_goes_by_the_groups_own_collective(ranks_of):
    assert ranks_of(3)(longer_than_a_slot) == [[0.0, CAPACITY + 1.0, 2 * CAPACITY + 2.0]] * 3
