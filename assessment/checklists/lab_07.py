"""Lab 07: momentum spelled out, and a rate that decays."""

from assessment.checklists.common import REMEMBERS, THREE, TWO, everywhere, lab
from assessment.laws import optimizers, rates
from assessment.trials.plan import Plan

PLANS = (
    Plan(TWO, 2, {"epochs": 2, "batch_size": 16, "seed": 0}, {"momentum": "0.8", "lr_decay": "0.1"}),
    Plan(THREE, 3, {"epochs": 3, "batch_size": 11, "seed": 8}, {"momentum": "0.5", "lr_decay": "0.3"}),
)
ITEMS = {
    1: (
        everywhere(optimizers.remembers) + REMEMBERS,
        "the velocity is a running sum of gradients in which old ones fade; the ranks need not exchange it, since equal"
        " gradients make equal velocities (torch.optim.SGD, the algorithm in its documentation)",
        'velocity.mul_(group["momentum"]).add_(weight.grad), then weight.sub_(velocity, alpha=group["lr"])',
    ),
    2: (
        everywhere(rates.rates_follow_the_plan),
        "a schedule is a function from the number of the step, counted from 0, to a factor on the rate"
        " (torch.optim.lr_scheduler.LambdaLR)",
        "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + args.lr_decay * step))",
    ),
    3: (
        everywhere(rates.schedule_moves),
        "a schedule counts how often it is told: here once a step, after the optimizer"
        ' ("How to adjust learning rate" in the documentation of torch.optim)',
        "schedule.step() right after optimizer.step()",
    ),
}
LAB = lab("07_momentum", PLANS, ITEMS)
