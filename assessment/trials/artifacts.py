"""What a run leaves in its folder, read once, when a law first asks: its record as text, its weights as sketches.

artifacts = Artifacts(run_dir, data)
artifacts.metrics[-1]["val_accuracy"]   # text, as it was written
artifacts.predictions                   # of the saved network, for each test image
"""

import csv
import json
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path

import torch

from assessment.trials.data import TrialData
from assessment.trials.saved import examined

MOST_BYTES = 1_000_000  # of a text that is read
TEXTS = (".csv", ".json", ".jsonl", ".txt", ".log")


@dataclass(frozen=True)
class Weights:
    """What ``model.pt`` holds: every tensor's name, and the sketches of those of floating-point numbers."""

    names: tuple
    sketches: dict


@dataclass
class Artifacts:
    """The files in ``folder`` of a run on ``data``, one that was never made included.

    ``told`` is what ``saved.examined`` said of ``model.pt`` elsewhere, in a function; without it the file is read here.
    ``kept`` is where that folder is by now, if it was moved.
    """

    folder: Path
    data: TrialData
    told: object = None
    kept: Path | None = None

    @property
    def place(self):
        """Return the folder in which the files are."""
        return self.kept or self.folder

    @cached_property
    def texts(self):
        """Return the end of every file of text, by name."""
        found = {}
        for path in sorted(self.place.glob("*")):
            if path.suffix in TEXTS and path.is_file():
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - MOST_BYTES))
                    found[path.name] = file.read(MOST_BYTES).decode(errors="replace")
        return found

    def keep(self):
        """Read everything now, where the folder will soon be gone."""
        return self.texts, self.weights, self.predictions

    @property
    def metrics(self):
        """Return the rows of ``metrics.csv`` as dictionaries of text, [] where there is none."""
        text = self.texts.get("metrics.csv", "")
        try:
            return list(csv.DictReader(StringIO(text, newline=""))) if len(text) < MOST_BYTES else []
        except csv.Error:
            return []

    @property
    def summary(self):
        """Return ``summary.json``, {} where there is none."""
        return json.loads(self.texts.get("summary.json", "{}"))

    @cached_property
    def saved(self):
        """Return what ``model.pt`` holds, see ``saved.examined``."""
        return self.told() if self.told else examined(self.place / "model.pt", self.data.test)

    @cached_property
    def weights(self):
        """Return the ``Weights`` in ``model.pt``, None where there is no such file, or what is wrong with it."""
        saved = self.saved
        return saved and (saved["problem"] or Weights(tuple(saved["names"]), saved["sketches"]))

    @cached_property
    def predictions(self):
        """Return the class that the saved network sees in each test image, None where it is none of the course."""
        found = self.saved and self.saved["predictions"]
        return torch.tensor(found) if found else None
