"""Train many curves at once, each in one process of one thread, one a core.

    curves = train_curves([Settings(batch_size=32), Settings(batch_size=512)])

What a batch, a rate or an optimizer does to accuracy depends on the effective batch, not on the number
of processes that share it: N processes of batch b take the steps of one process of batch N x b. So the
effective batch of many GPUs can be studied in one process, and a curve takes about five seconds. What
does depend on the number of processes (throughput, communication) needs real ones: see ``launch``.
"""

import json
import math
import queue
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field

import torch
from torch.nn import functional as F
from tqdm.auto import tqdm

from utils import models
from utils import processes as system
from utils.data import load
from utils.devices import physical_cores, use_bfloat16
from utils.errors import UserError
from utils.virtual_ranks import convert_virtual_ranks


@dataclass(frozen=True)
class Settings:
    """What one curve is trained with; ``batch_size`` is the effective batch.

    The rate is ``base_lr`` for ``reference_batch`` images; ``lr_scaling`` (none, sqrt or linear)
    multiplies it by the factor batch_size / reference_batch or its root, and warm-up climbs step by step
    from rate / factor to rate during ``warmup_epochs`` (Goyal et al. 2017). With ``ranks`` BatchNorm sees the
    batch in as many equal shares, as on that many devices without synchronised statistics.
    """

    dataset: str = "digits"
    data_dir: str = "data"
    train_images: int = 6_000
    epochs: int = 3
    batch_size: int = 32
    ranks: int = 1
    base_lr: float = 0.05
    reference_batch: int = 32
    lr_scaling: str = "none"
    warmup_epochs: float = 0.0
    momentum: float = 0.0
    model: str = "wide-resnet-tiny"
    width: float = 1.0
    dropout: float = 0.01
    precision: str = "auto"
    seed: int = 0

    def factor(self):
        """Return how many reference batches the batch holds."""
        return self.batch_size / self.reference_batch

    def rate(self):
        """Return the learning rate after warm-up."""
        scalings = {"none": 1.0, "sqrt": math.sqrt(self.factor()), "linear": self.factor()}
        if self.lr_scaling not in scalings:
            raise UserError(f"lr_scaling {self.lr_scaling!r} is unknown; choose one of {', '.join(scalings)}")
        return self.base_lr * scalings[self.lr_scaling]


@dataclass
class Curve:
    """What training gave: a point an epoch, and whether the run diverged.

    Each point has ``epoch``, ``samples`` (images seen), ``seconds`` (training time so far, without
    validation), ``train_loss`` and ``val_accuracy`` (0 to 1). A run has diverged when its loss is not
    finite or ends above that of guessing, ln(classes).
    """

    settings: Settings
    points: list = field(default_factory=list)
    diverged: bool = False

    @property
    def accuracy(self):
        """The last validation accuracy."""
        return self.points[-1]["val_accuracy"]

    def time_to(self, accuracy):
        """Return the training seconds after which ``accuracy`` was reached, or infinity."""
        reached = (point["seconds"] for point in self.points if point["val_accuracy"] >= accuracy)
        return next(reached, math.inf)


class CurveError(Exception):
    """A curve's process failed; the text is its output."""


def train_curves(settings, show=True):
    """Train a curve for each of ``settings`` and return the ``Curve`` of each, in their order.

    ``show`` draws a progress bar over all epochs. An interrupt ends all processes. Raises ``CurveError``
    with the traceback of a process that fails.
    """
    settings = list(settings)
    curves = [Curve(one) for one in settings]
    for one in settings:
        one.rate()
    todo = queue.SimpleQueue()
    for curve in curves:
        todo.put(curve)
    command = system.tethered([sys.executable, "-m", "utils.curves"])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    count = min(physical_cores(), len(curves))
    workers = [system.start(command, threads=1, **pipes) for _ in range(count)]
    bar = tqdm(total=sum(one.epochs for one in settings), unit="epoch", disable=not show, leave=False)
    errors = []
    feeders = [threading.Thread(target=_feed, args=(worker, todo, bar, errors)) for worker in workers]
    try:
        for feeder in feeders:
            feeder.start()
        for feeder in feeders:
            while feeder.is_alive() and not errors:
                feeder.join(timeout=0.1)
    finally:
        system.kill(set().union(*(system.family(worker.pid) for worker in workers)))
        for feeder in feeders:
            feeder.join()
        bar.close()
    if errors:
        raise CurveError(errors[0])
    return curves


def _feed(worker, todo, bar, errors):
    """Give one worker a curve after the other and take in its points."""
    try:
        while not todo.empty():
            curve = todo.get_nowait()
            worker.stdin.write(json.dumps(asdict(curve.settings)) + "\n")
            worker.stdin.flush()
            while not (point := json.loads(worker.stdout.readline())).get("done"):
                curve.points.append(point)
                bar.update()
            curve.diverged = point["diverged"]
    except queue.Empty:
        pass  # the other worker took the last one
    except (ValueError, OSError):
        worker.kill()
        said = worker.stderr.read().strip()
        errors.append(said or f"a curve's process ended with exit code {worker.wait()} and said nothing")
    finally:
        worker.stdin.close()


def train(settings):
    """Train one curve in this process and yield a point an epoch, then ``{"done": True, "diverged": …}``."""
    train_set = load(settings.dataset, settings.data_dir, "train").first(settings.train_images)
    test_set = load(settings.dataset, settings.data_dir, "test")
    torch.manual_seed(settings.seed)
    channels, classes = train_set.images.shape[1], len(train_set.classes)
    model = models.build(settings.model, channels, classes, width=settings.width, dropout=settings.dropout)
    if settings.ranks > 1:
        model = convert_virtual_ranks(model, settings.ranks)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.rate(), momentum=settings.momentum)
    steps = len(train_set) // settings.batch_size
    warmup = settings.warmup_epochs * steps
    shuffling = torch.Generator().manual_seed(settings.seed)
    bfloat16 = use_bfloat16(settings.precision, "cpu")
    seconds, loss_mean = 0.0, math.nan
    for epoch in range(1, settings.epochs + 1):
        model.train()
        start, losses = time.perf_counter(), []
        order = torch.randperm(len(train_set), generator=shuffling)
        for step, chosen in enumerate(order[: steps * settings.batch_size].split(settings.batch_size)):
            if warmup:
                climbed = min(1.0, ((epoch - 1) * steps + step) / warmup)
                cold = settings.rate() / settings.factor()
                optimizer.param_groups[0]["lr"] = cold + (settings.rate() - cold) * climbed
            images, labels = train_set.__getitems__(chosen)
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        seconds += time.perf_counter() - start
        loss_mean = sum(losses) / len(losses)
        yield {
            "epoch": epoch,
            "samples": epoch * steps * settings.batch_size,
            "seconds": seconds,
            "train_loss": loss_mean,
            "val_accuracy": _accuracy(model, test_set, bfloat16),
        }
    yield {"done": True, "diverged": not loss_mean <= math.log(classes)}


@torch.inference_mode()
def _accuracy(model, test_set, bfloat16):
    model.eval()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = torch.cat([model(images) for images in test_set.images.split(500)])
    return (logits.argmax(1) == test_set.labels).float().mean().item()


def main():
    """Train a curve for each line of settings (JSON) that comes in; print its points, a line each."""
    for line in sys.stdin:
        for point in train(Settings(**json.loads(line))):
            print(json.dumps(point), flush=True)


if __name__ == "__main__":
    main()
