"""The flags of the course's scripts, each told once: its default, what it means and which values make sense.

    flags = Flags(__doc__).take("dataset", "epochs", "batch-size", "seed")
    args = flags.parse_args()

A flag that one chapter teaches stands in its own script. What is wrong in a command line is told in one line.
"""

import argparse
import os

from utils import devices, models
from utils.data.augment import AUGMENTATIONS
from utils.errors import UserError

DAY_S = 86_400
# What torchrun tells a script through the environment, and the values that make sense.
TOLD_BY_TORCHRUN = {
    "RANK": (0, 2**31),
    "WORLD_SIZE": (1, 2**31),
    "LOCAL_RANK": (0, 2**31),
    "LOCAL_WORLD_SIZE": (1, 2**31),
    "MASTER_PORT": (1, 2**16 - 1),
}
ALSO_TOLD = ("MASTER_ADDR", "GROUP_RANK")


def at_least(least):
    """Return a type for argparse: numbers of the kind of ``least`` that are not below it and not infinite."""
    return within(least, float("inf"))


def within(least, most):
    """Return a type for argparse: numbers of the kind of ``least`` from there to ``most``, both included."""

    def number(text):
        value = type(least)(text)
        if not least <= value <= most or value == float("inf"):
            choose = f"{least} or more" if most == float("inf") else f"{least} to {most}"
            raise argparse.ArgumentTypeError(f"{text} is out of range: choose {choose}")
        return value

    number.__name__ = type(least).__name__  # argparse names it where the text is no number
    return number


def folder(text):
    """Return the name of a folder; an empty one, as an unset shell variable gives, would mean another."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty: name a folder")
    return text


FLAGS = {
    "dataset": {"default": "digits", "help": "digits, digits-rgb, fashion-mnist, mnist, cifar10 or folder:PATH"},
    "data-dir": {"type": folder, "default": "data", "help": "where prepared datasets lie"},
    "run-dir": {"type": folder, "help": "where the record goes (default: runs/<script>-<settings>)"},
    "train-images": {"type": at_least(1), "help": "train on the first so many images only"},
    "epochs": {"type": at_least(1), "default": 20, "help": "at most so many"},
    "batch-size": {"type": at_least(1), "default": 64, "help": "images a step in each process"},
    "base-lr": {"type": within(0.0, 1e6), "default": 0.05, "help": "learning rate"},
    "reference-batch": {"type": at_least(1), "default": 32, "help": "effective batch that --base-lr is meant for"},
    "lr-scaling": {"choices": ("none", "sqrt", "linear"), "default": "none", "help": "how the rate follows the batch"},
    "warmup-epochs": {
        "type": at_least(0.0), "default": 0.0, "help": "epochs during which the rate climbs to its full size",
    },
    "momentum": {"type": within(0.0, 0.9999), "default": 0.9, "help": "how much of the last step goes into the next"},
    "lr-decay": {"type": at_least(0.0), "default": 0.0, "help": "divide the rate by 1 + decay x step"},
    "target-accuracy": {"type": within(0.0, 1.0), "help": "stop when validation has reached it ..."},
    "patience": {"type": at_least(1), "default": 2, "help": "... in so many epochs in a row"},
    "model": {"choices": models.MODELS, "default": "wide-resnet-tiny"},
    "width": {"type": within(0.001, 64.0), "default": 1.0, "help": "factor on the channels of every layer"},
    "dropout": {"type": within(0.0, 0.99), "default": 0.01, "help": "share of the values that a step leaves out"},
    "augment": {"choices": AUGMENTATIONS, "default": "none"},
    "sync-batchnorm": {"action": "store_true", "help": "BatchNorm over the images of all processes"},
    "precision": {"choices": devices.PRECISIONS, "default": "auto", "help": "auto is bfloat16 where it is faster"},
    "device": {"choices": devices.DEVICES, "default": "auto", "help": "auto is a GPU for each process, or the CPU"},
    "backend": {"choices": ("gloo", "nccl"), "help": "default: nccl on GPUs, gloo on the CPU"},
    "timeout": {
        "type": within(1.0, DAY_S), "default": 60, "help": "seconds after which a rank that waits for another gives up",
    },
    "resume": {"action": "store_true", "help": "go on from the last checkpoint in --run-dir, where there is one"},
    "checkpoint-every": {"type": at_least(0.0), "default": 60.0, "help": "seconds between checkpoints"},
    "seed": {"type": within(0, 2**32 - 1), "default": 0, "help": "decides all that is drawn at random"},
}  # fmt: skip


class Flags(argparse.ArgumentParser):
    """A parser to which a script adds the flags that it takes, by name."""

    def __init__(self, description):
        super().__init__(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)

    def take(self, *names, **changes):
        """Add the course's flags of these names, with ``changes`` to what is said of them; return the parser."""
        for name in names:
            self.add_argument(f"--{name}", **FLAGS[name] | changes)
        return self

    def parse_args(self, args=None, namespace=None):
        """Return the flags of the command line. Raises ``UserError`` for them, and for ranks that cannot be."""
        refuse_wrong_ranks()
        return super().parse_args(args, namespace)

    def defaults(self):
        """Return the default of every flag by name."""
        return vars(self.parse_args([]))

    def error(self, message):
        """Raise ``UserError`` in the place of a page about the usage."""
        raise UserError(f"{message} (--help lists all flags)")


def refuse_wrong_ranks():
    """Raise ``UserError`` where the environment holds ranks that torchrun never sets, as after a typing error."""
    told = {name: os.environ[name] for name in TOLD_BY_TORCHRUN if name in os.environ}
    lacking = [name for name in (*TOLD_BY_TORCHRUN, *ALSO_TOLD) if not os.environ.get(name)]
    if "RANK" in told and lacking:
        raise UserError(
            f"the environment has RANK={told['RANK']} and lacks {', '.join(lacking)}, which torchrun sets: unset RANK,"
            " and use torchrun"
        )
    for name, text in told.items():
        least, most = TOLD_BY_TORCHRUN[name]
        if not text.isdecimal() or not least <= int(text) <= most:
            raise UserError(
                f"the environment has {name}={text!r}, which torchrun never sets: unset it, and use torchrun"
            )
    for rank, size in (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE")):
        if rank in told and int(told[rank]) >= int(told.get(size, 2**31)):
            raise UserError(
                f"the environment has {rank}={told[rank]} and {size}={told[size]}, but ranks count from 0:"
                " unset them, and use torchrun"
            )
