"""Our data parallelism: N ranks take the steps of one, whatever the network, the shares and the gradients."""

import copy
import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from utils import models
from utils.collectives import all_reduce
from utils.data_parallel import DataParallel, NaiveDataParallel
from utils.sync_batchnorm import convert_sync_batchnorm

GLOBAL_BATCH, STEPS = 24, 4


class Tied(nn.Module):
    """An autoencoder whose two layers share one weight, before a classifier."""

    def __init__(self):
        super().__init__()
        self.encode, self.decode, self.classify = nn.Linear(784, 16), nn.Linear(784, 16), nn.Linear(784, 10)
        self.decode.weight = self.encode.weight

    def forward(self, images):
        pixels = images.flatten(1).float() / 255
        hidden = torch.tanh(self.encode(pixels))
        return self.classify(torch.tanh(hidden @ self.decode.weight))


class Optional(nn.Module):
    """Two branches, of which the caller chooses one or both; ``never`` is used by none."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.never = nn.Linear(784, 10), nn.Linear(784, 10), nn.Linear(2, 2)

    def forward(self, images, branches):
        pixels = images.flatten(1).float() / 255
        return sum(getattr(self, name)(pixels) for name in branches)


def network(kind):
    if kind == "tied":
        return Tied()
    if kind == "optional":
        return Optional()
    model = models.build("lenet" if kind == "frozen" else kind, 1, 10, dropout=0)
    if kind == "frozen":
        model[1].weight.requires_grad_(False)
    return model


def batch(step, size=GLOBAL_BATCH):
    made = torch.Generator().manual_seed(step)
    images = torch.randint(256, (size, 1, 28, 28), dtype=torch.uint8, generator=made)
    return images, torch.randint(10, (size,), generator=made)


def own_part(tensors, shares):
    start = sum(shares[: dist.get_rank()])
    return [tensor[start : start + shares[dist.get_rank()]] for tensor in tensors]


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
    """Return the weights after each step of ranks that see their shares, and the buffers at the end."""
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
    "shares": r"shares is \[1.0, 1.0, 1.0\] on rank 0 and \[2.0, 1.0, 1.0\] on rank 2",
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


@pytest.mark.parametrize("shares", [[1], [1, -1], [0, 0]], ids=str)
def test_impossible_shares_are_refused(ranks_of, shares):
    running = ranks_of(2)
    running.start(divided, "lenet", shares, {})
    for ok, told in running.outcomes(limit=30):
        assert not ok and "give one number a rank (2), none negative, not all 0" in told
