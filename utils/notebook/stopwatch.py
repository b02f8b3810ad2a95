"""Time training steps of several ranks, in turn and together, and record what happens when within one.

ms = stopwatch.in_turn({"naive": naive, "bucketed": bucketed}, rounds=8)      # on every rank of a %%ranks cell
spans = stopwatch.traced(naive)
"""

import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn import functional as F

from utils import devices

WARM_UP = 2  # rounds that are not counted


def gradients(model, count, after=lambda: None):
    """Compute the gradients of ``model`` for ``count`` grey images of 28 x 28 pixels, in the precision of this machine.

    ``after`` is called behind backward, for what averages the gradients then.
    """
    images, labels = torch.zeros(count, 1, 28, 28, dtype=torch.uint8), torch.arange(count) % 10
    bfloat16 = devices.use_bfloat16("auto", "cpu")
    with torch.profiler.record_function("forward"), torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        loss = F.cross_entropy(model(images), labels)
    loss.backward()
    after()


def in_turn(actions, rounds, slowest=False):
    """Return the median milliseconds of each of ``actions`` (name to function), which all ranks call in turn.

    Ranks begin each one together. With ``slowest`` it lasts until the last of them is done.
    """
    times = {name: [] for name in actions}
    for _ in range(WARM_UP + rounds):
        for name, action in actions.items():
            dist.barrier()
            start = time.perf_counter()
            action()
            if slowest:
                dist.barrier()
            times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(some[WARM_UP:]) for name, some in times.items()}


def traced(action):
    """Return what this rank does in ``action`` as (kind, start, length) in milliseconds from its forward pass on.

    Kinds are forward, backward and all-reduce; the profiler of torch sees them (``gradients`` marks the first).
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "10")  # the profiler talks a lot
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
        dist.barrier()
        action()
    found = [(one.name, one.time_range.start / 1000, one.time_range.end / 1000) for one in trace.events()]
    (zero, first) = next((start, end) for name, start, end in found if name == "forward")
    backward = [(start, end) for name, start, end in found if name.startswith("autograd::engine")]  # one an operation
    begin, end = min(start for start, _ in backward), max(end for _, end in backward)
    messages = [(start - zero, end - start) for name, start, end in found if name == "gloo:all_reduce"]
    spans = [("forward", 0.0, first - zero), *(("all-reduce", *one) for one in messages)]
    return [*spans, ("backward", begin - zero, end - begin)]


def hidden(spans):
    """Return which part of the all-reduces' time lies under backward, for what ``traced`` has returned."""
    begin, length = next((start, length) for kind, start, length in spans if kind == "backward")
    messages = [(start, start + length) for kind, start, length in spans if kind == "all-reduce"]
    under = sum(max(0.0, min(end, begin + length) - max(start, begin)) for start, end in messages)
    return under / sum(end - start for start, end in messages)
