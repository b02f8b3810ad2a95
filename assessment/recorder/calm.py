"""Make what looks at one share of a batch alone behave alike for any number of shares.

With this in place N processes of batch b and one of batch N x b must end with the same weights and report the same
numbers, whatever network and flags a script has: BatchNorm normalises by its running statistics and leaves them as
they are, nothing is dropped, and ``models.build`` gives a small network without kinks, so that rounding stays rounding.
Where a trial is about something else than the network, such as when to stop, this makes it short and sure as well.
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from utils import models

DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
CHANNELS, HIDDEN = 8, 24
# Of the images judged in the first validation, the second and so on: accuracies are to go up and down, surely.
SPOILT = (0.5, 0.1, 0.5, 0.2, 0.6, 0.3, 0.1, 0.4)


class Small(nn.Sequential):
    """A small network with a layer of every kind that a script may single out, in the place of ``models.build``'s.

    It is a sequence of layers, as those are.

    Its accuracies go up and down: in each validation it takes a share of the images for another class, the same
    images however they are shared out.
    """

    def __init__(self, _name, channels, classes, **_sizes):
        super().__init__(
            models.Normalize(),
            nn.Conv2d(channels, CHANNELS, 5, stride=4),
            nn.BatchNorm2d(CHANNELS),
            nn.Tanh(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Linear(9 * CHANNELS, HIDDEN),
            nn.Tanh(),
            nn.Linear(HIDDEN, classes),
        )
        self.validations = 0
        self.spoilt = torch.zeros(())  # no buffer: a script may keep all of those

    def __getitem__(self, at):
        return nn.Sequential(*list(self)[at]) if isinstance(at, slice) else super().__getitem__(at)

    def train(self, mode=True):
        if self.training and not mode:
            self.spoilt.fill_(SPOILT[self.validations % len(SPOILT)])
            self.validations += 1
        return super().train(mode)

    def forward(self, images):
        logits = super().forward(images)
        if self.training:
            return logits
        lot = images.float().sum(dim=(1, 2, 3)).abs() % 10 / 10  # as good as drawn, for every image always the same
        return torch.where((lot < self.spoilt.to(lot.device)).unsqueeze(1), logits.roll(3, dims=1), logits)


def small_network(*args, **sizes):
    """Return a ``Small`` network, laid out in memory as ``models.build`` does it."""
    return Small(*args, **sizes).to(memory_format=torch.channels_last)


def settle():
    """Put all this in place in this process, before the script's first line."""
    settle_statistics()
    for name in DROPOUTS:
        setattr(F, name, lambda input, *_args, **_kwargs: input)
    models.build = small_network


def settle_statistics():
    """Let every layer with running statistics work as in evaluation, also where its script has written it."""
    normalise = F.batch_norm

    def batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
        if running_mean is None:
            running_mean, running_var = input.new_zeros(input.shape[1]), input.new_ones(input.shape[1])
        return normalise(input, running_mean, running_var, weight, bias, False, momentum, eps)

    def enter(layer, _inputs):
        if layer.training and hasattr(layer, "running_mean"):
            layer.training, resting[id(layer)] = False, layer

    def leave(layer, _inputs, _output):
        if resting.pop(id(layer), None) is not None:
            layer.training = True

    resting = {}
    F.batch_norm = batch_norm
    nn.SyncBatchNorm.forward = nn.BatchNorm2d.forward
    register_module_forward_pre_hook(enter)
    register_module_forward_hook(leave, always_call=True)
