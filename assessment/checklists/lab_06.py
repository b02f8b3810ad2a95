"""Lab 06: the learning rate follows the effective batch."""

from assessment.checklists.common import RESUMED, THREE, TWO, lab
from assessment.laws import rates, unwatched
from assessment.trials.plan import Plan

LEFT, SMALL = "the rate left alone", "a batch below the reference"
PLANS = (
    Plan(
        TWO,
        2,
        {"epochs": 2, "batch_size": 16, "seed": 0},
        {"lr_scaling": "linear", "base_lr": "0.005", "reference_batch": "10"},
    ),
    Plan(
        THREE,
        3,
        {"epochs": 3, "batch_size": 11, "seed": 8},
        {"lr_scaling": "sqrt", "base_lr": "0.02", "reference_batch": "12"},
    ),
    Plan(
        LEFT,
        1,
        {"epochs": 1, "batch_size": 40, "seed": 0},
        {"lr_scaling": "none", "base_lr": "0.03", "reference_batch": "10"},
    ),
    Plan(
        SMALL,
        1,
        {"epochs": 1, "batch_size": 24, "seed": 0},
        {"lr_scaling": "linear", "base_lr": "0.03", "reference_batch": "60"},
    ),
)
PAPER = "Goyal et al. 2017, section 2.1"
ITEMS = {
    1: (
        ((TWO, rates.knows_the_factor),),  # linear: what the rule makes of it is the next step
        "what counts is how many images a step averages over, not how many processes hold them: the factor is the"
        f" effective batch by --reference-batch ({PAPER})",
        "factor = world_size * args.batch_size / args.reference_batch",
    ),
    2: (
        (
            *((name, rates.follows_the_batch) for name in (TWO, THREE, LEFT, SMALL)),
            (RESUMED, unwatched.keeps_the_rate),
        ),
        f"linear takes factor times the rate, sqrt the root of factor times, none leaves it ({PAPER})",
        'rate = args.base_lr * {"none": 1, "sqrt": factor**0.5, "linear": factor}[args.lr_scaling]',
    ),
}
LAB = lab("06_learning_rate", PLANS, ITEMS)
