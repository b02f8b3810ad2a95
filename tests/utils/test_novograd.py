"""NovoGrad: the paper's formulas, the steps of pytorch_optimizer's, and what PyTorch expects of an optimizer."""

import copy
import io

import pytest
import torch
from pytorch_optimizer import NovoGrad as TheirNovoGrad
from torch import nn

from utils import models
from utils.errors import UserError
from utils.novograd import NovoGrad


def weights(seed=0):
    """Return parameters of several shapes, one of them a single number."""
    made = torch.Generator().manual_seed(seed)
    shapes = [(8, 3, 3, 3), (10, 8), (10,), ()]
    return [nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=made)) for shape in shapes]


def give_gradients(parameters, seed, scale=1.0):
    made = torch.Generator().manual_seed(seed)
    for number, parameter in enumerate(parameters):  # layers differ in size by orders of magnitude
        noise = torch.randn(parameter.shape, dtype=parameter.dtype, generator=made)
        parameter.grad = noise * scale * 10.0 ** (2 - 2 * number)


def train(optimizer, parameters, steps, start=0, scale=1.0):
    for step in range(start, start + steps):
        give_gradients(parameters, step, scale)
        optimizer.step()


def largest_difference(first, second):
    return max((one - other).abs().max().item() for one, other in zip(first, second, strict=True))


@pytest.mark.parametrize("grad_averaging", [False, True])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("betas", [(0.95, 0.98), (0.0, 0.5), (0.9, 0.0)])
def test_every_step_is_that_of_pytorch_optimizer(betas, weight_decay, grad_averaging):
    """Theirs adds the decay to the divided gradient with weight_decouple=False, and overwrites the gradients."""
    ours, theirs = weights(), weights()
    options = {"lr": 0.05, "betas": betas, "weight_decay": weight_decay, "grad_averaging": grad_averaging}
    optimizers = NovoGrad(ours, **options), TheirNovoGrad(theirs, **options)
    for step in range(12):
        for optimizer, parameters in zip(optimizers, (ours, theirs), strict=True):
            train(optimizer, parameters, 1, start=step)
        assert largest_difference(ours, theirs) < 1e-12, f"step {step}"


def test_two_steps_are_the_papers():
    """Algorithm 1 written out for one layer: the first moments are those of the first gradient alone."""
    (weight, *_), rate, beta1, beta2, decay = weights(), 0.1, 0.9, 0.8, 0.01
    before, first, second = weight.detach().clone(), torch.full_like(weight, 2.0), torch.randn_like(weight)
    optimizer = NovoGrad([weight], lr=rate, betas=(beta1, beta2), eps=0.0, weight_decay=decay)
    weight.grad = first
    optimizer.step()
    square = first.square().sum()
    moment = first / square.sqrt() + decay * before
    after = before - rate * moment
    assert (weight - after).abs().max() < 1e-14
    weight.grad = second
    optimizer.step()
    square = beta2 * square + (1 - beta2) * second.square().sum()
    moment = beta1 * moment + second / square.sqrt() + decay * after
    assert (weight - (after - rate * moment)).abs().max() < 1e-14


def test_the_size_of_a_layers_gradient_does_not_matter():
    """Without decay, gradients a million times larger make the same steps: that is what NovoGrad is for."""
    small, large = weights(), weights()
    train(NovoGrad(small, lr=0.1, eps=0.0), small, 10)
    train(NovoGrad(large, lr=0.1, eps=0.0), large, 10, scale=1e6)
    assert largest_difference(small, large) < 1e-9 < largest_difference(small, weights())


def test_gradients_stay_as_they_are():
    parameters = weights()
    give_gradients(parameters, 0)
    before = [parameter.grad.clone() for parameter in parameters]
    NovoGrad(parameters, weight_decay=0.1).step()
    assert all(torch.equal(parameter.grad, one) for parameter, one in zip(parameters, before, strict=True))


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_training_goes_on_from_a_saved_state(steps):
    whole, part = weights(), weights()
    options = {"lr": 0.1, "betas": (0.9, 0.8), "weight_decay": 0.1, "grad_averaging": True}
    train(NovoGrad(whole, **options), whole, steps + 5)
    optimizer = NovoGrad(part, **options)
    train(optimizer, part, steps)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed = [nn.Parameter(one.detach().clone()) for one in part]
    optimizer = NovoGrad(resumed, lr=99.0)
    optimizer.load_state_dict(torch.load(file, weights_only=True))
    train(optimizer, resumed, 5, start=steps)
    assert largest_difference(whole, resumed) == 0


