"""The notebooks as a learner meets them: in JupyterLab, in a browser, at 1280 pixels."""

import json
import os
import re
from pathlib import Path

import pytest
from browser import Lab, NotebookPage, open_browser
from conftest import ROOT

from utils.processes import family

NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
PICTURES = Path(os.environ["LOCKSTEP_PICTURES"]) if "LOCKSTEP_PICTURES" in os.environ else None


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    server = Lab(tmp_path_factory.mktemp("lab"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def browser():
    playwright, chromium = open_browser()
    yield chromium
    chromium.close()
    playwright.stop()


@pytest.fixture
def open_notebook(lab, browser):
    opened = []

    def open_one(name):
        opened.append(NotebookPage(browser, lab, name))
        return opened[-1]

    yield open_one
    for notebook in opened:
        notebook.close()


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs_from_top_to_bottom_without_an_error(name, open_notebook, tmp_path):
    notebook = open_notebook(name)
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
            figure.screenshot(path=PICTURES / f"{name}-figure-{at}.png")
    if PICTURES:
        for at, output in enumerate(notebook.page.locator(".jp-OutputArea").all()):
            if output.is_visible():
                output.screenshot(path=PICTURES / f"{name}-output-{at}.png")


def test_a_prediction_is_kept_and_shown_beside_the_measurement(open_notebook, lab):
    notebook = open_notebook("00_start")
    notebook.run_cells(0, 4)
    area = notebook.output("Your prediction")
    area.get_by_placeholder("a number").fill("lots")
    area.get_by_role("button", name="Keep my prediction").click()
    area.get_by_text("please give a number").wait_for(timeout=10_000)
    area.get_by_placeholder("a number").fill("12,5")
    area.get_by_role("button", name="Keep my prediction").click()
    area.get_by_text("kept: 12.5 MB").wait_for(timeout=10_000)
    kept = json.loads((lab.course / ".lockstep/progress.json").read_text())["predictions"]
    assert 12.5 in kept.values()
    notebook.run_cells(5, 8)
    notebook.output("12.5 MB").get_by_text("you predicted").wait_for(timeout=10_000)


def test_a_choice_is_kept(open_notebook):
    notebook = open_notebook("01_one_device")
    notebook.run_cells(0, 3)
    area = notebook.output("Your prediction")
    area.get_by_role("combobox").select_option("leaves the landscape")
    area.get_by_role("button", name="Keep my prediction").click()
    area.get_by_text("kept: leaves the landscape").wait_for(timeout=10_000)


def test_a_figure_follows_its_slider(open_notebook):
    notebook = open_notebook("07_momentum")
    notebook.run_cells(0, 5)
    figure = notebook.page.locator(".widget-vbox img")
    figure.wait_for(timeout=30_000)
    first = figure.get_attribute("alt")
    assert "rate 0.90, momentum 0.00 ends at loss" in first
    handle = notebook.page.locator(".widget-slider .noUi-handle").first
    handle.scroll_into_view_if_needed()
    handle.focus()
    handle.press("ArrowRight")
    notebook.page.wait_for_function(
        "(first) => document.querySelector('.widget-vbox img').alt !== first", arg=first, timeout=15_000
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
from utils import claims
from utils.data import prepare
from utils.launch import launch
from utils.widgets import watch
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


def test_the_stop_button_ends_a_run_on_all_ranks_and_leaves_a_figure(open_notebook, lab):
    notebook = open_notebook("00_start")
    start_long_run(notebook)
    assert len(training_processes(lab)) >= 3  # torchrun and two ranks
    first = notebook.page.locator(".jp-OutputArea-output img").first.get_attribute("alt")
    notebook.page.wait_for_function(
        "(first) => document.querySelector('.jp-OutputArea-output img').alt !== first", arg=first, timeout=30_000
    )
    if PICTURES:
        notebook.page.locator(".jp-OutputArea").first.screenshot(path=PICTURES / "panel-running.png")
    notebook.stop_button().click()
    notebook.page.get_by_text("a long run stopped").wait_for(timeout=15_000)
    notebook.page.wait_for_timeout(500)
    assert not training_processes(lab)
    assert json.loads((lab.course / "runs/long/summary.json").read_text())["state"] == "stopped"
    figure = notebook.page.locator(".jp-OutputArea-output img").first
    assert re.match(r"Loss and accuracy over [1-9]\d* epochs", figure.get_attribute("alt"))
    assert not notebook.stop_button().is_visible()
    if PICTURES:
        notebook.page.locator(".jp-OutputArea").first.screenshot(path=PICTURES / "panel-stopped.png")


def test_the_toolbars_interrupt_ends_a_wait_and_the_run_on_all_ranks(open_notebook, lab):
    notebook = open_notebook("00_start")
    start_long_run(notebook)
    notebook.write_cell(1, "panel.wait()")
    notebook.run_cells(1, 1, wait=False)
    notebook.page.wait_for_function(
        "window.jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.status === 'busy'"
    )
    notebook.page.wait_for_timeout(500)  # from busy to inside the wait
    assert training_processes(lab)
    notebook.page.evaluate("window.jupyterapp.commands.execute('notebook:interrupt-kernel')")
    notebook.output("KeyboardInterrupt").first.wait_for(timeout=15_000)
    assert not training_processes(lab)
    notebook.page.get_by_text("a long run stopped").wait_for(timeout=15_000)
