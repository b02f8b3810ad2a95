"""What a test leaves behind fails the run of the tests, and is told with the name of the test."""

import subprocess
import sys

import psutil
import pytest
from conftest import ROOT
from leftovers import MARK, SHARED_MEMORY

CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests/support")!r})
import leftovers
leftovers.PATIENCE_S = 1
from leftovers import pytest_configure, pytest_sessionfinish
"""
TESTS = """
import os, subprocess, sys
from pathlib import Path

def test_it():
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    {leaves}
"""
# Its starter is gone, its session is its own, as with what torchrun starts.
PROCESS = "subprocess.Popen(['sh', '-c', 'setsid sleep 600 & echo $! > pid'], stdin=subprocess.DEVNULL).wait()"
FILE = "Path('/dev/shm/torch_left_by_a_test').touch()"


def run(folder, leaves, *options):
    """Run a test that does what ``leaves`` says; return pytest's exit code and output."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(TESTS.format(leaves=leaves))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, folder]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    return done.returncode, done.stdout


WORKERS = pytest.param(("-n", "2"), marks=pytest.mark.slow, id="in two workers")


@pytest.mark.parametrize("options", [pytest.param((), id="in one process"), WORKERS])
def test_a_process_that_outlives_its_test_is_told(options, tmp_path, monkeypatch):
    monkeypatch.setenv(MARK, "of these tests")
    code, said = run(tmp_path, PROCESS, *options)
    try:
        assert code == 1 and "1 passed" in said
        assert "left behind: process" in said and "test_it.py::test_it (call): sleep 600" in said
    finally:
        psutil.Process(int((tmp_path / "pid").read_text())).kill()


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="there is no shared memory in a folder")
def test_a_file_in_shared_memory_is_told(tmp_path):
    try:
        code, said = run(tmp_path, FILE)
        assert code == 1 and f"left behind: {SHARED_MEMORY}/torch_left_by_a_test" in said
    finally:
        (SHARED_MEMORY / "torch_left_by_a_test").unlink()


def test_who_leaves_nothing_passes(tmp_path):
    code, said = run(tmp_path, "pass")
    assert code == 0 and "left behind" not in said
