"""Count the training steps of a run, and write nothing else down: it costs nothing beside the training.

The run that is graded is not watched as trials are; this shows whether it is the run that was asked for. In the file
of its rank is a line for each pass of images through an outermost module that teaches (the number of images, that of
the module, and what some of its weights add up to), for each step of an optimizer and for each row of the record.
``steps_taken`` and ``steps_by_row`` put them together.
"""

import functools
import itertools
import os
import re
from pathlib import Path

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from assessment.recorder.networks import is_in_backward, is_wrapped, tensors, unwrapped
from utils import runs

SUFFIX, STEP, ROW = ".steps", "step", "row"
COUNT = re.compile("[0-9]{1,9}")  # of images in a pass
MOST_BYTES = 20_000_000
SAMPLED = 8  # parameters, and numbers of each


class Counter:
    """What is counted in one rank, written to ``file`` at once."""

    def __init__(self, file):
        self.file, self.pid = file, os.getpid()
        self.depth = self.stepping = 0

    def enter(self, module, inputs):
        if is_in_backward() or not any(True for _ in module.parameters()):
            return
        self.depth += 1
        given = next((one for one in tensors(inputs) if one.dim() >= 2), None)
        if self.depth == 1 and given is not None and (torch.is_grad_enabled() or is_wrapped(given)):
            self.note(f"{len(unwrapped(given))} {id(module)} {weights_of(module)}")

    def leave(self, module, _inputs, _output):
        if not is_in_backward() and any(True for _ in module.parameters()):
            self.depth -= 1

    def begin_step(self, _optimizer, _args, _kwargs):
        self.stepping += 1

    def end_step(self, _optimizer, _args, _kwargs):
        self.stepping -= 1
        if self.stepping == 0:  # an optimizer may call another
            self.note(STEP)

    def rows(self, write):
        """Return ``write``, the method that writes a row of the record, as one that notes that it has."""

        @functools.wraps(write)
        def write_and_note(*args, **kwargs):
            write(*args, **kwargs)
            self.note(ROW)

        return write_and_note

    def note(self, line):
        if os.getpid() == self.pid:  # what a loader's worker does counts for nothing
            self.file.write(f"{line}\n")


def count(folder):
    """Begin to count in this process, into a file of its rank in ``folder``; torch must be imported."""
    path = Path(folder, os.environ["RANK"]).with_suffix(SUFFIX)
    counter = Counter(path.open("a", buffering=1, encoding="utf-8"))
    register_module_forward_pre_hook(counter.enter)
    register_module_forward_hook(counter.leave, always_call=True)
    register_optimizer_step_pre_hook(counter.begin_step)
    register_optimizer_step_post_hook(counter.end_step)
    runs.Record.epoch = counter.rows(runs.Record.epoch)


@torch.no_grad()
def weights_of(module):
    """Return what some numbers of some of a module's parameters add up to: any step that moves them changes it."""
    held = [one for one in module.parameters() if one.requires_grad]
    chosen = held[:: max(1, len(held) // SAMPLED)][:SAMPLED]
    try:
        return repr(sum(getattr(one, "_local_tensor", one).flatten()[:SAMPLED].double().sum() for one in chosen).item())
    except Exception:  # not there: within a transformation of functions, on a meta device
        return "unknown"


def steps_taken(folder, rank, images):
    """Return how many training steps ``rank`` took, by its file in ``folder``; None where none was seen.

    Weights that have moved twice between passes through a module have taken a step, whoever took it: once for the step,
    once for what some methods try out in between (Foret et al. 2021). Not seen: twice as many steps as are asked for,
    weights that are no parameters of the module that the images go through, and those of which nothing is sampled.

    Steps of several optimizers with no pass between them are one, as far as passes are seen (not those of images that
    are given by keyword). Where no optimizer of torch's steps, each pass of at least ``images`` through the first
    module counts.
    """
    return _taken([line for line in _lines(folder, rank) if line != ROW], images)


def steps_by_row(folder, rank, images):
    """Return how many steps ``rank`` took before each row that it wrote into the record, since the one before it."""
    taken, since = [], []
    for line in _lines(folder, rank):
        if line == ROW:
            taken.append(_taken(since, images) or 0)
            since = []
        else:
            since.append(line)
    return taken


def _lines(folder, rank):
    path = Path(folder, str(rank)).with_suffix(SUFFIX)
    if not path.is_file() or path.stat().st_size > MOST_BYTES:
        return []
    return path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]


def _taken(lines, images):
    """Return how many steps the ``lines`` of a rank show, None where they show none."""
    # The script may have written them itself: what no rank writes is no pass.
    passes = [parts for line in lines if len(parts := line.split()) == 3 and COUNT.fullmatch(parts[0])]
    sums = {}
    for _, module, total in passes:
        sums.setdefault(module, []).append(total)
    moved = max(map(moves, sums.values()), default=0) // 2
    if STEP in lines:
        taken = sum(line == STEP and earlier != STEP for earlier, line in zip([STEP, *lines], lines, strict=False))
        return max(taken or lines.count(STEP), moved)
    of_the_first = [int(count) for count, module, _ in passes if module == passes[0][1]]
    return max(sum(count >= images for count in of_the_first), moved) or None


def moves(sums):
    """Return how often the weights were others at a pass than at the one before it."""
    return sum(one != other for one, other in itertools.pairwise(sums))
