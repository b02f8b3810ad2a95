"""Our data parallelism's buckets: gradients that are missing, added up, shared, and averaged while backward runs."""

import gc

import pytest
import torch
import torch.distributed as dist
from networks import batch, network, own_part
from torch import nn
from torch.nn import functional as F

from utils.parallel.data_parallel import DataParallel


def with_branches(per_rank, bucket_bytes):
    """Return which parameters have a gradient after backward, and the gradients, with other branches a rank."""
    torch.manual_seed(0)
    parallel = DataParallel(network("optional"), bucket_bytes=bucket_bytes)
    found = []
    for _ in range(2):  # before and after the order of the buckets is learned
        parallel.zero_grad()
        images, labels = own_part(batch(0), [12, 12])
        F.cross_entropy(parallel(images, per_rank[dist.get_rank()]), labels).backward()
        gradients = {name: parameter.grad for name, parameter in parallel.module.named_parameters()}
        found.append({name: one if one is None else one.clone() for name, one in gradients.items()})
    return found


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 30])
@pytest.mark.parametrize(
    "per_rank", [(["left"], ["right"]), (["left"], ["left"]), (["left", "right"], ["right"])], ids=str
)
def test_a_missing_gradient_is_zero_and_stays_none_where_no_rank_has_one(ranks_of, per_rank, bucket_bytes):
    torch.manual_seed(0)
    model = network("optional")
    images, labels = batch(0)
    halves = [(images[:12], labels[:12]), (images[12:], labels[12:])]
    loss = sum(F.cross_entropy(model(x, names), y) / 2 for (x, y), names in zip(halves, per_rank, strict=True))
    loss.backward()
    for found in ranks_of(2)(with_branches, per_rank, bucket_bytes):
        for gradients in found:
            for name, parameter in model.named_parameters():
                if parameter.grad is None:
                    assert gradients[name] is None, name
                else:
                    assert (gradients[name] - parameter.grad).abs().max() < 1e-6, name


def accumulated():
    """Return the gradients after two backwards without averaging and one with, and whether the first stayed local."""
    torch.manual_seed(0)
    parallel = DataParallel(network("lenet"))
    images, labels = own_part(batch(0), [12, 12])
    with parallel.no_sync():
        for part in (slice(0, 3), slice(3, 7)):
            (F.cross_entropy(parallel(images[part]), labels[part], reduction="sum") / 12).backward()
    local = parallel.module[1].weight.grad.clone()
    (F.cross_entropy(parallel(images[7:]), labels[7:], reduction="sum") / 12).backward()
    return local, torch.cat([parameter.grad.flatten() for parameter in parallel.parameters()])


def test_no_sync_accumulates(ranks_of):
    torch.manual_seed(0)
    model = network("lenet")
    images, labels = batch(0)
    F.cross_entropy(model(images), labels).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    (local_0, first), (local_1, second) = ranks_of(2)(accumulated)
    assert not torch.equal(local_0, local_1), "what was accumulated without sync was averaged"
    assert torch.equal(first, second) and (first - expected).abs().max() < 1e-6


def forwards_and_backwards(order):
    """Call forward twice, then backward once for both or twice, without and with zeroed gradients before."""
    torch.manual_seed(0)
    parallel = DataParallel(network("lenet"), bucket_bytes=20_000)
    images, labels = own_part(batch(0), [12, 12])
    if order == "one backward":
        (
            F.cross_entropy(parallel(images[:6]), labels[:6]) + F.cross_entropy(parallel(images[6:]), labels[6:])
        ).backward()
    elif order == "two backwards":
        first = F.cross_entropy(parallel(images[:6]), labels[:6])
        second = F.cross_entropy(parallel(images[6:]), labels[6:])
        first.backward()
        second.backward()
    else:
        for parameter in parallel.parameters():
            parameter.grad = torch.zeros_like(parameter)  # somebody else's, not a view
        for half in (slice(0, 6), slice(6, 12)):
            F.cross_entropy(parallel(images[half]), labels[half]).backward()
            [parameter.grad.add_(0) for parameter in parallel.parameters()]
    return torch.cat([parameter.grad.flatten() for parameter in parallel.parameters()])


