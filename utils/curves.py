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
import tempfile
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from tqdm.auto import tqdm

from utils import runs
from utils.devices import PRECISIONS, physical_cores
from utils.errors import UserError
from utils.launch import processes as system
from utils.novograd import NovoGrad


@dataclass(frozen=True)
class Settings:
    """What one curve is trained with; ``batch_size`` is the effective batch.

    The rate is ``base_lr`` for ``reference_batch`` images; ``lr_scaling`` (none, sqrt or linear)
    multiplies it by the factor batch_size / reference_batch or its root, and warm-up climbs step by step
    from rate / factor to rate during ``warmup_epochs`` (Goyal et al. 2017). ``optimizer`` is sgd, with
    ``momentum``, or novograd, with ``betas``. With ``ranks`` BatchNorm sees the batch in as many equal shares,
    as on that many devices without synchronised statistics.

    ``shrink`` 2 averages squares of 2 x 2 pixels: a quarter of the work. Before each validation BatchNorm's running
    averages give way to the statistics of ``precise_batchnorm`` training images, which costs little and takes away
    most of the noise of test accuracies after few steps (precise BatchNorm, Wu and Johnson 2021); 0 keeps them.
    """

    dataset: str = "digits"
    data_dir: str = "data"
    train_images: int = 6_000
    shrink: int = 2
    epochs: int = 3
    batch_size: int = 32
    ranks: int = 1
    base_lr: float = 0.05
    reference_batch: int = 32
    lr_scaling: str = "none"
    warmup_epochs: float = 0.0
    lr_decay: float = 0.0
    optimizer: str = "sgd"
    momentum: float = 0.0
    betas: tuple = (0.95, 0.98)
    weight_decay: float = 0.0
    model: str = "wide-resnet-tiny"
    width: float = 1.0
    dropout: float = 0.0
    precise_batchnorm: int = 1_024
    precision: str = "auto"
    seed: int = 0

    def __post_init__(self):
        at_least = dict.fromkeys(("batch_size", "reference_batch", "epochs", "shrink"), 1)
        at_least |= dict.fromkeys(("warmup_epochs", "lr_decay", "precise_batchnorm"), 0)
        for name, least in at_least.items():
            if not least <= getattr(self, name) < math.inf:
                raise UserError(f"{name} is {getattr(self, name)}; choose {least} or more")
        if self.precision not in PRECISIONS:
            raise UserError(f"precision {self.precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")

    def factor(self):
        """Return how many reference batches the batch holds."""
        return self.batch_size / self.reference_batch

    def rate(self):
        """Return the learning rate after warm-up."""
        scalings = {"none": 1.0, "sqrt": math.sqrt(self.factor()), "linear": self.factor()}
        if self.lr_scaling not in scalings:
            raise UserError(f"lr_scaling {self.lr_scaling!r} is unknown; choose one of {', '.join(scalings)}")
        return self.base_lr * scalings[self.lr_scaling]

    def rate_at(self, step, steps_per_epoch):
        """Return the learning rate of a step, counted from 0: warm-up, then rate / (1 + lr_decay x step)."""
        warmup_steps = self.warmup_epochs * steps_per_epoch
        climbed = min(1.0, step / warmup_steps) if warmup_steps else 1.0
        cold = self.rate() / max(1.0, self.factor())
        return (cold + (self.rate() - cold) * climbed) / (1 + self.lr_decay * step)

    def build_optimizer(self, parameters):
        """Return the optimizer of ``parameters``."""
        common = {"lr": self.rate(), "weight_decay": self.weight_decay}
        if self.optimizer == "sgd":
            return torch.optim.SGD(parameters, momentum=self.momentum, **common)
        if self.optimizer == "novograd":
            return NovoGrad(parameters, betas=tuple(self.betas), **common)
        raise UserError(f"optimizer {self.optimizer!r} is unknown; choose sgd or novograd")


