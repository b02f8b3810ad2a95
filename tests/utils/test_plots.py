"""Figures say in words what they show, and show something."""

import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from utils.curves import Curve, Settings, read_curve
from utils.notebook import diagrams, plots
from utils.runs import COLUMNS, write_json

ROW = {"train_loss": 1.0, "val_loss": 1.2, "train_accuracy": 0.6, "val_accuracy": 0.5}


def curve(batch, diverged=False):
    points = [{"seconds": n, "samples": 100 * n, "val_accuracy": 0.1 * n} for n in (1, 2)]
    return Curve(Settings(batch_size=batch), points, diverged)


LABELS = {"xlabel": "batch (images)", "title": "a title", "alt": "what the figure shows"}
FIGURES = {
    "training": lambda: plots.training_figure([{"epoch": n, **ROW} for n in (1, 2, 3)], "a run"),
    "training, nothing yet": lambda: plots.training_figure([]),
    "lines": lambda: plots.lines({"a": ([1, 2, 4], [3, 2, 1]), "b": ([1, 4], [1, 1])}, ylabel="s", log="xy", **LABELS),
    "surface": lambda: diagrams.loss_surface(
        lambda x, y: x**2 + 5 * y**2,
        {"path": np.array([[1.0, 1.0], [0.5, 0.2]])},
        span=(-2, 2, -2, 2),
        ylabel="y",
        **LABELS,
    ),
    "shares": lambda: plots.shares({"one": {"compute": 3}, "two": {"compute": 3, "waiting": 1}}, **LABELS),
    "curves": lambda: plots.curves_figure(
        [curve(32), curve(512, True)], lambda one: f"batch {one.settings.batch_size}", target=0.7, alt="two curves"
    ),
    "chunks": lambda: diagrams.chunk_tables([[["01", "01"], ["10", "10"]]] * 2, ["start", "step"], alt="two ranks"),
    "timelines": lambda: diagrams.timelines(
        {"a": [[("forward", 0, 1), ("backward", 1, 2), ("all-reduce", 2, 2)]], "b": [[("forward", 0, 3)]]}, alt="a step"
    ),
    "bars": lambda: plots.bars(
        {"a": [0.5, 1.0], "b": [0.2, 0.3]}, ["0", "1"], ylabel="accuracy", title="t", alt="two groups of bars"
    ),
    "bars with spread": lambda: plots.bars(
        {str(n): [0.5] for n in range(9)},
        ["0"],
        ylabel="accuracy",
        title="t",
        alt="nine bars",
        spread={str(n): ([0.4], [0.6]) for n in range(9)},
    ),
    "words": diagrams.words_of_the_field,
    "pictures": lambda: diagrams.pictures(torch.full((3, 1, 8, 8), 200, dtype=torch.uint8), [0, 1, 1], ["cat", "dog"]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_and_has_a_text_alternative(name):
    picture = FIGURES[name]()
    shown = picture._repr_mimebundle_()
    assert re.search(r'<img alt="[^"]{5,}"', shown["text/html"]) and shown["text/plain"] == picture.alt
    pixels = np.asarray(Image.open(io.BytesIO(picture.png)).convert("L"))
    assert (pixels < 250).mean() > 0.01, "the figure is blank"


def test_pictures_show_the_images():
    """Three grey squares of 200 out of 255 take a good part of their figure."""
    pixels = np.asarray(Image.open(io.BytesIO(FIGURES["pictures"]().png)).convert("L"))
    assert (pixels == 200).mean() > 0.1


def test_an_overlay_names_runs_by_what_differs(tmp_path):
    for batch, accuracies in ((32, (0.4, 0.8)), (512, (0.1, 0.2))):
        folder = tmp_path / f"run{batch}"
        folder.mkdir()
        write_json(folder / "config.json", {"batch_size": batch, "base_lr": 0.1, "seed": 0})
        numbers = [",".join(["1"] * 8 + [str(accuracy)]) for accuracy in accuracies]
        (folder / "metrics.csv").write_text("\n".join([",".join(COLUMNS), *numbers]) + "\n")
    picture = plots.overlay([read_curve(tmp_path / name) for name in ("run32", "run512")])
    assert picture.alt == "2 runs. Accuracy at the end: batch size 32: 0.80; batch size 512: 0.20."


def test_lines_differ_by_more_than_colour():
    looks = [plots.style(number) for number in range(3 * len(plots.COLOURS))]
    assert len({(str(look["linestyle"]), look["marker"]) for look in looks}) == len(looks)
