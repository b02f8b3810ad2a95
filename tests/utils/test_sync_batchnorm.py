"""Our SyncBatchNorm: what plain BatchNorm gives for the undivided batch, in every direction."""

import itertools
import os
import re
import signal
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from ranks import Ranks
from torch import nn

from utils.parallel import sync_batchnorm
from utils.parallel.sync_batchnorm import SyncBatchNorm, combine_running_statistics, convert_sync_batchnorm

CHANNELS, STEPS = 5, 3
PLAIN = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
SPACE = {2: (), 3: (7,), 4: (3, 4), 5: (2, 3, 4)}


def layer(dimensions, options):
    """Return a BatchNorm whose weights and running statistics are not those at birth."""
    torch.manual_seed(7)
    made = PLAIN[dimensions](CHANNELS, **options)
    with torch.no_grad():
        for tensor in [*made.parameters(), *(one for one in made.buffers() if one.dim())]:
            tensor.uniform_(0.5, 2)
    return made


def samples(dimensions, sizes, step, offset=0.0, dtype=torch.float64):
    """Return inputs and the weights of the loss for all ranks together; channels differ in mean and scale."""
    made = torch.Generator().manual_seed(100 * dimensions + step)
    shape = (sum(sizes), CHANNELS, *SPACE[dimensions])
    scale = torch.linspace(0.5, 3, CHANNELS, dtype=torch.float64).view(1, -1, *[1] * (len(shape) - 2))
    inputs = torch.randn(shape, generator=made, dtype=torch.float64) * scale + scale * 2 + offset
    wanted = torch.randn(shape, generator=made, dtype=torch.float64)
    return inputs.to(dtype), wanted.to(dtype)


def train(norm, batches):
    """Return outputs and input gradients of each step, then the parameters' gradients and the buffers."""
    outputs, gradients = [], []
    for inputs, wanted in batches:
        inputs = inputs.clone().requires_grad_()
        output = norm(inputs)
        (output * wanted).sum().backward()
        outputs.append(output.detach())
        gradients.append(inputs.grad)
    parameters = {name: one.grad for name, one in norm.named_parameters()}
    return outputs, gradients, parameters, dict(norm.named_buffers())


def on_own_share(dimensions, sizes, options, offset, dtype):
    norm = convert_sync_batchnorm(layer(dimensions, options).to(dtype))
    assert isinstance(norm, SyncBatchNorm)
    start = sum(sizes[: dist.get_rank()])
    own = slice(start, start + sizes[dist.get_rank()])
    batches = [samples(dimensions, sizes, step, offset, dtype) for step in range(STEPS)]
    return train(norm, [(inputs[own], wanted[own]) for inputs, wanted in batches])


def check(ranks, dimensions, sizes, options, tolerance=1e-9, offset=0.0, dtype=torch.float64):
    found = ranks(on_own_share, dimensions, sizes, options, offset, dtype)
    batches = [samples(dimensions, sizes, step, offset, dtype) for step in range(STEPS)]
    outputs, gradients, parameters, buffers = train(layer(dimensions, options).to(dtype), batches)
    for step in range(STEPS):
        for at, whole in enumerate((outputs, gradients)):
            together = torch.cat([rank[at][step] for rank in found])
            assert together.shape == whole[step].shape and together.dtype == dtype
            assert (together - whole[step]).abs().max() < tolerance, ("outputs", "gradients")[at]
    for name, gradient in parameters.items():  # the loss is a sum, so the ranks' gradients add up
        assert (sum(rank[2][name] for rank in found) - gradient).abs().max() < 100 * tolerance, name
    for name, buffer in buffers.items():
        for rank in found:
            assert (rank[3][name] - buffer).abs().max() < tolerance, name


@pytest.mark.parametrize("dimensions", [2, 3, 4, 5])
def test_ranks_together_are_batchnorm_on_the_undivided_batch(ranks, dimensions):
    check(ranks, dimensions, [6] * ranks.world_size, {})


OPTIONS = [
    {"affine": affine, "momentum": momentum, "track_running_stats": track, "eps": eps}
    for affine, momentum, track, eps in itertools.product([True, False], [0.1, None, 1.0], [True, False], [1e-5, 0.3])
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, options.values())))
def test_with_every_option(ranks_of, options):
    check(ranks_of(2), 4, [5, 5], options)


@pytest.mark.parametrize("sizes", [[1, 1], [1, 9], [7, 2, 4], [1, 1, 1, 1], [5, 0], [0, 3, 1]], ids=str)
@pytest.mark.parametrize("dimensions", [2, 4])
def test_ranks_may_have_unequal_numbers_of_samples(ranks_of, dimensions, sizes):
    check(ranks_of(len(sizes)), dimensions, sizes, {})


