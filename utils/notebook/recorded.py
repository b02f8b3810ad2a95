"""Figures that were recorded elsewhere, because they need a GPU or more time than a notebook has.

    show("06_learning_rate")        # the picture, marked as recorded, with the command and the device

A recording is three files of one name in ``notebooks/recorded``: the picture, the numbers behind it as CSV,
and a JSON file that says how they came about. ``python -m benchmarks.recorded`` makes them.
"""

import base64
import csv
import json
from dataclasses import dataclass
from html import escape
from pathlib import Path

from utils.errors import UserError
from utils.files import written_whole

FOLDER = Path(__file__).resolve().parents[2] / "notebooks/recorded"
BOX = "border: 1px dashed #888888; padding: 0.5em 0.8em; margin: 0.3em 0"


@dataclass
class Recording:
    """What was recorded: the picture (PNG), its text alternative, and how it came about."""

    png: bytes
    alt: str
    title: str
    command: str
    device: str
    date: str
    torch: str

    def _repr_mimebundle_(self, include=None, exclude=None):
        told = f"Recorded on {self.date}, not measured here: {self.title}"
        how = f"{self.device}, torch {self.torch}: {self.command}"
        source = base64.b64encode(self.png).decode()
        image = f'<img alt="Recorded: {escape(self.alt)}" style="max-width: 100%" src="data:image/png;base64,{source}">'
        html = f"<div style='{BOX}'><b>{escape(told)}</b><br><small>{escape(how)}</small><br>{image}</div>"
        return {"text/html": html, "text/plain": f"{told} ({how}). {self.alt}"}


def show(name, folder=FOLDER):
    """Return the recording ``name``, to be shown in a notebook. Raises ``UserError`` where there is none."""
    try:
        told = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        return Recording((folder / f"{name}.png").read_bytes(), **told)
    except FileNotFoundError as error:
        raise UserError(
            f"{name} has no recording ({error.filename} is missing): see utils/notebook/recorded.py"
        ) from error


def read(name, folder=FOLDER):
    """Return the numbers of a recording: a mapping for each line of its CSV, all values texts."""
    with open(folder / f"{name}.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def keep(name, picture, rows, *, folder=FOLDER, **told):
    """Write a recording: a ``Picture``, its ``rows`` (mappings of the same keys), and ``Recording``'s other fields."""
    Recording(picture.png, picture.alt, **told)  # all that ``show`` will ask for is there
    folder.mkdir(parents=True, exist_ok=True)
    with written_whole(folder / f"{name}.csv") as part, open(part, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    with written_whole(folder / f"{name}.png") as part:
        part.write_bytes(picture.png)
    with written_whole(folder / f"{name}.json") as part:
        part.write_text(json.dumps(told | {"alt": picture.alt}, indent=2) + "\n", encoding="utf-8")
