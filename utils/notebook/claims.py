"""Predictions asked, claims checked: how a notebook teaches.

    start("01_one_device")
    guess = predict("How many times more images per second at batch 256 than at batch 1?", unit="times")
    ratio = ...                                            # measured on this machine
    claim("a large batch is faster", ratio, at_least=2, unit="times", answers=guess)
    summary()

A claim is a measured number against a bound. One that fails raises where CI is set; for a learner it shows a red
box and the notebook goes on. ``LOCKSTEP_SCALE=quick`` cuts runs to a few steps (``at_scale``) and leaves the claims
out, saying so. ``LOCKSTEP_SEED`` moves all seeds of a notebook (``seeds``), and ``LOCKSTEP_CLAIMS`` names a file that
gets a line for each claim: so the same measurements can be made again and again, and their spread be known.
"""

import json
import math
import os
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import ipywidgets as widgets
from IPython.display import HTML, display

from utils.errors import UserError
from utils.files import cannot_write
from utils.launch import processes
from utils.notebook import progress

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

    While the first page is read, what its scripts will import is made ready (``processes.warm_up``). Forgets earlier
    predictions and claims of this kernel.
    """
    global _chapter
    _chapter = _Chapter(chapter)
    if Path.cwd().name == "notebooks":
        os.chdir("..")
    processes.warm_up()
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


def claim(text, measured, *, at_least=None, at_most=None, unit="", told=None, answers=None):
    """State ``text`` and hold the number ``measured`` against its bounds.

    It holds from ``at_least`` up to ``at_most``, both included; one of the two may be left out. ``told`` says what was
    measured in words, where a number with its ``unit`` is not enough; ``answers`` is the ``Prediction`` that the
    measurement settles. Raises ``ClaimError`` where CI is set and the claim fails.
    """
    measured = float(measured)
    bounds = [bound for bound in (at_least, at_most) if bound is not None]
    if not bounds or not all(map(math.isfinite, bounds)) or bounds != sorted(bounds):
        raise UserError(f"claim {text!r} needs at_least, at_most or both, as numbers in this order")
    found = told or _number(measured, unit)
    if answers is not None:
        answers.measured = found
    if is_quick():
        _show(f"left out at quick scale: {escape(text)} (found: {escape(found)})", GREY)
        return
    holds = (at_least is None or measured >= at_least) and (at_most is None or measured <= at_most)
    _chapter.claims[text] = holds
    _keep_line(text, measured, at_least, at_most)
    words = {"at least": at_least, "at most": at_most}
    wanted = " and ".join(f"{word} {bound:g}" for word, bound in words.items() if bound is not None)
    wanted = f"{wanted} {unit}".strip()
    guess = f"<br>You predicted: {escape(answers.told())}." if answers is not None and answers.value is not None else ""
    shown = f"Measured here: {escape(found)} (claimed: {escape(wanted)}).{guess}"
    if holds:
        _show(f"<b>✓ {escape(text)}</b><br>{shown}", GREEN)
        return
    if os.environ.get("CI"):
        raise ClaimError(f"{text}: claimed {wanted}, found {found}")
    _show(
        f"<b>✗ Not so on this machine: {escape(text)}</b><br>{shown} Close other programs and run the cell again;"
        " should it stay so, your machine differs from those tried, and the sentences around this cell do not hold"
        " for it.",
        RED,
    )


def seeds(count):
    """Return the seeds of ``count`` runs: 0, 1, 2 …, or as many from ``LOCKSTEP_SEED`` on.

    At quick scale there is only the first. Raises ``UserError`` where ``LOCKSTEP_SEED`` is no whole number.
    """
    text = os.environ.get("LOCKSTEP_SEED") or "0"
    if not text.isdecimal():
        raise UserError(f"LOCKSTEP_SEED={text} is no seed: choose a whole number from 0 on")
    return tuple(range(int(text), int(text) + at_scale(count, 1)))


def _keep_line(text, measured, at_least, at_most):
    """Add the claim to the file that ``LOCKSTEP_CLAIMS`` names, if it names one."""
    path = os.environ.get("LOCKSTEP_CLAIMS")
    if not path:
        return
    line = {"chapter": _chapter.name, "claim": text, "value": measured, "at_least": at_least, "at_most": at_most}
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise UserError(cannot_write(path, error)) from error


def _number(value, unit=""):
    """Return a measured number as text, with three digits that count."""
    text = f"{value:,.0f}" if 1000 <= abs(value) < math.inf else f"{value:.3g}"
    return f"{text} {unit}".strip()


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