def test_float32_is_exact_to_rounding_also_where_the_mean_is_large(ranks_of):
    check(ranks_of(2), 4, [16, 16], {}, tolerance=2e-5, dtype=torch.float32)
    check(ranks_of(3), 4, [16, 1, 8], {}, tolerance=5e-2, offset=1_000.0, dtype=torch.float32)


def collectives_used():
    """Count the exchanges of a forward and of a backward."""
    used, original = [], sync_batchnorm.gather
    sync_batchnorm.gather = lambda *args: used.append(1) or original(*args)
    try:
        output = SyncBatchNorm(CHANNELS)(torch.randn(4, CHANNELS, requires_grad=True))
        forward = len(used)
        output.sum().backward()
    finally:
        sync_batchnorm.gather = original
    return forward, len(used) - forward


def test_there_is_one_collective_each_way(ranks_of):
    assert ranks_of(2)(collectives_used) == [(1, 1)] * 2


def without_bias():
    norm = convert_sync_batchnorm(nn.BatchNorm1d(CHANNELS))
    norm.bias = None
    norm(torch.randn(4, CHANNELS)).square().sum().backward()
    return norm.weight.grad is not None


def test_a_layer_may_have_no_bias(ranks_of):
    assert ranks_of(2)(without_bias) == [True, True]


def in_channels_last(sizes):
    norm = convert_sync_batchnorm(layer(4, {}))
    inputs, wanted = (one.float() for one in samples(4, sizes, 0))
    own = slice(0, sizes[0]) if dist.get_rank() == 0 else slice(sizes[0], None)
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        for grow in (False, True):  # a gradient that is one number, repeated, lies in no order at all
            x = inputs[own].contiguous(memory_format=layout).requires_grad_()
            y = norm(x)
            (y.sum() if grow else (y * wanted[own]).sum()).backward()
            results.append((y.detach(), x.grad, y.is_contiguous(memory_format=layout)))
    return results


def test_the_layout_of_the_input_is_kept_and_changes_nothing(ranks_of):
    for plain, plain_sum, last, last_sum in ranks_of(2)(in_channels_last, [6, 3]):
        assert plain[2] and last[2]
        assert (plain[0] - last[0]).abs().max() < 1e-5 and (plain[1] - last[1]).abs().max() < 1e-5
        assert plain_sum[1].abs().max() < 1e-4 and last_sum[1].abs().max() < 1e-4  # the sum of outputs is constant


def in_mixed_precision(dtype):
    """Return outputs and running statistics for inputs of ``dtype`` under a float32 layer, and the input gradient."""
    norm = convert_sync_batchnorm(layer(4, {"momentum": 1.0}))
    inputs, wanted = samples(4, [16, 16], 0, dtype=dtype)
    own = slice(16 * dist.get_rank(), 16 * dist.get_rank() + 16)
    x = inputs[own].clone().requires_grad_()
    y = norm(x)
    (y * wanted[own]).sum().backward()
    return y.detach(), x.grad, norm.running_mean, norm.running_var


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 0.04), (torch.float16, 0.005)], ids=str)
def test_mixed_precision_has_statistics_in_float32(ranks_of, dtype, tolerance):
    inputs, wanted = samples(4, [16, 16], 0, dtype=dtype)
    norm = layer(4, {"momentum": 1.0}).double()
    x = inputs.double().requires_grad_()
    expected = norm(x)
    (expected * wanted.double()).sum().backward()
    found = ranks_of(2)(in_mixed_precision, dtype)
    for at, whole in enumerate((expected.detach(), x.grad)):
        together = torch.cat([rank[at] for rank in found])
        assert together.dtype == dtype
        assert (together.double() - whole).abs().max() < tolerance * whole.abs().max()
    for *_, mean, variance in found:
        assert mean.dtype == variance.dtype == torch.float32
        assert (mean.double() / norm.running_mean - 1).abs().max() < 1e-5
        assert (variance.double() / norm.running_var - 1).abs().max() < 1e-5


def evaluated():
    norm = convert_sync_batchnorm(layer(4, {})).eval()
    inputs = samples(4, [4], dist.get_rank())[0].float()
    return norm(inputs).detach()


def test_evaluation_is_batchnorms(ranks_of):
    for rank, found in enumerate(ranks_of(2)(evaluated)):
        expected = layer(4, {}).eval()(samples(4, [4], rank)[0].float()).detach()
        assert torch.equal(found, expected)


def too_few(shape, device="cpu"):
    rows = shape[0] if dist.get_rank() == 0 else 0
    SyncBatchNorm(CHANNELS)(torch.zeros(rows, *shape[1:], device=device))


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((1, CHANNELS), "more than one value a channel over all ranks"),
        ((2, 3), r"BatchNorm of 5 channels takes \[N, 5, ...\] of 2 to 5 dimensions, not \[[02], 3\]"),
        ((CHANNELS,), r"BatchNorm of 5 channels takes"),
    ],
    ids=str,
)
def test_impossible_inputs_are_refused(ranks_of, shape, told):
    running = ranks_of(2)
    running.start(too_few, shape)
    for ok, text in running.outcomes(limit=30):
        assert not ok and "UserError" in text and re.search(told, text)


