"""What our data parallelism refuses, on every rank and in one line."""

import copy
import re

import pytest
import torch
import torch.distributed as dist
from networks import batch, network
from torch import nn
from torch.nn import functional as F

from utils.parallel.data_parallel import DataParallel


def different(kind):
    torch.manual_seed(0)
    last = dist.get_rank() == dist.get_world_size() - 1
    if kind == "shares":
        DataParallel(network("lenet"), shares=[2, 1, 1] if last else [1, 1, 1])
    elif kind == "shape":
        DataParallel(nn.Linear(3, 5 if last else 4))
    elif kind == "more layers":
        DataParallel(nn.Sequential(*[nn.Linear(3, 3) for _ in range(3 if last else 2)]))
    else:
        DataParallel(network("frozen" if last else "lenet"))


DIFFERENT = {
    "shares": r"shares is \[1, 1, 1\] on rank 0 and \[2, 1, 1\] on rank 2",
    "shape": r"weight is float32 \[4, 3\] on rank 0 and float32 \[5, 3\] on rank 2",
    "more layers": r"2.weight is missing on rank 0 and float32 \[3, 3\] on rank 2",
    "frozen": r"1.weight is float32 \[6, 1, 5, 5\] on rank 0 and float32 \[6, 1, 5, 5\] frozen on rank 2",
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_different_networks_are_refused_on_all_ranks(ranks_of, kind):
    running = ranks_of(3)
    running.start(different, kind)
    for ok, told in running.outcomes(limit=30):
        assert not ok
        line = told.strip().splitlines()[-1]
        assert re.search("UserError: the ranks' networks differ: " + DIFFERENT[kind], line), told


def wrapped(shares):
    DataParallel(network("lenet"), shares=shares)


@pytest.mark.parametrize("shares", [[1], [1, -1], [0, 0], [1, float("nan")]], ids=str)
def test_impossible_shares_are_refused(ranks_of, shares):
    running = ranks_of(2)
    running.start(wrapped, shares)
    for ok, told in running.outcomes(limit=30):
        assert not ok and "give one number a rank (2), none negative, not all 0" in told


def misused(how):
    parallel = DataParallel(network("lenet"))
    images, labels = batch(0)
    F.cross_entropy(parallel(images), labels).backward()
    if how == "move":
        parallel.module.to(memory_format=torch.contiguous_format)
    elif how == "pickle":
        copy.deepcopy(parallel)
    loss = F.cross_entropy(parallel(images), labels)
    loss.backward(create_graph=how == "create_graph")


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("move", "the network was moved or converted after it was wrapped"),
        ("pickle", "a wrapper belongs to its process group: copy or save its .module"),
        ("create_graph", "gradients in buckets have no graph: call backward without create_graph"),
    ],
)
def test_misuse_is_named(ranks_of, how, told):
    running = ranks_of(2)
    running.start(misused, how)
    for ok, text in running.outcomes(limit=30):
        assert not ok and f"UserError: {told}" in text
    running.close()