@pytest.mark.parametrize("order", ["one backward", "two backwards", "accumulating into given gradients"])
def test_forward_may_be_called_twice(ranks_of, order):
    torch.manual_seed(0)
    model = network("lenet")
    images, labels = batch(0)
    for quarter in range(4):
        part = slice(6 * quarter, 6 * quarter + 6)
        (F.cross_entropy(model(images[part]), labels[part]) / 2).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    for found in ranks_of(2)(forwards_and_backwards, order):
        assert (found - expected).abs().max() < 1e-6


def views(set_to_none):
    """Say after each step whether every gradient lies in a bucket's memory."""
    parallel = DataParallel(network("lenet"), bucket_bytes=20_000)
    images, labels = batch(0)
    told = []
    for _ in range(3):
        parallel.zero_grad(set_to_none=set_to_none)
        F.cross_entropy(parallel(images), labels).backward()
        storages = {bucket.flat.untyped_storage().data_ptr() for bucket in parallel._buckets}
        told.append(
            all(one.grad.untyped_storage().data_ptr() in storages for one in parallel.parameters())
            and len(storages) > 2
        )
    return told


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_views_into_the_buckets(ranks_of, set_to_none):
    assert ranks_of(2)(views, set_to_none) == [[True] * 3] * 2


class Backwards(nn.Module):
    """Layers that are registered in the opposite order of their use."""

    def __init__(self):
        super().__init__()
        self.last, self.middle, self.first = nn.Linear(50, 10), nn.Linear(50, 50), nn.Linear(784, 50)

    def forward(self, images):
        return self.last(self.middle(self.first(images.flatten(1).float() / 255)))


def story():
    """Return, for each of two steps, what happened in which order: gradients produced, all-reduces begun."""
    told = []

    def tell_and_reduce(tensor, **options):
        told.append("reduce")
        return dist.all_reduce(tensor, **options)

    model = Backwards()
    parallel = DataParallel(model, bucket_bytes=1, all_reduce=tell_and_reduce)
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: told.append(name))
    images, labels = batch(0)
    steps = []
    for _ in range(2):
        F.cross_entropy(parallel(images), labels).backward()
        steps.append(told.copy())
        told.clear()
    return steps


def test_buckets_follow_backward_and_are_reduced_while_it_runs(ranks_of):
    for guessed, learned in ranks_of(2)(story):
        gradients = [event for event in learned if event != "reduce"]
        assert [name.split(".")[0] for name in gradients] == ["last"] * 2 + ["middle"] * 2 + ["first"] * 2
        assert learned.count("reduce") == guessed.count("reduce") == 6
        # A bucket of one parameter each: every all-reduce begins as soon as its gradient is there.
        assert all(learned[: 2 * done].count("reduce") == done for done in range(1, 7)), learned
        assert guessed.index("reduce") >= 4, "the first step's guess, the end of the network first, was right by chance"


def after_a_failed_backward(bucket_bytes):
    """A hook of the learner's fails once, on all ranks; the loss that was computed before it is then used."""
    torch.manual_seed(0)
    parallel = DataParallel(network("lenet"), bucket_bytes=bucket_bytes)
    images, labels = own_part(batch(0), [12, 12])
    doomed, sound = (F.cross_entropy(parallel(images), labels) for _ in range(2))

    def fail(_gradient):
        raise ValueError("a bad day")

    handle = parallel.module[4].weight.register_hook(fail)
    try:
        doomed.backward()
    except ValueError:
        handle.remove()
    parallel.zero_grad()
    sound.backward()
    return torch.cat([parameter.grad.flatten() for parameter in parallel.parameters()])


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 30])
def test_a_backward_that_failed_does_not_spoil_the_next(ranks_of, bucket_bytes):
    torch.manual_seed(0)
    model = network("lenet")
    images, labels = batch(0)
    F.cross_entropy(model(images), labels).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    for found in ranks_of(2)(after_a_failed_backward, bucket_bytes):
        assert (found - expected).abs().max() < 1e-6


def without_its_wrapper():
    """Once the wrapper is gone, rank 0 uses the bare network alone."""
    model = network("lenet")
    parallel = DataParallel(model)
    images, labels = batch(0)
    F.cross_entropy(parallel(images), labels).backward()
    del parallel
    gc.collect()
    model.zero_grad()
    if dist.get_rank() == 0:
        F.cross_entropy(model(images), labels).backward()
    return True


def test_a_network_outlives_its_wrapper(ranks_of):
    assert ranks_of(2)(without_its_wrapper, limit=20) == [True, True]
