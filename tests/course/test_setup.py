"""A newcomer's first minutes: one command sets up and serves, in any folder, and says what is missing."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from conftest import ROOT, need

from utils.notebook.environment import check_environment

# A newcomer's shell knows nothing of this environment.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("VIRTUAL_ENV", "MAKE", "MFLAGS"))}


def make(folder, *args, **options):
    return subprocess.run(["make", *args], cwd=folder, capture_output=True, text=True, timeout=280, **options)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """Return a copy of the course, as git would clone it, set up in a path with spaces."""
    folder = tmp_path_factory.mktemp("a path with spaces") / "the course"
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True)
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    run = make(folder, "setup", env=CLEAN)
    offline = re.search(r"(?i)failed to (fetch|resolve)|connection|No matching distribution", run.stderr)
    need(run.returncode == 0 or not offline, f"needs a package index: {run.stderr[-300:]}")
    assert run.returncode == 0, run.stderr
    return folder


@pytest.mark.slow
def test_set_up_again_does_nothing(clone):
    before = (clone / ".venv/.ready").stat().st_mtime_ns
    run = make(clone, "setup", env=CLEAN)
    assert run.returncode == 0 and run.stdout == "" and (clone / ".venv/.ready").stat().st_mtime_ns == before
    assert (clone / "data/digits.pt").exists()


@pytest.mark.parametrize("place", ["here", pytest.param("clone", marks=pytest.mark.slow)])
def test_lab_serves_the_start_notebook_where_a_port_is_free(place, request, tmp_path):
    """Here the set-up has been done, by ``make test`` itself; a clone is set up from nothing."""
    folder = request.getfixturevalue("clone") if place == "clone" else ROOT
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        home = {"HOME": str(tmp_path), "JUPYTER_PORT": str(port), "JUPYTER_DATA_DIR": str(tmp_path / "jupyter")}
        environment = {name: value for name, value in CLEAN.items() if "DISPLAY" not in name} | home
        log = tmp_path / "log"
        with open(log, "w") as output:
            server = subprocess.Popen(
                ["make", "lab"], cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        try:
            address, deadline = None, time.monotonic() + 120
            while address is None:
                assert time.monotonic() < deadline and server.poll() is None, log.read_text()
                time.sleep(0.2)
                address = re.search(r"http://127\.0\.0\.1:(\d+)(/\S+)\?token=\w+", log.read_text())
            assert address[2] == "/lab/tree/notebooks/00_start.ipynb" and int(address[1]) != port
            with urllib.request.urlopen(address[0], timeout=20) as page:
                assert page.status == 200 and b"jupyter" in page.read().lower()
            with pytest.raises(urllib.error.HTTPError):  # without the token nobody gets in
                urllib.request.urlopen(f"http://127.0.0.1:{address[1]}/api/contents", timeout=20)
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=20)


@pytest.mark.parametrize("found", ["", "#!/bin/sh\n[ $1 = --version ] && echo Python 3.9.1; exit 1\n"])
def test_a_missing_or_old_python_is_one_line(found, tmp_path):
    for name in ("Makefile", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    if found:
        python.write_text(found)
        python.chmod(0o755)
    run = make(tmp_path, "setup", f"PYTHON={python}", env=CLEAN)
    lines = [line for line in run.stderr.splitlines() if not line.startswith("make")]
    assert run.returncode != 0 and len(lines) == 1
    assert lines[0].startswith("Lockstep needs Python 3.11 or newer") and "PYTHON=" in lines[0]
    assert ("Python 3.9.1" in lines[0]) == bool(found) and not (tmp_path / ".venv").exists()


def test_help_lists_every_target():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = {line.split()[1] for line in make(ROOT, "help", env=CLEAN).stdout.splitlines()}
    assert told == targets


def test_the_environment_check_has_a_line_for_each_thing_and_says_what_to_do(monkeypatch):
    checks = {check.name: check for check in check_environment(ROOT)}
    assert {"python", "torch", "torchvision", "jupyterlab", "device", "backend", "cores", "memory", "disk"} <= set(
        checks
    )
    assert not [check for check in checks.values() if check.advice and check.name not in ("cores", "memory")]
    monkeypatch.setitem(sys.modules, "torchvision", None)  # an import of it fails
    broken = {check.name: check for check in check_environment(ROOT)}["torchvision"]
    assert "cannot be imported" in broken.found and "make setup" in str(broken)
