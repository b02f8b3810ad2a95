"""Live parts of notebooks: a training run as it goes, with a button that stops it, and figures with sliders."""

import threading
import time
from html import escape

import ipywidgets as widgets
from IPython.display import display

from utils import runs
from utils.notebook.plots import training_figure

REFRESH_S = 0.25
LINE = "<span style='white-space: nowrap'>{}</span>"
COLOURS = {"running": "info", "finished": "success", "stopped": "warning", "failed": "danger"}


class RunPanel:
    """Show a ``Run`` while it trains: state, epochs, images/s, time left, growing curves, and Stop.

    It refreshes itself from a thread, so the cell that shows it returns at once and Stop works. When the
    run ends, an ordinary figure of its curves stays in the output.
    """

    def __init__(self, run, title=""):
        self.run, self.title = run, title
        self._epochs = None
        self._state = widgets.HTML()
        self._bar = widgets.IntProgress(min=0, max=1, layout=widgets.Layout(width="14em"))
        self._numbers = widgets.HTML()
        self._stop = widgets.Button(description="Stop", icon="stop", button_style="danger", tooltip="stop on all ranks")
        self._stop.layout.width = "auto"
        self._stop.on_click(lambda _button: self.stop())
        self._rows, self._started = [], time.monotonic()
        rows = widgets.Layout(flex_flow="row wrap", align_items="center", grid_gap="0.6em")
        display(widgets.HBox([self._state, self._bar, self._numbers, self._stop], layout=rows))
        self._picture = display(training_figure([], title), display_id=True)
        self._refresh()
        self._thread = threading.Thread(target=self._follow, name="lockstep-panel", daemon=True)
        self._thread.start()

    def stop(self):
        """Stop the run on all ranks; the panel shows its end."""
        self._stop.disabled = True
        self._stop.description = "Stopping"
        threading.Thread(target=self.run.stop, daemon=True).start()

    def wait(self):
        """Wait until the run has ended and the panel shows it; return the run's ``result()``.

        An interrupt stops the run on all ranks, as Stop does, before it passes on.
        """
        try:
            self.run.wait()
        finally:
            self._thread.join(timeout=5)
        return self.run.result()

    def _follow(self):
        while self.run.state == "running":
            time.sleep(REFRESH_S)
            self._refresh()
        self._refresh()
        self._stop.layout.display = "none"

    def _refresh(self):
        state, rows = self.run.state, self.run.metrics()
        self._bar.max, self._bar.value = self._epoch_count(), len(rows)
        self._bar.bar_style = COLOURS[state]
        self._state.value = LINE.format(f"<b>{self.title} {state}</b>")
        self._numbers.value = LINE.format(escape(self._told(state, rows)))
        if len(rows) != len(self._rows) and self._picture is not None:
            self._rows = rows
            self._picture.update(training_figure(rows, self.title))

    def _epoch_count(self):
        """Return how many epochs the run was started for, once its record says so."""
        if self._epochs is None:
            path = self.run.run_dir / "config.json"
            self._epochs = runs.read_json(path).get("epochs") if path.exists() else None
        return self._epochs or 1

    def _told(self, state, rows):
        if state == "failed":
            return self.run.failure().splitlines()[0].rstrip(":")
        if not rows:
            return "starting" if state == "running" else "no epoch finished"
        told = f"epoch {len(rows)} of {self._epoch_count()} · {rows[-1]['images_per_s']:,.0f} images/s"
        if state != "running":
            return f"{told} · val accuracy {rows[-1]['val_accuracy']:.3f}"
        each = (time.monotonic() - self._started) / len(rows)
        left = each * (self._epoch_count() - len(rows))
        return f"{told} · about {f'{left:.0f} s' if left < 100 else f'{left / 60:.0f} min'} left"


def watch(run, title=""):
    """Show a live panel for ``run`` and return it. Raises ``ValueError`` for a run without a ``run_dir``."""
    if run.run_dir is None:
        raise ValueError("a panel needs the run's record: launch it with run_dir=…")
    return RunPanel(run, title)


def explore(draw, **sliders):
    """Show a figure under sliders: ``draw(**values)`` returns a ``Picture`` and is called anew when one moves.

    ``sliders`` maps each name to (lowest, highest, start). Returns the widget.
    """
    style = {"description_width": "8em"}
    controls = {
        name: widgets.FloatSlider(
            value=start, min=low, max=high, step=(high - low) / 50, description=name.replace("_", " "), style=style
        )
        for name, (low, high, start) in sliders.items()
    }
    picture = widgets.HTML()

    def redraw(_change=None):
        drawn = draw(**{name: control.value for name, control in controls.items()})
        picture.value = drawn._repr_mimebundle_()["text/html"]

    for control in controls.values():
        control.continuous_update = False  # a drag draws once, where it ends
        control.readout_format = ".3g"
        control.observe(redraw, "value")
    redraw()
    return widgets.VBox([*controls.values(), picture])
