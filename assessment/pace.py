"""How many images a second a machine can train on, and how long the assignment's minutes are on one that has fewer.

``minutes`` are those of a machine that trains on ``pace`` images a second or more. A slower one, or one that is busy
with something else, gets as much more time as it is slower: what is graded is a script, and not a processor.
"""

import statistics
import time
from functools import lru_cache

import torch
from torch.nn import functional as F

from utils import devices, models
from utils.errors import UserError

STEPS, CLASSES, SIZE, RATE = 5, 10, (3, 32, 32), 0.01
BESIDES = 1.5  # times as long as its training may take, a run may
MOST_IMAGES = 1_024  # of a step that is measured: what an image takes, a larger batch does not change
MOST_S = 366 * 86_400  # of training


@lru_cache(maxsize=1)
def images_per_s(name, batch_size, device="cpu"):
    """Return how many images a second this machine trains the network ``name`` on, measured over a few steps.

    One process, with all threads that it has, stands for all processes of a run; ``device`` is where it computes. The
    median step counts, so that one that is held up does nothing.
    """
    batch_size = min(batch_size, MOST_IMAGES)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        seconds = _steps(models.build(name, SIZE[0], CLASSES), batch_size, torch.device(device))
    return batch_size / statistics.median(seconds[1:])  # the first step makes what later ones use


def _steps(model, batch_size, device):
    """Return the seconds that each step takes."""
    model.to(device)
    images = torch.randint(256, (batch_size, *SIZE), dtype=torch.uint8).to(device)
    labels = torch.arange(batch_size, device=device) % CLASSES
    optimizer, seconds = torch.optim.SGD(model.parameters(), lr=RATE), []
    bfloat16 = devices.use_bfloat16("auto", device)
    for _ in range(STEPS):
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()  # a GPU works behind the program's back; this waits for it
        seconds.append(time.perf_counter() - start)
    return seconds


def budget_s(task, device="cpu"):
    """Return how many seconds of training the assignment ``task`` gives a script on this machine.

    Raises ``UserError`` where that is more than a year.
    """
    pace = images_per_s(task.model, task.batch_size, str(device))
    seconds = 60 * task.minutes * max(1.0, task.pace / pace)
    if seconds > MOST_S:
        raise UserError(
            f"{task.minutes:g} minutes at a pace of {task.pace:g} images a second are {seconds / 86_400:,.0f} days on"
            f" this machine, which trains on {pace:.0f}: lower minutes or pace in config.json"
        )
    return seconds


def longest_s(budget_s):
    """Return how many seconds a run may take whose training may take ``budget_s``: it judges after each epoch, too."""
    return BESIDES * budget_s


def told(seconds, task, device="cpu"):
    """Return in words whether ``seconds`` of training are within the assignment's time.

    The machine is measured only where its pace decides.
    """
    if seconds <= 60 * task.minutes:
        return f"training took {seconds:.0f} s of the {60 * task.minutes:.0f} s that it may take"
    budget, pace = budget_s(task, device), images_per_s(task.model, task.batch_size, str(device))
    told = (
        f"training took {seconds:.0f} s; {task.minutes:g} min are {budget:.0f} s on this machine ({pace:.0f} images/s)"
    )
    return told + (": within the time" if seconds <= budget else ": too long")
