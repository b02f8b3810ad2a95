"""A class to be graded in a minute: small data, a short assignment, and the command that grades it."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import torch
from conftest import ROOT
from PIL import Image
from torch.nn import functional as F

QUICK = {
    "model": "wide-resnet-tiny",
    "processes": 2,
    "batch_size": 32,
    "pace": 1,
    "patience": 1,
    "taught_epochs": 3,
    "taught_batch_size": 16,
    "taught_accuracy": 0.3,
    "hidden_images": 0,
    "source_kb": 64,
    "limits": {
        "wall_s": 300,
        "cpu_s": 60,
        "memory_mb": 6000,
        "processes": 150,
        "disk_mb": 300,
        "file_mb": 100,
        "output_mb": 2,
    },
}
TARGET = {"target": 0.5, "distinction": 0.7, "tolerance": 0.2, "epochs": 3, "minutes": 2}


def small_dataset(folder):
    """Write images that any network learns in two dozen steps, as files, and return the dataset's name."""
    generator = torch.Generator().manual_seed(4)
    patterns = F.interpolate(torch.rand(10, 3, 4, 4, generator=generator), size=(32, 32), mode="bicubic").clamp(0, 1)
    for split, count in (("train", 80), ("test", 20)):
        for label, pattern in enumerate(patterns):
            place = folder / split / str(label)
            place.mkdir(parents=True)
            for at in range(count):
                pixels = pattern * (0.5 + 0.5 * torch.rand(1, generator=generator))
                pixels = (pixels + 0.1 * torch.randn(3, 32, 32, generator=generator)).clamp(0, 1)
                Image.fromarray((pixels * 255).byte().permute(1, 2, 0).numpy()).save(place / f"{at:02}.png")
    return f"folder:{folder}"


def command(folder, out, config, data, *more):
    line = [sys.executable, "-m", "assessment.grade", folder, "--out", out, "--config", config, "--data-dir", data]
    return [*map(str, line), *more]


def grade(*asked, timeout=900):
    return subprocess.run(command(*asked), cwd=ROOT, capture_output=True, text=True, timeout=timeout)


def gradebook(out):
    with open(out / "gradebook.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def rooms():
    """Return the folders in which graders work."""
    return set(Path("/tmp").glob("lockstep-grade-*"))


def small_config(folder):
    """Write the assignment and its images into ``folder`` and return the assignment's path."""
    name = small_dataset(folder / "images")
    (folder / "config.json").write_text(json.dumps(QUICK | {"dataset": name, "datasets": {name: TARGET}}))
    return folder / "config.json"
