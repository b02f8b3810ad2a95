"""Run a training script in this rank with networks that have no kinks: rounding then stays as small as it is.

    torchrun ... smooth.py SCRIPT [ARGUMENT ...]

ReLU compares a number with zero, max-pooling two numbers. Where they are nearly equal, rounding decides, and the
gradient jumps: at one of thousands of millions of such places in a run, on one processor and not on the next, the
weights of N processes and of one part by 1e-4. The same networks with tanh and average pooling show what a script does.
"""

import runpy
import sys

import torch
from torch.nn import functional as F


def average_pool(images, kernel_size, *_args, **_more):
    return F.avg_pool2d(images, kernel_size)


def adaptive_average_pool(images, output_size, *_args, **_more):
    return F.adaptive_avg_pool2d(images, output_size)


def tanh(values, **_more):
    return torch.tanh(values)


def main():
    F.relu, F.max_pool2d, F.adaptive_max_pool2d = tanh, average_pool, adaptive_average_pool
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
