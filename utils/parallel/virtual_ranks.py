"""BatchNorm as it is on many ranks, in one process: each share of the batch is normalised by itself.

    model = convert_virtual_ranks(model, 16)      # a batch of 32 is then 16 ranks of 2 samples each

What N ranks with statistics of their own compute together, one process computes in this way, to rounding.
So 32 devices with one image each can be studied on one core.
"""

from functools import partial

import torch
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from utils.errors import UserError
from utils.parallel.sync_batchnorm import replace_batchnorm


class VirtualRanksBatchNorm(_BatchNorm):
    """Normalise each of ``ranks`` equal shares of inputs [N, C, ...] by its own mean and variance.

    Rank r's share are the samples r, r + ranks, ...; running statistics are those of rank 0, which is the
    one that saves the weights. Raises ``UserError`` where N does not divide by ``ranks``.
    """

    def __init__(self, *options, ranks):
        super().__init__(*options)
        self.ranks = ranks

    def _check_input_dim(self, inputs):
        if self.training and len(inputs) % self.ranks:
            raise UserError(f"{len(inputs)} samples do not divide into {self.ranks} equal shares")

    def forward(self, inputs):
        self._check_input_dim(inputs)
        if not self.training:
            return super().forward(inputs)
        # Shares become channels: [N, C, ...] to [N / ranks, ranks C, ...], which BatchNorm keeps apart.
        shares = inputs.reshape(-1, self.ranks * self.num_features, *inputs.shape[2:])
        tensors = (self.running_mean, self.running_var, self.weight, self.bias)
        mean, variance, weight, bias = (None if one is None else one.repeat(self.ranks) for one in tensors)
        if mean is not None:
            self.num_batches_tracked += 1
        rate = 1 / self.num_batches_tracked.item() if self.momentum is None and mean is not None else self.momentum
        outputs = F.batch_norm(shares, mean, variance, weight, bias, True, rate or 0.0, self.eps)
        if mean is not None:
            with torch.no_grad():
                self.running_mean.copy_(mean[: self.num_features])
                self.running_var.copy_(variance[: self.num_features])
        return outputs.reshape(inputs.shape)


def convert_virtual_ranks(module, ranks):
    """Return ``module`` with every BatchNorm replaced by one that sees the shares of ``ranks`` virtual ranks."""
    return replace_batchnorm(module, partial(VirtualRanksBatchNorm, ranks=ranks))
