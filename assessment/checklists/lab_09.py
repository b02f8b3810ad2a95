"""Lab 09: NovoGrad."""

from assessment.checklists.common import REMEMBERS, THREE, TWO, lab
from assessment.laws import optimizers, rates
from assessment.trials.plan import Plan

SGD = "--optimizer sgd"
PLANS = (
    Plan(
        TWO,
        2,
        {"epochs": 2, "batch_size": 16, "seed": 0},
        {"optimizer": "novograd", "base_lr": "0.01", "weight_decay": "0.01", "lr_decay": "0.1"},
    ),
    Plan(
        THREE,
        3,
        {"epochs": 3, "batch_size": 11, "seed": 8},
        {"optimizer": "novograd", "base_lr": "0.01", "lr_scaling": "linear", "reference_batch": "16"},
    ),
    Plan(
        SGD,
        1,
        {"epochs": 1, "batch_size": 40, "seed": 0},
        {"optimizer": "sgd", "momentum": "0.7", "weight_decay": "0.3"},
    ),
)
PAPER = "Ginsburg et al. 2019, algorithm 1"
ITEMS = {
    1: (
        ((TWO, optimizers.divides_by_the_layers_size), (THREE, optimizers.divides_by_the_layers_size)),
        f"each layer has one number, the running mean of its gradient's squared size; at the first step it is that"
        f" square alone ({PAPER}, v)",
        'state["second"] = beta2 * state["second"] + (1 - beta2) * square if state else square',
    ),
    2: (
        ((TWO, optimizers.takes_novograd_steps), (THREE, optimizers.takes_novograd_steps), *REMEMBERS),
        f"the gradient is divided first; then decay x weight joins, then momentum ({PAPER}, m)",
        "direction = gradient / (second.sqrt() + 1e-8) + decay * weight; first = beta1 * first + direction",
    ),
    3: (
        ((TWO, optimizers.chooses_the_optimizer), (THREE, rates.follows_the_batch), (SGD, optimizers.remembers)),
        "--optimizer decides, with the betas that the lab names, and sgd stays what it was",
        "NovoGrad(parallel.parameters(), lr=rate, betas=(0.95, 0.98), weight_decay=args.weight_decay)",
    ),
}
LAB = lab("09_novograd", PLANS, ITEMS, pair={"optimizer": "novograd", "base_lr": "0.01"})
