"""Call the functions of a script one by one on what is known, so that each is judged by itself.

The script is read without being run; of each call it is noted what was given and what came back, or what it raised.
A function that is not there, or takes something else, is a matter of style and left alone.
"""

import inspect
import sys
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

DIVISIONS = ((31, (1, 1)), (31, (1, 0.5)), (10, (1, 1, 1)), (7, (1, 0, 2)), (2, (1, 1, 1)))
WARMUPS = ((8, 4.0), (2.5, 16.0), (0, 4.0), (8, 0.5))  # steps of the climb, and the factor
CLIMBED = 10
NUMBERS = 8  # that go round the ring; with three ranks the chunks differ in size
BASE = 100  # rank r brings BASE^r, so that a sum shows how often each rank is in it
CHANNELS, MEAN = 2, 8.0
PATIENCE_S = 20


def probe(kind, namespace, recorder):
    """Call what is to be called in ``namespace``, the names of a script."""
    PROBES[kind](lambda name, *given: called(namespace.get(name), name, given, recorder), namespace)


def called(function, name, given, recorder):
    """Call ``function`` with ``given`` and note what came back."""
    try:
        inspect.signature(function).bind(*given)
    except (TypeError, ValueError):
        return
    line = function.__code__.co_firstlineno if inspect.isfunction(function) else None
    facts = {"name": name, "given": plain(given), "line": line}
    recorder.note("calling", **facts)
    try:
        returned = function(*given)
    except Exception as error:
        recorder.note("called", **facts, raised=f"{type(error).__name__}: {error}"[:300])
    else:
        recorder.note("called", **facts, returned=plain(returned), left=plain(given))


def plain(value):
    """Return ``value`` as JSON has it."""
    if torch.is_tensor(value):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value if isinstance(value, (int, float, str)) or value is None else repr(value)[:100]


def by_hand(call, _namespace):
    """Have batches divided, and a few numbers sent round the ring."""
    for batch, loads in DIVISIONS:
        call("divide", batch, list(loads))
    with group() as (rank, world_size):
        call("ring_all_reduce", ring_numbers(rank), rank, world_size)


@contextmanager
def group():
    """Join a group of all ranks for the block, and yield this one's rank and the world size."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=PATIENCE_S))
    yield dist.get_rank(), dist.get_world_size()
    sys.stdout.flush()
    dist.barrier()  # a rank that ends early would take the others' connections with it


def ring_numbers(rank):
    """Return what ``rank`` brings to the ring: float32 [NUMBERS], exact however often it is added."""
    return BASE**rank * (1 + torch.arange(NUMBERS) / NUMBERS)


def warm_up(call, _namespace):
    """Have the rate climb."""
    for steps, factor in WARMUPS:
        for step in range(CLIMBED):
            call("warmed", step, steps, factor)


def sync_batchnorm(call, namespace):
    """Have a layer normalise images whose mean is large beside their spread, in both precisions."""
    kind = namespace.get("SyncBatchNorm")
    if not inspect.isclass(kind):
        return

    def normalise(images, precision):
        return kind(CHANNELS).train()(images.to(getattr(torch, precision))).float()

    namespace["normalise"] = normalise
    with group() as (rank, _):
        own = torch.Generator().manual_seed(rank)
        images = (MEAN + torch.randn(4, CHANNELS, 3, 3, generator=own)).bfloat16().float()
        for precision in ("float32", "bfloat16"):
            call("normalise", images, precision)


PROBES = {"by hand": by_hand, "warm-up": warm_up, "BatchNorm": sync_batchnorm}