def test_groups_have_options_of_their_own():
    together, apart = weights(), weights()
    options = [{"lr": 0.1, "weight_decay": 0.1}, {"lr": 0.01, "betas": (0.5, 0.5)}]
    train(NovoGrad([{"params": together[:2]} | options[0], {"params": together[2:]} | options[1]]), together, 5)
    optimizers = NovoGrad(apart[:2], **options[0]), NovoGrad(apart[2:], **options[1])
    for step in range(5):
        give_gradients(apart, step)
        for optimizer in optimizers:
            optimizer.step()
    assert largest_difference(together, apart) == 0


def test_a_layer_begins_when_its_first_gradient_comes():
    early, late = weights(), weights()[:1]
    optimizer = NovoGrad([*early, *late])
    for step in range(3):
        give_gradients(early, step)
        optimizer.step()
    assert torch.equal(late[0], weights()[0])
    train(optimizer, [*early, *late], 3)
    alone = weights()[:1]
    own = NovoGrad(alone)
    for step in range(3):
        give_gradients([*weights(), *alone], step)
        own.step()
    assert largest_difference(alone, late) < 1e-15


def test_no_gradient_at_all_changes_nothing_and_a_zero_one_only_decays():
    parameters = weights()
    NovoGrad(parameters, weight_decay=0.1).step()
    assert largest_difference(parameters, weights()) == 0
    give_gradients(parameters, 0, scale=0.0)
    NovoGrad(parameters, lr=0.1, weight_decay=0.1).step()
    assert largest_difference(parameters, [one * 0.99 for one in weights()]) < 1e-15


def test_it_takes_a_closure_and_a_schedule():
    (weight, *_) = weights()
    optimizer = NovoGrad([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    losses = []
    for _ in range(20):
        losses.append(optimizer.step(closure).item())
        schedule.step()
    assert losses == sorted(losses, reverse=True) and optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 21)


def test_half_the_state_of_adam():
    """One number a layer, where Adam has one a weight."""
    model = models.build("wide-resnet-tiny", 1, 10)
    counts = []
    for make in (NovoGrad, torch.optim.Adam):
        own = copy.deepcopy(model)
        optimizer = make(own.parameters())
        own(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).sum().backward()
        optimizer.step()
        counts.append(sum(value.numel() for state in optimizer.state.values() for value in state.values()))
    assert counts[0] == sum(one.numel() for one in model.parameters()) + len(list(model.parameters()))
    assert counts[1] > 1.9 * counts[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gradients_of_16_bits_have_squares_of_32(dtype):
    """The square of 3,000 is no float16, and 2 % of a number are no bfloat16: moments must be wider."""
    (weight, *_), (exact, *_) = ([nn.Parameter(torch.zeros(100, dtype=kind))] for kind in (dtype, torch.float64))
    narrow, wide = NovoGrad([weight], lr=1e-3), NovoGrad([exact], lr=1e-3)
    for step in range(50):
        weight.grad = torch.full((100,), 300.0 if step else 200.0, dtype=dtype)
        exact.grad = weight.grad.double()
        narrow.step(), wide.step()
    resumed = NovoGrad([weight])
    resumed.load_state_dict(narrow.state_dict())
    for optimizer in (narrow, resumed):
        found = optimizer.state[weight]["second_moment"]
        assert found.dtype == torch.float32
        assert found.item() == pytest.approx(wide.state[exact]["second_moment"].item(), rel=1e-5)
    assert torch.isfinite(weight).all()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lr": -1.0}, "lr is -1.0; choose a number that is not negative"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"weight_decay": -0.1}, "weight_decay is -0.1"),
        ({"eps": -1e-8}, "eps is -1e-08"),
        ({"betas": (0.9, 1.0)}, "betas are (0.9, 1.0); choose two numbers from 0 to below 1"),
        ({"betas": (0.9,)}, "betas are (0.9,)"),
        ({"betas": 0.9}, "betas are 0.9"),
    ],
)
def test_options_out_of_range_are_named(options, told):
    with pytest.raises(UserError) as error:
        NovoGrad(weights(), **options)
    assert told in str(error.value)
    with pytest.raises(UserError):
        NovoGrad([{"params": weights()} | options])
    optimizer = NovoGrad(weights())
    with pytest.raises(UserError):
        optimizer.add_param_group({"params": weights(1)} | options)
    assert len(optimizer.param_groups) == 1


def test_sparse_and_complex_gradients_are_refused():
    embedding = nn.Embedding(5, 3, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    complex_weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    complex_weight.grad = torch.ones_like(complex_weight)
    for parameter in (*embedding.parameters(), complex_weight):
        good = weights()
        give_gradients(good, 0)
        with pytest.raises(UserError, match="gradients must be dense and real"):
            NovoGrad([{"params": good}, {"params": [parameter]}]).step()
        assert largest_difference(good, weights()) == 0, "half a step was taken"
