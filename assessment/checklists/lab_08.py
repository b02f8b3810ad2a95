"""Lab 08: the learning rate warms up."""

from assessment.checklists.common import REMEMBERS, THREE, TWO, lab
from assessment.laws import rates
from assessment.trials.plan import Plan

DECAYING, SMALL, FUNCTIONS = "warm-up and decay", "a batch below the reference", "functions called one by one"
SCALED = {"lr_scaling": "linear", "base_lr": "0.005", "reference_batch": "8"}
PLANS = (
    Plan(FUNCTIONS, 1, {"epochs": 1, "batch_size": 16}, probe="warm-up"),
    Plan(TWO, 2, {"epochs": 2, "batch_size": 16, "seed": 0}, SCALED | {"warmup_epochs": "1.5"}),
    Plan(THREE, 3, {"epochs": 3, "batch_size": 11, "seed": 8}, SCALED),
    Plan(
        DECAYING,
        1,
        {"epochs": 2, "batch_size": 40, "seed": 0},
        SCALED | {"warmup_epochs": "1.0", "lr_decay": "0.2"},
    ),
    Plan(
        SMALL,
        1,
        {"epochs": 1, "batch_size": 24, "seed": 0},
        {"lr_scaling": "linear", "base_lr": "0.02", "reference_batch": "60", "warmup_epochs": "0.5"},
    ),
)
PAPER = "Goyal et al. 2017, section 2.2"
ITEMS = {
    1: (
        ((FUNCTIONS, rates.climbs),),
        f"the rate climbs evenly from rate / factor to rate over the first epochs, step by step ({PAPER}); without"
        " warm-up it is the full rate at once, and a batch below the reference needs none",
        "cold + (1 - cold) * min(1.0, step / warmup_steps), with cold = 1 / max(1.0, factor)",
    ),
    2: (
        tuple((name, rates.rates_follow_the_plan) for name in (TWO, THREE, DECAYING, SMALL)) + REMEMBERS,
        "one schedule holds both: the part that warm-up has reached times the part that decay leaves"
        " (torch.optim.lr_scheduler.LambdaLR)",
        "lambda step: warmed(step, warmup_steps, factor) / (1 + args.lr_decay * step)",
    ),
}
LAB = lab("08_warmup", PLANS, ITEMS)
