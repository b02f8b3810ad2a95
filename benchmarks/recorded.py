"""Record the figures that chapters 05 to 09 show beside their own, and the run of the assignment's solution.

    python -m benchmarks.recorded 06_learning_rate      # some; without names all, about an hour on two cores

Writes picture, numbers and how they came about to notebooks/recorded. Chapters 05 to 09 need prepared Fashion-MNIST:
``python -m utils.data fashion-mnist``.
"""

import sys
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import partial
from itertools import product

import torch

from assessment import assignment
from benchmarks.machine import processor
from utils import curves
from utils.devices import device_for, physical_cores
from utils.errors import UserError, one_line_errors
from utils.launch import launch
from utils.notebook import plots, recorded
from utils.runs import folder_for, read_json

SEEDS = (0, 1, 2)
REFERENCE = 32  # images that the assignment's base rate is meant for


@dataclass
class Study:
    """Curves to record: ``fixed`` settings with each of ``vary`` (mappings of settings), for each seed."""

    title: str
    vary: list
    fixed: dict
    label: str
    target: float | None = None
    settings: list = field(init=False)

    def __post_init__(self):
        self.settings = [
            curves.Settings(dataset="fashion-mnist", seed=seed, **self.fixed, **ways)
            for ways, seed in product(self.vary, SEEDS)
        ]


# The settings of the chapters, on other images: 14 x 14 pixels, judged with statistics of 1,024 training images.
STUDIES = {
    "05_batch_size": Study(
        "batch sizes at an unchanged rate, Fashion-MNIST, 12,000 images, three epochs, seeds 0 to 2",
        [{"batch_size": batch} for batch in (32, 256, 1024)],
        {"train_images": 12_000},
        "batch {batch_size}",
    ),
    "06_learning_rate": Study(
        "three scaling rules at 16 and 32 times the batch, Fashion-MNIST, 12,000 images, three epochs, seeds 0 to 2",
        [{"batch_size": batch, "lr_scaling": rule} for batch, rule in product((512, 1024), ("none", "sqrt", "linear"))],
        {"base_lr": 0.01, "train_images": 12_000},
        "{batch_size} {lr_scaling}",
    ),
    "07_momentum": Study(
        "momentum, a larger rate, and decay at batch 256, Fashion-MNIST, 6,000 images, three epochs, seeds 0 to 2",
        [
            {"base_lr": rate, "momentum": momentum, "lr_decay": decay}
            for rate, momentum, decay in ((0.01, 0, 0), (0.01, 0.9, 0), (0.1, 0, 0), (0.2, 0.9, 0), (0.2, 0.9, 0.05))
        ],
        {"batch_size": 256, "train_images": 6_000},
        "{base_lr}, momentum {momentum}, decay {lr_decay}",
        target=0.7,
    ),
    "08_warmup": Study(
        "cold start and warm-up at batch 512 and rate 0.65, Fashion-MNIST, 24,000 images, three epochs, seeds 0 to 2",
        [{"warmup_epochs": epochs} for epochs in (0, 1.5)],
        {"batch_size": 512, "base_lr": 0.65 / 16, "lr_scaling": "linear", "momentum": 0.9, "train_images": 24_000},
        "warm-up {warmup_epochs} epochs",
    ),
    "09_novograd": Study(
        "SGD and NovoGrad at batch 2,048, LeNet, Fashion-MNIST, 12,000 images, eight epochs, seeds 0 to 2",
        [
            {"optimizer": name, "base_lr": rate / 64}
            for name, rates in {"sgd": (0.025, 0.05, 0.1), "novograd": (0.01, 0.02, 0.05)}.items()
            for rate in rates
        ],
        {
            "model": "lenet",
            "batch_size": 2048,
            "lr_scaling": "linear",
            "warmup_epochs": 1,
            "momentum": 0.9,
            "train_images": 12_000,
            "epochs": 8,
        },
        "{optimizer}, rate {rate:.3g}",
    ),
}
RESNETS = {"one process, batch 256, rate 0.1": (1, 256, 0.1), "two processes, 2 × 256, rate 0.2": (2, 256, 0.2)}


def cores_of(count):
    """Return the name of this machine's processor, and how many of its cores were used."""
    return f"{processor()}, {count} cores used"


def draw(study, trained):
    """Return the picture of a study's curves."""
    return plots.curves_figure(trained, partial(named, study), target=study.target)


