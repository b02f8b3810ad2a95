"""Virtual ranks: BatchNorm in one process as it is on many."""

import pytest
import torch
import torch.distributed as dist
from networks import batch, in_float64
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from utils import models
from utils.errors import UserError
from utils.parallel.virtual_ranks import convert_virtual_ranks


def trained_on_own_share(steps):
    """Train with plain BatchNorm in DDP on this rank's samples; return weights and rank 0's running statistics."""
    torch.manual_seed(0)
    model = in_float64(models.build("wide-resnet-tiny", 1, 10, dropout=0))
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    for step in range(steps):
        images, labels = batch(step)
        rank, size = dist.get_rank(), dist.get_world_size()
        optimizer.zero_grad()
        nn.functional.cross_entropy(parallel(images[rank::size]), labels[rank::size]).backward()
        optimizer.step()
    return model.state_dict()


@pytest.mark.parametrize("size", [2, 4])
def test_virtual_ranks_compute_what_real_ones_do(ranks_of, size):
    torch.manual_seed(0)
    model = convert_virtual_ranks(in_float64(models.build("wide-resnet-tiny", 1, 10, dropout=0)), size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(3):
        images, labels = batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    real = ranks_of(size)(trained_on_own_share, 3)[0]
    assert list(real) == list(model.state_dict())
    for name, tensor in model.state_dict().items():
        assert (tensor - real[name]).abs().max() < 1e-10, name


def test_virtual_ranks_refuse_a_batch_that_does_not_divide():
    with pytest.raises(UserError, match="6 samples do not divide into 4 equal shares"):
        convert_virtual_ranks(nn.BatchNorm2d(3), 4)(torch.zeros(6, 3, 2, 2))


@pytest.mark.parametrize(
    "options", [{"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"momentum": 1.0}], ids=str
)
def test_every_option_of_batchnorm_is_kept(options):
    """Two shares, each by itself, are two plain layers; running statistics are those of the first."""
    inputs = torch.randn(6, 3, 4, 4)
    virtual, first, second = (
        convert_virtual_ranks(nn.BatchNorm2d(3, **options), 2),
        *(nn.BatchNorm2d(3, **options) for _ in range(2)),
    )
    for _ in range(2):
        outputs = virtual(inputs)
        assert (outputs[0::2] - first(inputs[0::2])).abs().max() < 1e-5
        assert (outputs[1::2] - second(inputs[1::2])).abs().max() < 1e-5
    for name, buffer in first.named_buffers():
        assert (dict(virtual.named_buffers())[name] - buffer).abs().max() < 1e-6, name
