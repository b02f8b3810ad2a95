"""A real JupyterLab on a copy of the course, and a real browser in front of it.

The browser is Debian's Chromium, driven by Playwright. Cells are run by JupyterLab's own command, and
what it says of their execution is what counts; nothing waits for a kernel that looks idle.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import uuid

from conftest import ROOT, need
from playwright.sync_api import sync_playwright

CHROMIUM = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
CODE_CELLS = """
  const panel = window.jupyterapp.shell.currentWidget;
  await panel.context.ready;
  await panel.context.sessionContext.ready;
  await panel.revealed;
  const code = panel.content.widgets.filter((cell) => cell.model.type === "code");
"""
RUN_ALL = f"""async (seconds) => {{
  {CODE_CELLS}
  const late = new Promise((_, reject) => setTimeout(() => reject(new Error("not done in time")), 1000 * seconds));
  await Promise.race([window.jupyterapp.commands.execute("notebook:run-all-cells"), late]);
  return code.map((cell) => ({{
    source: cell.model.sharedModel.getSource(),
    count: cell.model.executionCount,
    outputs: cell.model.outputs.toJSON(),
  }}));
}}"""
WRITE_CELL = f"""async ([number, source]) => {{
  {CODE_CELLS}
  code[number].model.sharedModel.setSource(source);
}}"""
RUN_CELLS = f"""async ([first, last, wait]) => {{
  {CODE_CELLS}
  for (const cell of code.slice(first, last + 1)) {{
    panel.content.activeCellIndex = panel.content.widgets.indexOf(cell);
    const done = window.jupyterapp.commands.execute("notebook:run-cell");
    if (wait) await done;
  }}
}}"""


# Nothing is returned: what JupyterLab answers cannot always be sent.
OPEN = """async (path) => {
  await window.jupyterapp.commands.execute("docmanager:open", { path });
}"""
CLOSE = """async () => {
  const panel = window.jupyterapp.shell.currentWidget;
  await panel.context.sessionContext.shutdown();
  panel.context.model.dirty = false;
  panel.dispose();
}"""


class Lab:
    """JupyterLab serving a copy of the course in ``folder``, with quick runs."""

    def __init__(self, folder):
        self.course = folder / "course"
        for name in ("notebooks", "labs", "solutions", "assessment", "utils", ".jupyter"):
            shutil.copytree(ROOT / name, self.course / name, ignore=shutil.ignore_patterns("__pycache__"))
        own = {name: str(folder / name) for name in ("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR")}
        own |= {"IPYTHONDIR": str(folder / "ipython"), "MPLCONFIGDIR": str(folder / "matplotlib")}
        environment = os.environ | own | {"JUPYTER_CONFIG_PATH": str(self.course / ".jupyter")}
        environment |= {"LOCKSTEP_SCALE": "quick"}
        self.token, self._log = uuid.uuid4().hex, folder / "lab.log"
        options = [f"--IdentityProvider.token={self.token}", "--LabApp.expose_app_in_browser=True"]
        options += ["--ServerApp.open_browser=False", "--ServerApp.port=0", "--ServerApp.ip=127.0.0.1"]
        with open(self._log, "w") as log:
            command = [sys.executable, "-m", "jupyterlab", *options]
            self._server = subprocess.Popen(command, cwd=self.course, env=environment, stdout=log, stderr=log)
        self.address = self._await_address()

    def _await_address(self):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self._server.poll() is None:
            if found := re.search(r"http://127\.0\.0\.1:\d+", self._log.read_text()):
                return found[0]
            time.sleep(0.1)
        raise AssertionError(self._log.read_text())

    def close(self):
        """End the server and with it every kernel."""
        self._server.terminate()
        self._server.wait(timeout=30)


def open_browser():
    """Start Playwright and Chromium; return both, to be closed by the caller."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    need(executable, "needs Chromium: install your system's package")
    playwright = sync_playwright().start()
    return playwright, playwright.chromium.launch(executable_path=executable, args=CHROMIUM)


class Page:
    """JupyterLab open in the browser at 1280 pixels, with one notebook at a time."""

    def __init__(self, browser, lab):
        self.page = browser.new_page(viewport={"width": 1280, "height": 900})
        self.page.goto(f"{lab.address}/lab/workspaces/{uuid.uuid4().hex}?token={lab.token}")
        self.page.wait_for_function("() => window.jupyterapp", timeout=120_000)
        self.page.evaluate("async () => { await window.jupyterapp.restored; }")
        self.notebook = None

    def open(self, name):
        """Return the notebook ``name``, which stays open until another is asked for."""
        if self.notebook is None or self.notebook.name != name:
            self.close()
            self.notebook = OpenNotebook(self.page, name)
        return self.notebook

    def close(self):
        """Close the notebook that is open and end its kernel."""
        if self.notebook is not None:
            self.page.evaluate(CLOSE)
            self.notebook = None


class OpenNotebook:
    """A notebook that is open in JupyterLab; ``has_run`` once all of it has been executed."""

    def __init__(self, page, name):
        self.page, self.name, self.has_run = page, name, False
        page.evaluate(OPEN, self.path)
        opened = "(path) => window.jupyterapp.shell.currentWidget?.context?.path === path"
        page.wait_for_function(opened, arg=self.path, timeout=60_000)

    @property
    def path(self):
        return f"notebooks/{self.name}.ipynb"

    def run_all(self, seconds=280):
        """Run all cells and return source, execution count and outputs of each code cell."""
        self.has_run = True
        return self.page.evaluate(RUN_ALL, seconds)

    def write_cell(self, number, source):
        """Replace the source of the code cell ``number`` (counted from 0)."""
        self.page.evaluate(WRITE_CELL, [number, source])

    def run_cells(self, first, last, wait=True):
        """Run the code cells ``first`` to ``last``, and ``wait`` until they have been executed."""
        self.page.evaluate(RUN_CELLS, [first, last, wait])

    def stop_button(self):
        """Return the button of the live panel."""
        return self.page.locator(".jp-OutputArea-output button", has_text="Stop")

    def output(self, text):
        """Return the output area of the page that holds ``text``."""
        return self.page.locator(".jp-OutputArea-output", has_text=text)