def named(study, curve):
    return study.label.format(rate=curve.settings.rate(), **asdict(curve.settings))


def record_study(name, command):
    """Train all curves of a study and keep them."""
    study = STUDIES[name]
    trained = curves.train_curves(study.settings)
    rows = []
    for curve in trained:
        for point in curve.points:
            numbers = {key: value for key, value in point.items() if key != "class_accuracy"}
            rows.append({"run": named(study, curve), **asdict(curve.settings), **numbers, "diverged": curve.diverged})
    device = cores_of(min(physical_cores(), len(trained)))
    recorded.keep(name, draw(study, trained), rows, title=study.title, device=device, **about(command))


def record_resnets(name, command):
    """Train ResNet-18 of full width on one process and on two, with twice the batch and rate."""
    images, epochs, device = 12_288, 3, device_for(2)
    same = ("--model", "resnet18", "--dataset", "fashion-mnist", "--train-images", images, "--epochs", epochs)
    trained, rows = {}, []
    for label, (processes, batch, rate) in RESNETS.items():
        arguments = (*same, "--batch-size", batch, "--base-lr", rate, "--profile-steps", 2, "--device", device)
        folder = folder_for(f"recorded-resnet18-{processes}", *arguments)
        launch("solutions/05_batch_size.py", *arguments, processes=processes, threads=1, run_dir=folder).result()
        trained[label] = curves.read_curve(folder)
        cost = read_json(folder / "summary.json")["device_seconds"]
        rows += [{"run": label, **point, "device_seconds": round(cost, 1)} for point in trained[label].points]
    names = {id(curve): label for label, curve in trained.items()}
    drawn = list(trained.values())
    told = [f"{label}: {one.points[-1]['seconds']:.0f} s." for label, one in trained.items()]
    alt = " ".join(["ResNet-18.", plots.ends(drawn, lambda curve: names[id(curve)]), *told])
    picture = plots.curves_figure(drawn, lambda curve: names[id(curve)], alt=alt)
    title = f"ResNet-18 of full width, Fashion-MNIST, {images:,} images, {epochs} epochs, seed 0"
    used = torch.cuda.get_device_name() if device == "cuda" else cores_of(2)
    recorded.keep(name, picture, rows, title=title, device=used, **about(command))


def record_assessment(name, command):
    """Train the assignment's solution as it stands, and at the starter's rate with none of the methods."""
    task, drawn, rows = assignment(), [], []
    device = device_for(task.processes)
    factor = task.processes * task.batch_size / REFERENCE
    plain = ("--base-lr", 0.05 / factor, "--momentum", 0, "--warmup-epochs", 0)
    ways = {"the solution": (), "unchanged rate, no momentum, no warm-up": plain}
    for (label, more), seed in product(ways.items(), SEEDS):
        arguments = (*more, "--device", device, "--seed", seed)
        folder = folder_for("recorded-assessment", *arguments)
        launch("solutions/assessment.py", *arguments, processes=task.processes, threads=1, run_dir=folder).result()
        drawn.append((label, curves.read_curve(folder)))
        rows += [{"run": label, "seed": seed, **point} for point in drawn[-1][1].points]
    names = {id(curve): label for label, curve in drawn}
    trained = [curve for _, curve in drawn]
    picture = plots.curves_figure(trained, lambda curve: names[id(curve)], target=task.target)
    title = (
        f"solutions/assessment.py on {task.dataset}, {task.processes} x {task.batch_size} images a step, seeds 0 to 2"
    )
    used = torch.cuda.get_device_name() if device == "cuda" else cores_of(task.processes)
    recorded.keep(name, picture, rows, title=title, device=used, **about(command))


def about(command):
    return {"command": command, "date": str(date.today()), "torch": torch.__version__}


def main():
    makers = dict.fromkeys(STUDIES, record_study) | {"05_resnet18": record_resnets, "14_assessment": record_assessment}
    asked = sys.argv[1:] or list(makers)
    unknown = sorted(set(asked) - makers.keys())
    if unknown:
        raise UserError(f"no recording is named {', '.join(unknown)}; there are {', '.join(makers)}")
    for name in asked:
        makers[name](name, f"python -m benchmarks.recorded {name}")
        print(f"{name}: notebooks/recorded/{name}.png, .csv and .json", flush=True)


if __name__ == "__main__":
    with one_line_errors():
        main()
