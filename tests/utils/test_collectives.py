"""Our all-reduce: the same sum as gloo's on every rank, for any tensor, and an error where there is none."""

import itertools
import math
import os
import re
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from ranks import Ranks

from utils.parallel.collectives import ALGORITHMS, all_reduce

FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
LAYOUTS = ["contiguous", "transposed", "strided", "channels last", "offset", "conjugated", "negated"]
# How far a sum of a few numbers may be off, relative to the sum of their sizes.
EPSILONS = {dtype: 8 * torch.finfo(dtype).eps for dtype in FLOATS}


def own_tensor(shape, dtype, layout, seed):
    """Return this rank's tensor: values differ from rank to rank, memory is laid out as asked."""
    made = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    if dtype in INTEGERS:
        values = torch.randint(0, 30, shape, generator=made).to(dtype)
    else:
        values = torch.randn(shape, generator=made, dtype=torch.float64).to(dtype)
    if layout == "transposed":
        return values.transpose(0, -1).contiguous().transpose(0, -1) if values.dim() > 1 else values
    if layout == "strided":
        return values.repeat_interleave(2, dim=-1)[..., ::2] if values.dim() else values
    if layout == "channels last":
        return values.to(memory_format=torch.channels_last) if values.dim() == 4 else values
    if layout == "conjugated":
        return values.conj()
    if layout == "negated" and dtype in (torch.float32, torch.float64):
        return torch.complex(values, values).conj().imag  # reads as -values
    if layout == "offset":
        return torch.cat([values.flatten()[:1], values.flatten()])[min(1, values.numel()) :].view(shape)
    return values


def reduced(algorithm, op, shape, dtype, layout, seed):
    """Return our result, the sum or mean of all ranks' tensors in a wider dtype, and the sum of their sizes."""
    tensor = own_tensor(shape, dtype, layout, seed)
    gathered = [torch.empty(shape, dtype=dtype) for _ in range(dist.get_world_size())]
    for rank, part in enumerate(gathered):  # as bytes, which gloo carries for every dtype
        if rank == dist.get_rank():
            part.copy_(tensor)
        if part.numel():
            dist.broadcast(part.view(-1).view(torch.uint8), src=rank)
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype in FLOATS else dtype
    expected = sum((part.to(wide) for part in gathered), torch.zeros(shape, dtype=wide))
    if op == "mean":
        expected /= dist.get_world_size()
    size = sum((part.to(wide).abs() for part in gathered), torch.zeros(shape))
    all_reduce(tensor, op, algorithm=algorithm)
    return tensor.resolve_conj().resolve_neg().contiguous(), expected, size  # a pipe carries no such marks


def check(results, dtype):
    first, expected, size = results[0]
    for tensor, *_ in results:
        assert tensor.dtype == dtype
        assert torch.equal(tensor, first), "the ranks' results differ"
    if dtype in INTEGERS:
        assert torch.equal(first, expected)
    else:
        assert ((first.to(expected.dtype) - expected).abs() <= EPSILONS[dtype] * size + 1e-300).all()


shapes = st.lists(st.integers(0, 6), max_size=5).map(tuple)


# A failure ends the processes, so each further try would start them again: the first found example is shown as it is.
@settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    algorithm=st.sampled_from(sorted(ALGORITHMS)),
    op=st.sampled_from(["sum", "mean"]),
    shape=shapes,
    dtype=st.sampled_from(FLOATS + INTEGERS),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 9),
    world_size=st.integers(2, 4),
)
@example(
    algorithm="tree",
    op="sum",
    shape=(1,),
    dtype=torch.float32,
    layout="negated",
    seed=0,
    world_size=3,
)
@example(
    algorithm="ring", op="mean", shape=(0, 6, 6, 0), dtype=torch.float32, layout="channels last", seed=0, world_size=2
)
def test_any_tensor_becomes_the_sum_of_all_ranks(ranks_of, algorithm, op, shape, dtype, layout, seed, world_size):
    op = "sum" if dtype in INTEGERS else op
    check(ranks_of(world_size)(reduced, algorithm, op, shape, dtype, layout, seed), dtype)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_large_tensor_is_reduced_at_any_world_size(ranks, algorithm):
    for op in ("sum", "mean"):
        check(ranks(reduced, algorithm, op, (101, 1009), torch.float32, "contiguous", 1), torch.float32)


def beside_gloo(algorithm):
    ours = torch.randn(10_007, generator=torch.Generator().manual_seed(dist.get_rank()))
    theirs = ours.clone()
    all_reduce(ours, algorithm=algorithm)
    dist.all_reduce(theirs)
    return (ours - theirs).abs().max().item()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_results_are_gloos_to_rounding(ranks, algorithm):
    assert max(ranks(beside_gloo, algorithm)) < 4e-6


def bytes_sent(algorithm, count):
    return all_reduce(torch.zeros(count), algorithm=algorithm).bytes_sent


