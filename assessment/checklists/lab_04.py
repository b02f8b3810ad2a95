"""Lab 04: BatchNorm that takes its statistics over all ranks."""

from assessment.checklists.common import THREE, TWO, lab
from assessment.laws import batchnorm
from assessment.trials.plan import Plan

ONE, FUNCTIONS = "one process", "functions called one by one"
PLANS = (
    Plan(FUNCTIONS, 2, {"epochs": 1, "batch_size": 16}, probe="BatchNorm"),
    Plan(ONE, 1, {"epochs": 2, "batch_size": 32, "seed": 0}),  # torch's own BatchNorm over the undivided batch
    Plan(TWO, 2, {"epochs": 2, "batch_size": 16, "seed": 0}, {"sync_batchnorm": None}, reference=ONE, machines=2),
    Plan(THREE, 3, {"epochs": 3, "batch_size": 11, "seed": 8}),
)
ITEMS = {
    1: (
        ((TWO, batchnorm.sends_gradients_through),),
        "a sum over the ranks reaches the loss of every rank, so its gradient is the sum of the ranks' gradients"
        " (torch.autograd.Function, Extending PyTorch)",
        "all_reduce a clone in forward; in backward all_reduce a clone of the gradient",
    ),
    2: (
        ((TWO, batchnorm.takes_statistics_of_all), (FUNCTIONS, batchnorm.computes_in_float32)),
        "values, their squares and their number add up over the ranks; mean and variance follow from the three sums"
        " (Ioffe and Szegedy 2015; torch.nn.SyncBatchNorm)",
        "mean = total / count, variance = squares / count - mean * mean, from the sums over all ranks",
    ),
    3: (
        ((TWO, batchnorm.keeps_running_statistics),),
        "evaluation needs running statistics: they move by momentum towards those of the whole batch, the variance"
        " unbiased by count / (count - 1) (torch.nn.BatchNorm2d)",
        "self.running_mean.lerp_(mean.detach(), self.momentum), and running_var likewise with the unbiased variance",
    ),
    4: (
        ((TWO, batchnorm.is_used),),
        "the layers must be in the network before the optimizer and the wrapper take hold of its parameters",
        "synchronise(model) where args.sync_batchnorm, before .to(device) and DistributedDataParallel",
    ),
}
LAB = lab("04_sync_batchnorm", PLANS, ITEMS)
