"""The two sides of each row, measured in turn by the ranks that torchrun started: pairs.py NAME."""

import copy
import json
import sys
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from utils import models, runs
from utils.devices import use_bfloat16
from utils.novograd import NovoGrad
from utils.parallel.collectives import all_reduce
from utils.parallel.data_parallel import DataParallel
from utils.parallel.sync_batchnorm import convert_sync_batchnorm

ROUNDS, STEPS = 15, 10


def trainer(model, batch):
    """Return a function that takes ``STEPS`` training steps on ``batch`` images."""
    images = torch.randint(256, (batch, 1, 28, 28), dtype=torch.uint8)
    labels = torch.randint(10, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    bfloat16 = use_bfloat16("auto", "cpu")

    def train():
        for _ in range(STEPS):
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return train


def network():
    return models.build("wide-resnet-tiny", 1, 10)


def only_rank_0(function, threads=1):
    """Let rank 0 alone do it, with so many threads."""

    def alone():
        if dist.get_rank() == 0:
            torch.set_num_threads(threads)
            function()
            torch.set_num_threads(1)

    return alone


def two_for_one():
    together, alone = trainer(DistributedDataParallel(network()), 256), only_rank_0(trainer(network(), 256))
    return alone, together, 2  # twice the images


def two_for_two_threads():
    together, alone = trainer(DistributedDataParallel(network()), 64), only_rank_0(trainer(network(), 64), threads=2)
    return alone, together, 2


def data_parallel():
    start = network()
    theirs, ours = (wrap(copy.deepcopy(start)) for wrap in (DistributedDataParallel, DataParallel))
    return trainer(theirs, 64), trainer(ours, 64), 1


def ring():
    tensor = torch.zeros(1 << 24)  # a sum of zeros stays one
    return lambda: dist.all_reduce(tensor), lambda: all_reduce(tensor), 1


def sync_batchnorm():
    synchronised, plain = DistributedDataParallel(convert_sync_batchnorm(network())), DistributedDataParallel(network())
    return trainer(synchronised, 64), trainer(plain, 64), 1  # the ratio is one of times, so the sides are swapped


def novograd():
    from pytorch_optimizer import NovoGrad as TheirNovoGrad  # needed by this row alone, and slow to import

    def stepper(make):
        model = network()
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer = make(model.parameters(), lr=1e-6, weight_decay=1e-3)
        return lambda: [optimizer.step() for _ in range(50)]

    return stepper(TheirNovoGrad), stepper(NovoGrad), 1


def seconds(function):
    """Return how long the slowest rank takes."""
    dist.barrier()
    start = time.perf_counter()
    function()
    taken = torch.tensor(time.perf_counter() - start)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return taken.item()


def main():
    dist.init_process_group("gloo")
    first, second, factor = globals()[sys.argv[1]]()
    ratios = []
    for number in range(ROUNDS + 2):
        ratio = factor * seconds(first) / seconds(second)
        if number >= 2:  # the first rounds pay for the start
            ratios.append(ratio)
    if dist.get_rank() == 0:
        print(json.dumps(ratios))
    runs.finish()


if __name__ == "__main__":
    main()
