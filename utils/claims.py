"""Predictions asked, claims checked: how a notebook teaches.

    start("01_one_device")
    guess = predict("How many times more images per second at batch 256 than at batch 1?", unit="times")
    ratio = ...                                            # measured on this machine
    claim("a large batch is faster", ratio > 2, found=f"{ratio:.1f} times", expected="over 2", answers=guess)
    summary()

A claim that fails raises where CI is set; for a learner it shows a red box and the notebook goes on.
``LOCKSTEP_SCALE=quick`` cuts runs to a few steps (``at_scale``) and leaves the claims out, saying so.
"""

import os
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import ipywidgets as widgets
from IPython.display import HTML, display

from utils import progress
from utils.errors import UserError

BOX = "border-left: 4px solid {colour}; padding: 0.3em 0.8em; margin: 0.3em 0"
LEFT = "style='text-align: left'"
GREEN, RED, GREY = "#117733", "#cc3311", "#888888"


@dataclass
class Prediction:
    """A question and what the learner expects: ``value`` is None until it is given."""

    question: str
    unit: str = ""
    value: object = None
    measured: str = ""

    def told(self):
        """Return the prediction as text."""
        return "no prediction" if self.value is None else f"{_plain(self.value)} {self.unit}".strip()


@dataclass
class _Chapter:
    name: str = ""
    predictions: dict = field(default_factory=dict)
    claims: dict = field(default_factory=dict)


_chapter = _Chapter()


class ClaimError(AssertionError):
    """A sentence of the course does not hold on this machine."""


def is_quick():
    """Say whether runs are cut short. Raises ``UserError`` for a scale that is neither full nor quick."""
    scale = os.environ.get("LOCKSTEP_SCALE", "full")
    if scale not in ("full", "quick"):
        raise UserError(f"LOCKSTEP_SCALE={scale} is unknown: choose full or quick")
    return scale == "quick"


def at_scale(full, quick):
    """Return ``full``, or ``quick`` where runs are cut short."""
    return quick if is_quick() else full


def start(chapter):
    """Begin a notebook: go to the course's folder, where scripts, data and runs have their usual paths.

    Forgets earlier predictions and claims of this kernel.
    """
    global _chapter
    _chapter = _Chapter(chapter)
    if Path.cwd().name == "notebooks":
        os.chdir("..")
    if is_quick():
        _show("LOCKSTEP_SCALE=quick: runs are cut to a few steps, and claims are left out.", GREY)


def predict(question, choices=None, unit=""):
    """Ask for a prediction, a number or one of ``choices``, and return a ``Prediction`` at once.

    The learner's answer is kept from then on, also for the next time that the notebook is opened. One
    that is left open, and a kernel without a front end, gives no prediction: the notebook goes on.
    """
    prediction = Prediction(question, unit, _kept(question))
    _chapter.predictions[question] = prediction
    shown = {"layout": widgets.Layout(width="16em"), "description": ""}
    if choices:
        known = prediction.value if prediction.value in choices else ""
        answer = widgets.Dropdown(
            options=[("choose …", ""), *((str(one), one) for one in choices)], value=known, **shown
        )
    else:
        answer = widgets.Text(value=_plain(prediction.value or ""), placeholder="a number", **shown)
    button = widgets.Button(description="Keep my prediction", button_style="primary")
    reply = widgets.HTML(f"kept: {escape(prediction.told())}" if prediction.value is not None else "")

    def keep(_button):
        try:
            prediction.value = answer.value if choices else float(answer.value.replace(",", "."))
        except ValueError:
            reply.value = "please give a number, such as 1.5"
            return
        if prediction.value == "":
            prediction.value = None
            reply.value = "please choose one"
            return
        progress.keep("predictions", f"{_chapter.name}: {question}", prediction.value)
        reply.value = f"kept: {escape(prediction.told())}"

    button.on_click(keep)
    label = widgets.HTML(f"<b>Your prediction:</b> {escape(question)}")
    row = widgets.HBox([answer, widgets.Label(unit), button, reply])
    display(widgets.VBox([label, row]))
    return prediction


def claim(text, condition, *, found, expected="", answers=None):
    """State ``text`` and hold it against a measurement: ``condition`` must be true.

    ``found`` is what was measured and ``expected`` what the claim asks, in words; ``answers`` is the
    ``Prediction`` that the measurement settles. Raises ``ClaimError`` where CI is set and the claim fails.
    """
    if answers is not None:
        answers.measured = str(found)
    if is_quick():
        _show(f"left out at quick scale: {escape(text)} (found: {escape(str(found))})", GREY)
        return
    holds = bool(condition)
    _chapter.claims[text] = holds
    wanted = f" (expected: {escape(str(expected))})" if expected else ""
    guess = f"<br>You predicted: {escape(answers.told())}." if answers is not None and answers.value is not None else ""
    if holds:
        _show(f"<b>✓ {escape(text)}</b><br>Measured here: {escape(str(found))}{wanted}.{guess}", GREEN)
        return
    if os.environ.get("CI"):
        raise ClaimError(f"{text}: expected {expected or 'it to hold'}, found {found}")
    _show(
        f"<b>✗ Not so on this machine: {escape(text)}</b><br>Measured here: {escape(str(found))}{wanted}.{guess} Close"
        " other programs and run the cell again; should it stay so, your machine differs from those tried, and the"
        " sentences around this cell do not hold for it.",
        RED,
    )


def summary():
    """Show the notebook's predictions beside what was measured, and how many claims held."""
    rows = "".join(
        f"<tr><td {LEFT}>{escape(one.question)}</td><td {LEFT}>{escape(one.told())}</td>"
        f"<td {LEFT}>{escape(one.measured or 'not measured')}</td></tr>"
        for one in _chapter.predictions.values()
    )
    heads = "".join(f"<th {LEFT}>{head}</th>" for head in ("question", "you predicted", "measured here"))
    table = f"<table><tr>{heads}</tr>{rows}</table>"
    held, count = sum(_chapter.claims.values()), len(_chapter.claims)
    line = "Claims were left out at quick scale." if is_quick() else f"{held} of {count} claims held on this machine."
    display(HTML((table if rows else "") + f"<p>{line}</p>"))


def _kept(question):
    return progress.read().get("predictions", {}).get(f"{_chapter.name}: {question}")


def _plain(value):
    return f"{value:g}" if isinstance(value, float) else str(value)


def _show(html, colour):
    display(HTML(f"<div style='{BOX.format(colour=colour)}'>{html}</div>"))
