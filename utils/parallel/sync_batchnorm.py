"""BatchNorm over the batch of all ranks: statistics of the whole batch, not of each rank's share.

    model = convert_sync_batchnorm(model)       # after .to(device), before it is wrapped

BatchNorm (Ioffe and Szegedy 2015) subtracts the mean of the batch and divides by its standard deviation. A
rank sees its own share alone, so few images a rank make noisy statistics. Here the ranks put them
together: one collective in forward, one in backward. PyTorch's ``nn.SyncBatchNorm`` does the same, for
GPUs only.

The other way is to let ranks train with their own statistics and to put only the *running* ones together,
for evaluation: ``combine_running_statistics``.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from utils.errors import UserError
from utils.parallel.mailbox import gather


class SyncBatchNorm(_BatchNorm):
    """Normalise each channel by the mean and variance of all ranks' inputs [N, C, ...], of 2 to 5 dimensions.

    Ranks may have unequal numbers of samples, also one or none. Statistics are float32 for inputs of less
    precision. In evaluation mode it is BatchNorm. Parameters and buffers have BatchNorm's names. The
    gradients of weight and bias are those of this rank's loss, to be averaged like all others.

    Raises ``UserError`` for an input of another shape or on another device than the CPU, and where all ranks together
    have one value a channel.
    """

    def __init__(self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True, group=None):
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.group = group

    def _check_input_dim(self, inputs):
        if not 2 <= inputs.dim() <= 5 or inputs.shape[1] != self.num_features:
            raise UserError(
                f"BatchNorm of {self.num_features} channels takes [N, {self.num_features}, ...] of 2 to 5 dimensions,"
                f" not {list(inputs.shape)}"
            )

    def forward(self, inputs):
        self._check_input_dim(inputs)
        if not self.training or not dist.is_initialized() or dist.get_world_size(self.group) == 1:
            return super().forward(inputs)
        if inputs.device.type != "cpu":
            raise UserError("this SyncBatchNorm is for the CPU: move the network to its GPU before it is converted")
        mean, variance, count = statistics_of_all_ranks(inputs, self.group)
        if self.running_mean is not None:
            self._update_running_statistics(mean, variance, count)
        return _Normalise.apply(inputs, self.weight, self.bias, mean, variance, count, self.eps, self.group)

    @torch.no_grad()
    def _update_running_statistics(self, mean, variance, count):
        self.num_batches_tracked += 1
        rate = 1 / self.num_batches_tracked.item() if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), rate)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), rate)


@torch.no_grad()
def statistics_of_all_ranks(inputs, group=None):
    """Return mean [C], biased variance [C] and number of values a channel over all ranks' ``inputs``.

    Means and variances are combined, not sums of squares, which would cancel where the mean is large
    (Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance").
    """
    channels = inputs.shape[1]
    dtype = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    mean = variance = torch.zeros(channels, dtype=dtype, device=inputs.device)
    if inputs.numel():
        # The kernel wants running statistics to update; their dtype is the one that it computes in.
        mean, variance = torch.batch_norm_update_stats(inputs, mean, torch.ones_like(mean), 0.0)
    table = gather(torch.cat([mean, variance, mean.new_tensor([inputs.numel() // channels])]), group)  # a row a rank
    means, variances, counts = table.split([channels, channels, 1], dim=1)
    count = counts.sum().item()
    if count <= 1:
        raise UserError("BatchNorm needs more than one value a channel over all ranks: give them more samples")
    mean, variance = _combined(means, variances, counts / count)
    return mean, variance, count


def _combined(means, variances, shares):
    """Return mean and variance of a mixture: a row a part, ``shares`` [parts, 1] that add up to 1."""
    mean = (shares * means).sum(0)
    return mean, (shares * torch.addcmul(variances, means - mean, means - mean)).sum(0)


class _Normalise(torch.autograd.Function):
    """(x - mean) / std * weight + bias, where mean and std depend on the inputs of all ranks.

    With x^ for the normalised input, g for the incoming gradient and E for the mean over all ranks' values,

        gradient of x = weight / std * (g - E[g] - x^ E[g x^]).

    Both halves are kernels of BatchNorm in evaluation mode: the first its backward, which also gives the
    sums of g and g x^, and the second its forward with other weights.
    """

    @staticmethod
    def forward(ctx, inputs, weight, bias, mean, variance, count, eps, group):
        ctx.save_for_backward(inputs, weight, mean, variance)
        ctx.count, ctx.eps, ctx.group, ctx.has_bias = count, eps, group, bias is not None
        return _evaluated(inputs, weight, bias, mean, variance, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        inputs, weight, mean, variance = ctx.saved_tensors
        scale = torch.ones_like(mean) if weight is None else weight.to(mean.dtype)
        if inputs.numel():
            own, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
                gradient, inputs, scale, mean, variance, None, None, False, ctx.eps, [True, True, True]
            )
        else:
            own, of_weight, of_bias = torch.zeros_like(inputs), torch.zeros_like(mean), torch.zeros_like(mean)
        means = gather(torch.cat([of_weight, of_bias]), ctx.group).sum(0) / ctx.count
        mean_of_both, mean_of_gradient = means.chunk(2)
        factor = -scale * (variance + ctx.eps).rsqrt()
        own += _evaluated(inputs, factor * mean_of_both, factor * mean_of_gradient, mean, variance, ctx.eps)
        if weight is None:
            return own, *[None] * 7
        return own, of_weight.to(weight.dtype), of_bias.to(weight.dtype) if ctx.has_bias else None, *[None] * 5


def _evaluated(inputs, weight, bias, mean, variance, eps):
    """Return (inputs - mean) / sqrt(variance + eps) * weight + bias, in the dtype and layout of the inputs."""
    weight, bias = (None if one is None else one.to(mean.dtype) for one in (weight, bias))
    return F.batch_norm(inputs, mean, variance, weight, bias, training=False, eps=eps)


def convert_sync_batchnorm(module, group=None):
    """Return ``module`` with every BatchNorm replaced by one that synchronises; parameters and buffers are kept.

    On a GPU that is PyTorch's ``nn.SyncBatchNorm``, on the CPU ``SyncBatchNorm``.
    """
    if any(tensor.is_cuda for tensor in [*module.parameters(), *module.buffers()]):
        return nn.SyncBatchNorm.convert_sync_batchnorm(module, group)
    return replace_batchnorm(module, lambda *options: SyncBatchNorm(*options, group=group))


def replace_batchnorm(module, make):
    """Return ``module`` with every plain BatchNorm replaced by ``make(features, eps, momentum, affine, track)``.

    Parameters, buffers, names and mode are kept.
    """
    if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        plain, module = module, make(module.num_features, module.eps, module.momentum, False, False)
        module.affine, module.track_running_stats = plain.affine, plain.track_running_stats
        module.training = plain.training
        module._parameters, module._buffers = plain._parameters, plain._buffers
    for name, child in module._modules.items():  # named_children() would skip a second name of the same layer
        if child is not None:
            setattr(module, name, replace_batchnorm(child, make))
    return module


@torch.no_grad()
def combine_running_statistics(module, share=1.0, group=None):
    """Give all ranks the running statistics of the ranks together, in every BatchNorm of ``module``.

    With f for a rank's ``share`` divided by the sum of all shares: mean = sum of f mean, variance = sum of
    f (variance + (mean of the rank - mean)^2). One collective for the whole network.
    """
    layers = [one for one in module.modules() if isinstance(one, _BatchNorm) and one.running_mean is not None]
    if not layers:
        return
    means = torch.cat([layer.running_mean for layer in layers])
    variances = torch.cat([layer.running_var for layer in layers])
    table = gather(torch.cat([means.new_tensor([share]), means, variances]), group)
    shares = table[:, :1] / table[:, :1].sum()
    means, variances = table[:, 1:].chunk(2, dim=1)
    mean, variance = _combined(means, variances, shares)
    sizes = [layer.num_features for layer in layers]
    for layer, own_mean, own_variance in zip(layers, mean.split(sizes), variance.split(sizes), strict=True):
        layer.running_mean.copy_(own_mean)
        layer.running_var.copy_(own_variance)