@dataclass
class Curve:
    """What training gave: a point an epoch, and whether the run diverged.

    Each point has ``epoch``, ``samples`` (images seen), ``seconds`` (training time so far, without
    validation), ``train_loss``, ``val_accuracy`` (0 to 1) and ``class_accuracy``, a list of one for each class.
    A run ends when its loss is not finite; ``has_diverged`` says what else counts as diverged.
    """

    settings: Settings
    points: list = field(default_factory=list)
    diverged: bool = False

    @property
    def accuracy(self):
        """The last validation accuracy."""
        return self.points[-1]["val_accuracy"]

    def time_to(self, accuracy, key="seconds"):
        """Return the training seconds after which ``accuracy`` was reached, or infinity.

        ``key`` names another count: ``epoch`` or ``samples``.
        """
        reached = (point[key] for point in self.points if point["val_accuracy"] >= accuracy)
        return next(reached, math.inf)


def has_diverged(losses, classes=10):
    """Say whether the epochs' mean training losses are those of a run that diverged.

    The last is not finite; or one was above that of guessing, ln(classes), by over 5 %, and the last is still
    over three quarters of it. All named datasets have ten classes.
    """
    came_back = losses[-1] <= 0.75 * math.log(classes)
    return not math.isfinite(losses[-1]) or (max(losses) > 1.05 * math.log(classes) and not came_back)


def read_curve(run_dir):
    """Return the ``Curve`` of a training script's record; its ``settings`` are the mapping of ``config.json``.

    Raises ``UserError`` where no epoch was recorded.
    """
    rows = runs.read_metrics(run_dir)
    if not rows or not (Path(run_dir) / "config.json").exists():
        raise UserError(f"{run_dir} holds no finished epoch: run a training script with --run-dir {run_dir}")
    curve, samples = Curve(runs.read_json(Path(run_dir) / "config.json")), 0.0
    for row in rows:
        samples += row["images_per_s"] * row["epoch_time_s"]
        point = {name: row[name] for name in ("epoch", "train_loss", "val_accuracy")}
        curve.points.append(point | {"samples": round(samples), "seconds": row["time_s"]})
    curve.diverged = has_diverged([row["train_loss"] for row in rows])
    return curve


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
        one.build_optimizer([torch.zeros(1)])  # bad settings are named before any process starts
    todo = queue.SimpleQueue()
    for curve in curves:
        todo.put((curve, _as_line(curve.settings)))
    command = system.tethered([sys.executable, "-m", "utils.train_curve"])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    # What a process complains of goes to a file: a pipe that nobody reads until the end would stop it when full.
    count = min(physical_cores(), len(curves))
    complaints = [tempfile.TemporaryFile("w+") for _ in range(count)]  # noqa: SIM115 (closed below)
    workers = [system.start(command, threads=1, stderr=file, **pipes) for file in complaints]
    bar = tqdm(total=sum(one.epochs for one in settings), unit="epoch", disable=not show, leave=False)
    errors = []
    feeders = [
        threading.Thread(target=_feed, args=(worker, file, todo, bar, errors))
        for worker, file in zip(workers, complaints, strict=True)
    ]
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
        for file in (bar, *complaints):
            file.close()
    if errors:
        raise CurveError(errors[0])
    return curves


def _as_line(settings):
    try:
        return json.dumps(asdict(settings)) + "\n"
    except TypeError as error:
        raise UserError(f"settings are plain numbers and texts: {error}") from error


def _feed(worker, complaints, todo, bar, errors):
    """Give one worker a curve after the other and take in its points; ``complaints`` is the file of its stderr."""
    try:
        while not todo.empty():
            curve, line = todo.get_nowait()
            worker.stdin.write(line)
            worker.stdin.flush()
            while not (point := json.loads(worker.stdout.readline())).get("done"):
                curve.points.append(point)
                bar.update()
            curve.diverged = point["diverged"]
    except queue.Empty:
        pass  # the other worker took the last one
    except Exception as error:
        with suppress(subprocess.TimeoutExpired):
            worker.wait(timeout=1)  # it may be about to end by itself
        worker.kill()
        complaints.seek(0)
        said = complaints.read().strip()
        errors.append(said or f"a curve's process ended with exit code {worker.wait()} ({error!r})")
    finally:
        with suppress(OSError):
            worker.stdin.close()
