"""What a run leaves in its folder, read once, when a law first asks: its record as text, its weights as sketches.

artifacts = Artifacts(run_dir, data)
artifacts.metrics[-1]["val_accuracy"]   # text, as it was written
artifacts.predictions                   # of the saved network, for each test image
"""

import csv
import json
import zipfile
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path

import torch

from assessment.recorder.sketch import sketch
from assessment.trials.data import TrialData
from utils import models

LARGEST = 200_000_000  # numbers in a tensor
MOST_BYTES = 1_000_000  # of a text that is read
TEXTS = (".csv", ".json", ".jsonl", ".txt", ".log")


@dataclass(frozen=True)
class Weights:
    """What ``model.pt`` holds: every tensor's name, and the sketches of those of floating-point numbers."""

    names: tuple
    sketches: dict


@dataclass
class Artifacts:
    """The files in ``folder`` of a run on ``data``, one that was never made included."""

    folder: Path
    data: TrialData

    @cached_property
    def texts(self):
        """Return the end of every file of text, by name."""
        found = {}
        for path in sorted(self.folder.glob("*")):
            if path.suffix in TEXTS and path.is_file():
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - MOST_BYTES))
                    found[path.name] = file.read(MOST_BYTES).decode(errors="replace")
        return found

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
    def weights(self):
        """Return the ``Weights`` in ``model.pt``, None where there is no such file, or what is wrong with it."""
        state = load_weights(self.folder / "model.pt")
        if not isinstance(state, dict):
            return state
        floats = {name: value for name, value in state.items() if torch.is_floating_point(value)}
        return Weights(tuple(state), {name: sketch(value) for name, value in floats.items()})

    @cached_property
    def predictions(self):
        """Return the class that the saved network sees in each test image, None where it is none of the course."""
        state = load_weights(self.folder / "model.pt")
        network = rebuilt(state, self.data) if isinstance(state, dict) else None
        return None if network is None else predictions(network, self.data.test.images)


def load_weights(path):
    """Return the state dictionary in ``path``, None where there is no such file, or in words why it is none."""
    if not path.exists():
        return None
    if zipfile.is_zipfile(path) and any(one.compress_type for one in zipfile.ZipFile(path).infolist()):
        return "model.pt is compressed; torch.save does not do that"
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as problem:
        reason = str(problem).splitlines()[0][:120]
        return f"model.pt cannot be loaded with weights_only=True: {reason}"
    if isinstance(state, dict) and any(torch.is_tensor(one) and one.numel() > LARGEST for one in state.values()):
        return f"model.pt holds a tensor of more than {LARGEST:,} numbers"
    if not isinstance(state, dict) or not all(torch.is_tensor(one) for one in state.values()):
        held = list(state)[:3] if isinstance(state, dict) else type(state).__name__
        return f"model.pt holds {held}, not the state_dict of a network"
    return state


def rebuilt(state, data):
    """Return the network of the course that ``state`` fits, in evaluation mode; None where none does."""
    channels, classes = data.train.images.shape[1], len(data.train.classes)
    for name in models.MODELS:
        network = models.build(name, channels, classes, width=1.0, dropout=0.0)
        fits = network.state_dict().keys() == state.keys()
        if fits and all(one.shape == state[key].shape for key, one in network.state_dict().items()):
            network.load_state_dict(state)
            return network.eval()
    return None


@torch.inference_mode()
def predictions(network, images):
    """Return the class that ``network`` finds likeliest for each of ``images``: int64 [N]."""
    return torch.cat([network(part).argmax(dim=1) for part in images.split(500)])