@pytest.mark.parametrize("count", [0, 1, 12, 1_200, 1_201])
def test_bytes_sent_are_those_of_theory(ranks, count):
    n, size = ranks.world_size, 4 * count
    assert ranks(bytes_sent, "naive", count) == [(n - 1) * size] + [size] * (n - 1)
    tree = ranks(bytes_sent, "tree", count)
    assert sum(tree) == 2 * (n - 1) * size and tree[0] == math.ceil(math.log2(n)) * size
    sent = ranks(bytes_sent, "ring", count)
    assert sum(sent) == 2 * (n - 1) * size
    assert all(abs(one - 2 * (n - 1) / n * size) <= 4 * 2 * (n - 1) for one in sent)
    if count % n == 0:
        assert sent == [2 * (n - 1) * size // n] * n


def many_in_flight(count):
    """Start tensors of all algorithms at once and wait for them in an order that differs by rank."""
    rank = dist.get_rank()
    tensors = [torch.full((257 + 10 * number,), float(10 * number + rank)) for number in range(count)]
    names = sorted(ALGORITHMS)
    handles = [all_reduce(tensor, algorithm=names[number % 3], async_op=True) for number, tensor in enumerate(tensors)]
    own = torch.tensor(float(rank))
    dist.all_reduce(own)  # and a collective of the library between them
    for handle in handles[:: -1 if rank % 2 else 1]:
        handle.wait()
    return [tensor.unique().tolist() for tensor in tensors]


def test_tensors_in_flight_do_not_mix_up(ranks):
    n = ranks.world_size
    expected = [[10.0 * number * n + n * (n - 1) / 2] for number in range(24)]
    assert ranks(many_in_flight, 24) == [expected] * n


def in_a_part_of_the_ranks():
    """Reduce among all ranks but the first, in a group of their own (one rank: among itself)."""
    members = list(range(1, dist.get_world_size())) or [0]
    group = dist.new_group(members)
    tensor = torch.tensor([float(dist.get_rank())])
    if dist.get_rank() in members:
        all_reduce(tensor, "mean", group=group)
    return tensor.item()


def test_a_group_of_some_ranks_reduces_among_itself(ranks):
    n = ranks.world_size
    expected = [0.0] + [n / 2] * (n - 1)
    assert ranks(in_a_part_of_the_ranks) == pytest.approx(expected)


def disagreeing(kind):
    last = dist.get_rank() == dist.get_world_size() - 1
    if last and kind == "refused":
        all_reduce(torch.zeros(3, 4, dtype=torch.bool))
    shape = (4, 3) if last and kind == "shape" else (3, 4)
    dtype = torch.float64 if last and kind == "dtype" else torch.float32
    algorithm = "tree" if last and kind == "algorithm" else "ring"
    op = "mean" if last and kind == "op" else "sum"
    all_reduce(torch.zeros(shape, dtype=dtype), op, algorithm=algorithm)


@pytest.mark.parametrize("kind", ["shape", "dtype", "algorithm", "op", "refused"])
def test_ranks_that_do_not_agree_are_all_told_so(ranks_of, kind):
    running = ranks_of(3)
    running.start(disagreeing, kind)
    for ok, told in running.outcomes(limit=30):
        assert not ok
        assert "UserError: the ranks do not agree on what to all-reduce: rank 0: ring sum of float32" in told
        assert "rank 2: " in told


BAD = [
    (torch.zeros(3, dtype=torch.bool), {}, "bool values"),
    (torch.zeros(3, dtype=torch.int32), {"op": "mean"}, "the mean of torch.int32"),
    (torch.zeros(3), {"op": "max"}, "op 'max' is unknown"),
    (torch.zeros(3), {"algorithm": "star"}, "algorithm 'star' is unknown"),
    (torch.zeros(1).expand(3), {}, "repeats its memory"),
]


def refused(number):
    tensor, options, _ = BAD[number]
    all_reduce(tensor, **options)


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_cannot_be_added_is_refused(ranks_of, number):
    running = ranks_of(2)
    running.start(refused, number)
    for ok, told in running.outcomes():
        assert not ok and re.search(f"UserError: .*{BAD[number][2]}", told)


def dying(algorithm, how):
    """Reduce for ever in a group with a timeout of 4 s; rank 1 is gone, or stands still, after a while."""
    group = dist.new_group(timeout=timedelta(seconds=4))
    for step in itertools.count():
        if dist.get_rank() == 1 and step == 20:
            os.kill(os.getpid(), how)
        try:
            all_reduce(torch.ones(100_000), algorithm=algorithm, group=group)
        except RuntimeError:
            return True


@pytest.mark.parametrize(
    ("algorithm", "how"),
    [pytest.param(one, signal.SIGKILL, id=f"{one}-killed") for one in ALGORITHMS]
    + [
        pytest.param(one, signal.SIGSTOP, id=f"{one}-stopped", marks=() if one == "ring" else pytest.mark.slow)
        for one in ALGORITHMS
    ],
)
def test_a_lost_rank_ends_the_others_with_an_error_inside_the_timeout(algorithm, how):
    """A rank that stands still is noticed when the group's timeout is over, one that is gone no later."""
    with Ranks(3) as running:
        running.start(dying, algorithm, how)
        assert running.outcomes(limit=60, of=(0, 2)) == [(True, True)] * 2
