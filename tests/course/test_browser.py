"""The notebooks as a learner meets them: in JupyterLab, in a browser, at 1280 pixels."""

import json
import os
import re
from pathlib import Path

import pytest
from browser import Lab, Page, open_browser
from conftest import ROOT, until

from utils.launch.processes import family

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.timeout(400)
PICTURES = Path(os.environ["LOCKSTEP_PICTURES"]) if "LOCKSTEP_PICTURES" in os.environ else None


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    server = Lab(tmp_path_factory.mktemp("lab"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def page(lab):
    playwright, chromium = open_browser()
    yield Page(chromium, lab)
    chromium.close()
    playwright.stop()


def runs_from_top_to_bottom_without_an_error(notebook, _):
    cells = notebook.run_all()
    errors = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert not errors, errors[0]["evalue"]
    assert cells and all(cell["count"] for cell in cells if cell["source"].strip())
    figures = notebook.page.locator(".jp-OutputArea-output img")
    for at in range(figures.count()):
        figure = figures.nth(at)
        figure.scroll_into_view_if_needed()
        box, alt = figure.bounding_box(), figure.get_attribute("alt")
        assert alt and len(alt) > 20, "a figure without a text alternative"
        assert box["width"] > 300 and box["x"] >= 0 and box["x"] + box["width"] <= 1280, alt
        if PICTURES:
            figure.screenshot(path=PICTURES / f"{notebook.name}-figure-{at}.png")
    if PICTURES:
        for at, output in enumerate(notebook.page.locator(".jp-OutputArea").all()):
            if output.is_visible():
                output.screenshot(path=PICTURES / f"{notebook.name}-output-{at}.png")


def keeps_a_prediction_and_shows_it_beside_the_measurement(notebook, lab):
    if not notebook.has_run:
        notebook.run_cells(0, 4)
    area = notebook.output("Your prediction").first
    area.get_by_placeholder("a number").fill("lots")
    area.get_by_role("button", name="Keep my prediction").click()
    area.get_by_text("please give a number").wait_for(timeout=60_000)
    area.get_by_placeholder("a number").fill("12,5")
    area.get_by_role("button", name="Keep my prediction").click()
    area.get_by_text("kept: 12.5 times").wait_for(timeout=60_000)
    kept = json.loads((lab.course / ".lockstep/progress.json").read_text())["predictions"]
    assert 12.5 in kept.values()
    notebook.run_cells(5, 9)
    notebook.output("12.5 times").get_by_text("you predicted").first.wait_for(timeout=60_000)


def keeps_a_choice(notebook, _):
    if not notebook.has_run:
        notebook.run_cells(0, 3)
    area = notebook.output("Your prediction").filter(has=notebook.page.get_by_role("combobox")).first
    area.get_by_role("combobox").select_option("leaves the landscape")
    area.get_by_role("button", name="Keep my prediction").click()
    area.get_by_text("kept: leaves the landscape").wait_for(timeout=60_000)


def moves_a_figure_with_its_slider(notebook, _):
    if not notebook.has_run:
        notebook.run_cells(0, 5)
    figure = notebook.page.locator(".widget-vbox img").first
    figure.wait_for(timeout=60_000)
    first = figure.get_attribute("alt")
    assert "rate 0.90, momentum 0.00 ends at loss" in first
    handle = notebook.page.locator(".widget-slider .noUi-handle").first
    handle.scroll_into_view_if_needed()
    handle.focus()
    handle.press("ArrowRight")
    notebook.page.wait_for_function(
        "(first) => document.querySelector('.widget-vbox img').alt !== first", arg=first, timeout=60_000
    )
    rate, momentum = re.search(r"rate ([\d.]+), momentum ([\d.]+)", figure.get_attribute("alt")).groups()
    assert float(rate) > 0.9 and float(momentum) == 0
    if PICTURES:
        notebook.page.locator(".widget-vbox").last.screenshot(path=PICTURES / "sliders.png")


def training_processes(lab):
    """Return the ranks that train below the server's kernels."""
    return [one for one in family(lab._server.pid) if "runs/long" in " ".join(safe_command(one))]


def safe_command(process):
    try:
        return process.cmdline()
    except Exception:  # it ended meanwhile
        return []


LONG_RUN = """
from utils.notebook import claims
from utils.data import prepare
from utils.launch import launch
from utils.notebook.widgets import watch
claims.start("test")
prepare("digits", "data")
arguments = ("--epochs", 500, "--train-images", 512, "--model", "lenet", "--device", "cpu")
run = launch("solutions/03_ddp.py", *arguments, processes=2, run_dir="runs/long")
panel = watch(run, "a long run")
"""


def start_long_run(notebook):
    """Put a long run into the notebook's first code cell, run it and wait until epochs go by."""
    notebook.write_cell(0, LONG_RUN)
    notebook.run_cells(0, 0)
    notebook.page.get_by_text(re.compile(r"epoch \d+ of 500 · [\d,]+ images/s · about \d+ (s|min) left")).wait_for(
        timeout=60_000
    )


def ends_a_run_on_all_ranks_by_its_stop_button_and_leaves_a_figure(notebook, lab):
    start_long_run(notebook)
    assert len(training_processes(lab)) >= 3  # torchrun and two ranks
    first = notebook.page.locator(".jp-OutputArea-output img").first.get_attribute("alt")
    notebook.page.wait_for_function(
        "(first) => document.querySelector('.jp-OutputArea-output img').alt !== first", arg=first, timeout=60_000
    )
    if PICTURES:
        notebook.page.locator(".jp-OutputArea").first.screenshot(path=PICTURES / "panel-running.png")
    notebook.stop_button().click()
    notebook.page.get_by_text("a long run stopped").wait_for(timeout=60_000)
    until(lambda: not training_processes(lab), 60, "the end of every process")
    assert json.loads((lab.course / "runs/long/summary.json").read_text())["state"] == "stopped"
    figure = notebook.page.locator(".jp-OutputArea-output img").first
    assert re.match(r"Loss and accuracy over [1-9]\d* epochs", figure.get_attribute("alt"))
    notebook.stop_button().wait_for(state="hidden", timeout=60_000)
    if PICTURES:
        notebook.page.locator(".jp-OutputArea").first.screenshot(path=PICTURES / "panel-stopped.png")


def ends_a_wait_and_the_run_on_all_ranks_by_the_toolbars_interrupt(notebook, lab):
    start_long_run(notebook)
    notebook.write_cell(1, "print('it waits')\npanel.wait()")
    notebook.run_cells(1, 1, wait=False)
    notebook.output("it waits").first.wait_for(timeout=60_000)
    assert training_processes(lab)
    notebook.page.evaluate("window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    notebook.output("KeyboardInterrupt").first.wait_for(timeout=60_000)
    until(lambda: not training_processes(lab), 60, "the end of every process")
    notebook.page.get_by_text("a long run stopped").wait_for(timeout=60_000)


# In one kernel, one after the other: a notebook's start is most of what the further ones take.
FURTHER = {
    "00_start": (
        keeps_a_prediction_and_shows_it_beside_the_measurement,
        ends_a_run_on_all_ranks_by_its_stop_button_and_leaves_a_figure,
        ends_a_wait_and_the_run_on_all_ranks_by_the_toolbars_interrupt,
    ),
    "01_one_device": (keeps_a_choice,),
    "07_momentum": (moves_a_figure_with_its_slider,),
}
QUICK = {"00_start", "03_ddp"}  # the others from top to bottom: make test-all


def cases():
    for name in NOTEBOOKS:
        for act in (runs_from_top_to_bottom_without_an_error, *FURTHER.get(name, ())):
            is_slow = act is runs_from_top_to_bottom_without_an_error and name not in QUICK
            marks = (pytest.mark.slow,) if is_slow else ()
            yield pytest.param(name, act, marks=marks, id=f"{name} {act.__name__}")


@pytest.mark.parametrize(("name", "act"), cases())
def test_a_notebook(name, act, page, lab):
    act(page.open(name), lab)
