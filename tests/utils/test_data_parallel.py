"""Our data parallelism: N ranks take the steps of one, whatever the network, the shares and the gradients."""

import copy

import pytest
import torch
import torch.distributed as dist
from networks import GLOBAL_BATCH, batch, network, own_part
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from utils.parallel.collectives import all_reduce
from utils.parallel.data_parallel import DataParallel, NaiveDataParallel
from utils.parallel.sync_batchnorm import convert_sync_batchnorm

STEPS = 4


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def undivided(kind):
    """Return the weights after each step of one process that sees the whole batch."""
    torch.manual_seed(1000)
    model, history = network(kind), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        images, labels = batch(step)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        history.append(flat(model).clone())
    return history


def divided(kind, shares, options):
    """Return the weights after each step of ranks that see their shares."""
    torch.manual_seed(1000 + dist.get_rank())  # all start elsewhere
    model, history = network(kind), []
    parallel = DataParallel(convert_sync_batchnorm(model), shares=shares, **options)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        images, labels = own_part(batch(step), shares)
        optimizer.zero_grad()
        F.cross_entropy(parallel(images), labels).backward()
        optimizer.step()
        history.append(flat(parallel.module).clone())
    return history


def check(histories, kind):
    whole = undivided(kind)
    assert (whole[-1] - whole[0]).abs().max() > 1e-3, "nothing was trained"
    for history in histories:
        for step in range(STEPS):
            assert torch.equal(history[step], histories[0][step]), f"the ranks differ after step {step}"
            assert (history[step] - whole[step]).abs().max() < 1e-5, f"step {step}"


