"""NovoGrad: gradients divided by the norm of their layer, so that every layer takes steps of like size.

    optimizer = NovoGrad(model.parameters(), lr=0.01, betas=(0.95, 0.98), weight_decay=1e-3)

Ginsburg et al. 2019, "Stochastic Gradient Methods with Layer-wise Adaptive Moments for Training of Deep
Networks", algorithm 1. With a layer's gradient g and weights w:

    v = beta2 v + (1 - beta2) |g|²                        first step: v = |g|²
    m = beta1 m + (g / (sqrt(v) + eps) + decay w)         first step: m = g / (sqrt(v) + eps) + decay w
    w = w - lr m

Adam keeps a second moment for each weight, NovoGrad one number for each layer.
"""

from functools import reduce

import torch
from torch.optim import Optimizer

from utils.errors import UserError


class NovoGrad(Optimizer):
    """Take steps along gradients that are divided by the norm of their layer; every parameter is a layer.

    ``weight_decay`` is decoupled: it joins after the division, so that the gradient's norm does not know it.
    With ``grad_averaging`` what joins m after the first step is multiplied by 1 - beta1, and m is a mean
    of past steps instead of a sum. State of a parameter: ``second_moment`` (one number) and ``first_moment``
    (of its shape). Raises ``UserError`` for options out of range and for sparse or complex gradients.
    """

    def __init__(self, params, lr=0.01, betas=(0.95, 0.98), eps=1e-8, weight_decay=0.0, grad_averaging=False):
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "grad_averaging": grad_averaging}
        super().__init__(params, options)

    def add_param_group(self, param_group):
        """Add a group, with its own options where it names any."""
        options = self.defaults | param_group
        for name in ("lr", "eps", "weight_decay"):
            if not 0 <= options[name] < float("inf"):
                raise UserError(f"NovoGrad: {name} is {options[name]}; choose a number that is not negative")
        betas = options["betas"]
        if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise UserError(f"NovoGrad: betas are {betas}; choose two numbers from 0 to below 1")
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict):
        """Go on from a saved state. Second moments keep their dtype, which may be wider than the weights'."""
        super().load_state_dict(state_dict)
        saved = [state_dict["state"].get(number) for group in state_dict["param_groups"] for number in group["params"]]
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for weight, state in zip(weights, saved, strict=True):
            if state:
                self.state[weight]["second_moment"] = state["second_moment"].to(weight.device, copy=True)

    @torch.no_grad()
    def step(self, closure=None):
        """Take one step with the gradients that are there; return what ``closure``, if any, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with_gradient = [[one for one in group["params"] if one.grad is not None] for group in self.param_groups]
        for weight in (weight for weights in with_gradient for weight in weights):
            if weight.grad.layout is not torch.strided or weight.is_complex():
                raise UserError("NovoGrad: gradients must be dense and real")
        for group, weights in zip(self.param_groups, with_gradient, strict=True):
            begun = [weight for weight in weights if self.state[weight]]
            first = [weight for weight in weights if not self.state[weight]]
            if begun:
                self._continue(group, begun)
            if first:
                self._begin(group, first)
        return loss

    # All layers of a group go through each line together, which on a GPU needs fewer launches than layer by layer.

    def _begin(self, group, weights):
        """Take the first step: the moments are what the first gradient says, not its part of a mean."""
        gradients = [weight.grad for weight in weights]
        second = _squared_norms(gradients)
        first = _directions(group, weights, gradients, second)
        torch._foreach_add_(weights, first, alpha=-group["lr"])
        for weight, *moments in zip(weights, first, second, strict=True):
            self.state[weight] = dict(zip(("first_moment", "second_moment"), moments, strict=True))

    def _continue(self, group, weights):
        beta1, beta2 = group["betas"]
        gradients = [weight.grad for weight in weights]
        first = [self.state[weight]["first_moment"] for weight in weights]
        second = [self.state[weight]["second_moment"] for weight in weights]
        torch._foreach_lerp_(second, _squared_norms(gradients), 1 - beta2)
        directions = _directions(group, weights, gradients, second)
        torch._foreach_mul_(first, beta1)
        torch._foreach_add_(first, directions, alpha=1 - beta1 if group["grad_averaging"] else 1)
        torch._foreach_add_(weights, first, alpha=-group["lr"])


def _squared_norms(gradients):
    """Return |g|² of each, in float32 or wider: squares leave the range of float16 early."""
    widest = reduce(torch.promote_types, (gradient.dtype for gradient in gradients), torch.float32)
    norms = torch._foreach_norm(gradients, 2, widest)
    torch._foreach_mul_(norms, norms)
    return list(norms)


def _directions(group, weights, gradients, second_moments):
    """Return g / (sqrt(v) + eps) + decay w for each layer; the gradients themselves stay as they are."""
    sizes = torch._foreach_sqrt(second_moments)
    torch._foreach_add_(sizes, group["eps"])
    directions = torch._foreach_div(gradients, sizes)
    if group["weight_decay"]:
        torch._foreach_add_(directions, weights, alpha=group["weight_decay"])
    return list(directions)