def test_on_another_device_it_says_what_to_do(ranks_of):
    running = ranks_of(2)
    running.start(too_few, (4, CHANNELS), "meta")  # as on a GPU
    for ok, text in running.outcomes(limit=30):
        assert not ok and "UserError" in text and "move the network to its GPU before it is converted" in text


def test_conversion_keeps_parameters_buffers_names_and_mode():
    inner = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=None, eps=0.1))
    model = nn.Sequential(inner, nn.BatchNorm1d(3, affine=False), nn.BatchNorm3d(2, track_running_stats=False))
    model[1].eval()
    before = dict(model.named_parameters()) | dict(model.named_buffers())
    names, modes = list(model.state_dict()), [one.training for one in model.modules()]
    converted = convert_sync_batchnorm(model)
    after = dict(converted.named_parameters()) | dict(converted.named_buffers())
    assert converted is model and list(converted.state_dict()) == names
    assert all(after[name] is before[name] for name in before) and len(after) == len(before)
    assert [one.training for one in converted.modules()] == modes
    norms = [one for one in converted.modules() if isinstance(one, SyncBatchNorm)]
    assert [(one.eps, one.momentum, one.affine, one.track_running_stats) for one in norms] == [
        (0.1, None, True, True),
        (1e-5, 0.1, False, True),
        (1e-5, 0.1, True, False),
    ]
    assert [one for one in convert_sync_batchnorm(converted).modules() if isinstance(one, SyncBatchNorm)] == norms
    assert isinstance(convert_sync_batchnorm(nn.BatchNorm2d(3)), SyncBatchNorm)


def combined(sizes):
    """Give two layers the statistics of this rank's samples, then combine."""
    start = sum(sizes[: dist.get_rank()])
    inputs = samples(2, sizes, 0)[0][start : start + sizes[dist.get_rank()]]
    model = nn.Sequential(nn.BatchNorm1d(CHANNELS), nn.ReLU(), nn.BatchNorm1d(CHANNELS)).double()
    for number in (0, 2):
        model[number].running_mean.copy_(inputs.mean(0) * (number + 1))
        model[number].running_var.copy_(inputs.var(0, unbiased=False) * (number + 1) ** 2)
    combine_running_statistics(model, share=sizes[dist.get_rank()])
    return [(model[number].running_mean, model[number].running_var) for number in (0, 2)]


@pytest.mark.parametrize("sizes", [[6], [6, 6], [1, 8, 3]], ids=str)
def test_combined_running_statistics_are_those_of_all_samples(ranks_of, sizes):
    inputs = samples(2, sizes, 0)[0]
    for found in ranks_of(len(sizes))(combined, sizes):
        for (mean, variance), factor in zip(found, (1, 3), strict=True):
            assert (mean - factor * inputs.mean(0)).abs().max() < 1e-9
            assert (variance - factor**2 * inputs.var(0, unbiased=False)).abs().max() < 1e-9


def with_other_channels():
    nn.Sequential(convert_sync_batchnorm(nn.BatchNorm1d(3 + dist.get_rank())))(torch.randn(4, 3 + dist.get_rank()))


def test_networks_that_differ_are_told_so_on_all_ranks(ranks_of):
    running = ranks_of(3)
    running.start(with_other_channels)
    for ok, told in running.outcomes(limit=30):
        assert not ok and "UserError" in told and "gathers vectors of" in told
    running.close()  # they stopped at different collectives


def normalising(how):
    """Normalise for ever in a group with a timeout of 4 s; rank 1 is gone, or stands still, after a while."""
    norm = SyncBatchNorm(CHANNELS, group=dist.new_group(timeout=timedelta(seconds=4)))
    for step in itertools.count():
        if dist.get_rank() == 1 and step == 20:
            os.kill(os.getpid(), how)
        try:
            norm(torch.randn(3, CHANNELS, requires_grad=True)).sum().backward()
        except RuntimeError as error:
            return str(error)


@pytest.mark.parametrize(
    ("how", "told"), [(signal.SIGKILL, "rank 1 has died"), (signal.SIGSTOP, "rank 1 did not come")], ids=str
)
def test_a_lost_rank_ends_the_others_with_an_error_inside_the_timeout(how, told):
    with Ranks(3) as running:
        running.start(normalising, how)
        outcomes = running.outcomes(limit=60, of=(0, 2))
        assert all(ok for ok, _ in outcomes), outcomes
        assert any(told in text for _, text in outcomes), outcomes