@pytest.mark.parametrize("kind", ["lenet", "wide-resnet-tiny", "tied", "frozen"])
def test_ranks_take_the_steps_of_the_undivided_batch(ranks, kind):
    n = ranks.world_size
    check(ranks(divided, kind, [GLOBAL_BATCH // n] * n, {}), kind)


@pytest.mark.parametrize("kind", ["lenet", "wide-resnet-tiny"])
@pytest.mark.parametrize("shares", [[17, 7], [1, 22, 1]], ids=str)
def test_shares_of_different_size_are_weighted(ranks_of, kind, shares):
    check(ranks_of(len(shares))(divided, kind, shares, {}), kind)


def with_own_ring(shares):
    return divided("lenet", shares, {"all_reduce": all_reduce})


def test_our_own_ring_carries_the_gradients(ranks_of):
    check(ranks_of(3)(with_own_ring, [8, 8, 8]), "lenet")


@pytest.mark.parametrize("bucket_bytes", [1, 20_000, 1 << 30])
def test_buckets_of_any_size_give_the_same(ranks_of, bucket_bytes):
    check(ranks_of(2)(divided, "tied", [12, 12], {"bucket_bytes": bucket_bytes}), "tied")


def left_out():
    """The last rank has no images: it takes part without a backward."""
    torch.manual_seed(1000 + dist.get_rank())
    shares = [16, 8, 0]
    parallel = DataParallel(network("lenet"), shares=shares, bucket_bytes=50_000)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05, momentum=0.9)
    history = []
    for step in range(STEPS):
        images, labels = own_part(batch(step), shares)
        optimizer.zero_grad()
        if len(images):
            F.cross_entropy(parallel(images), labels).backward()
        else:
            parallel.average_gradients()
        optimizer.step()
        history.append(flat(parallel.module).clone())
    return history


def test_a_rank_without_images_keeps_step(ranks_of):
    check(ranks_of(3)(left_out), "lenet")


def left_out_of_a_network_that_synchronises():
    """The last rank has no images, but its SyncBatchNorm layers are waited for: it runs on an empty batch."""
    torch.manual_seed(1000 + dist.get_rank())
    shares = [16, 8, 0]
    parallel = DataParallel(convert_sync_batchnorm(network("wide-resnet-tiny")), shares=shares)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05, momentum=0.9)
    history = []
    for step in range(STEPS):
        images, labels = own_part(batch(step), shares)
        optimizer.zero_grad()
        (F.cross_entropy(parallel(images), labels, reduction="sum") / max(1, len(images))).backward()
        optimizer.step()
        history.append(flat(parallel.module).clone())
    return history


def test_a_rank_without_images_keeps_step_with_synchronised_batchnorm(ranks_of):
    check(ranks_of(3)(left_out_of_a_network_that_synchronises), "wide-resnet-tiny")


class TwoOutputs(nn.Module):
    """Return features and, computed from them, logits."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(784, 8), nn.Linear(8, 10)

    def forward(self, images):
        features = torch.tanh(self.first(images.flatten(1).float() / 255))
        return {"features": features, "logits": [self.second(features)]}


def loss_of_both(outputs, labels):
    return F.cross_entropy(outputs["logits"][0], labels) + outputs["features"].square().mean()


def gradient_through_two_outputs(shares):
    torch.manual_seed(0)
    parallel = DataParallel(TwoOutputs(), shares=shares)
    images, labels = own_part(batch(0), shares)
    loss_of_both(parallel(images), labels).backward()
    return torch.cat([parameter.grad.flatten() for parameter in parallel.parameters()])


def test_outputs_that_depend_on_each_other_are_weighted_once(ranks_of):
    torch.manual_seed(0)
    model = TwoOutputs()
    images, labels = batch(0)
    loss_of_both(model(images), labels).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    for found in ranks_of(2)(gradient_through_two_outputs, [18, 6]):
        assert (found - expected).abs().max() < 1e-6


def with_shares_that_change():
    """Each step divides the batch anew."""
    torch.manual_seed(1000 + dist.get_rank())
    parallel = DataParallel(network("lenet"))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.05, momentum=0.9)
    history = []
    for step, shares in enumerate([[12, 12], [20, 4], [3, 21], [12, 12]]):
        parallel.shares = shares
        images, labels = own_part(batch(step), shares)
        optimizer.zero_grad()
        F.cross_entropy(parallel(images), labels).backward()
        optimizer.step()
        history.append(flat(parallel.module).clone())
    return history


def test_shares_may_change_from_step_to_step(ranks_of):
    check(ranks_of(2)(with_shares_that_change), "lenet")


class TwoPrecisions(nn.Module):
    """A float32 layer before a float64 one: their gradients cannot lie in one bucket."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(784, 8), nn.Linear(8, 10).double()

    def forward(self, images):
        return self.second(torch.tanh(self.first(images.flatten(1).float() / 255)).double())


def gradients_of_two_precisions():
    torch.manual_seed(0)
    parallel = DataParallel(TwoPrecisions(), group=dist.new_group())
    images, labels = own_part(batch(0), [12, 12])
    for _ in range(2):
        parallel.zero_grad()
        F.cross_entropy(parallel(images), labels).backward()
    return [parameter.grad for parameter in parallel.parameters()]


def test_parameters_of_two_dtypes_and_a_group_of_its_own(ranks_of):
    torch.manual_seed(0)
    model = TwoPrecisions()
    images, labels = batch(0)
    F.cross_entropy(model(images), labels).backward()
    for found in ranks_of(2)(gradients_of_two_precisions):
        for gradient, parameter in zip(found, model.parameters(), strict=True):
            assert gradient.dtype == parameter.dtype
            assert (gradient - parameter.grad).abs().max() < 1e-6


def gradients_of_three_wrappers():
    """Return the gradients by torch's DDP, by the naive wrapper and by ours, of the same weights and images."""
    torch.manual_seed(dist.get_rank())
    n = dist.get_world_size()
    images, labels = own_part(batch(0), [GLOBAL_BATCH // n] * n)
    start, found = network("lenet"), []
    for wrap in (DistributedDataParallel, NaiveDataParallel, DataParallel):
        parallel = wrap(copy.deepcopy(start))
        F.cross_entropy(parallel(images), labels).backward()
        if wrap is NaiveDataParallel:
            parallel.average_gradients()
        found.append(torch.cat([parameter.grad.flatten() for parameter in parallel.module.parameters()]))
    return found


def test_the_gradients_are_those_of_ddp(ranks):
    for ddp, naive, ours in ranks(gradients_of_three_wrappers):
        assert ddp.abs().max() > 1e-3
        assert (naive - ddp).abs().max() < 1e-6 and (ours - ddp).abs().max() < 1e-6


def states():
    model = network("wide-resnet-tiny")
    parallel = DataParallel(model)
    state = parallel.state_dict()
    other = network("wide-resnet-tiny")
    other.load_state_dict(state)
    parallel.load_state_dict(other.state_dict())
    return list(state) == list(model.state_dict()), torch.equal(flat(other), flat(model)), flat(model)


def test_the_state_is_that_of_the_bare_network_and_of_rank_0(ranks_of):
    (same_names, loads, first), (_, _, second) = ranks_of(2)(states)
    assert same_names and loads and torch.equal(first, second)
