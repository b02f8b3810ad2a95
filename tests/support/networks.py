"""Networks and batches that the tests of data parallelism share."""

import torch
import torch.distributed as dist
from torch import nn

from utils import models

GLOBAL_BATCH = 24


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


def in_float64(model):
    """Let a network of the course compute in float64, in which rounding moves no ReLU over its kink."""
    model = model.double()
    model[0].register_forward_hook(lambda _layer, _inputs, pixels: pixels.double())
    return model


def batch(step, size=GLOBAL_BATCH):
    made = torch.Generator().manual_seed(step)
    images = torch.randint(256, (size, 1, 28, 28), dtype=torch.uint8, generator=made)
    return images, torch.randint(10, (size,), generator=made)


def own_part(tensors, shares):
    start = sum(shares[: dist.get_rank()])
    return [tensor[start : start + shares[dist.get_rank()]] for tensor in tensors]
