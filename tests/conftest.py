"""What all tests share: real data where it lies, and training runs that never outlive their test."""

import json
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from leftovers import pytest_configure, pytest_sessionfinish  # noqa: F401
from ranks import Ranks

from assessment.trials.fork_server import ForkServer
from assessment.trials.forked_ranks import ForkedRanks
from utils.data import prepare
from utils.launch import RunError, launch

ROOT = Path(__file__).resolve().parent.parent
SMOOTH = ROOT / "tests/support/smooth.py"
TINY = ("--epochs", 1, "--model", "lenet", "--dropout", 0, "--precision", "float32", "--device", "cpu")


def until(condition, seconds, what):
    """Wait until ``condition()`` is true; fail after ``seconds``, many times what it takes."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} not within {seconds} s"
        time.sleep(0.05)


def need(condition, reason):
    """Skip a test that cannot run here; with CI set, where everything must be there, fail it."""
    if not condition:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


@pytest.fixture(autouse=True)
def signals():
    """Fail a test that leaves handlers of signals behind: they would end the whole run of the tests."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(number, handler)
    assert after == before, "the test left a handler of SIGINT or SIGTERM behind"


@pytest.fixture(scope="session")
def digits(tmp_path_factory):
    """Return a data folder in which ``digits`` is prepared."""
    root = tmp_path_factory.mktemp("data")
    prepare("digits", root)
    return root


@pytest.fixture(scope="session")
def real_data():
    """Return the folder with real Fashion-MNIST and CIFAR-10 that LOCKSTEP_DATA names; "none" says: not here."""
    if os.environ.get("LOCKSTEP_DATA") == "none":
        pytest.skip("LOCKSTEP_DATA=none leaves out what needs real images")
    folder = Path(os.environ.get("LOCKSTEP_DATA", ""))
    need((folder / "FashionMNIST/raw").is_dir(), "LOCKSTEP_DATA names no folder with FashionMNIST/raw")
    return folder


@pytest.fixture
def torchrun():
    """Launch scripts as ``launch`` does; whatever is left at the test's end is stopped."""
    started = []

    def start(script, *args, **options):
        started.append(launch(script, *args, **options))
        return started[-1]

    yield start
    for run in started:
        run.stop()


@pytest.fixture(scope="session")
def server():
    """Return a fork server that all tests share."""
    with ForkServer() as running:
        yield running


@pytest.fixture
def train(server, digits):
    """Run a script to its end as ``processes`` ranks, each with one thread, and return its summary.

    What torchrun does here, a fork server does in a tenth of the time: most of a short run is importing torch. With
    ``smooth=True`` networks have no kinks (support/smooth.py), so that N processes equal one to rounding.
    Raises ``RunError`` where a rank fails.
    """

    def run(script, processes, *args, run_dir, timeout=150, smooth=False):
        argv = [*([SMOOTH] if smooth else []), script, "--data-dir", digits, *args, "--run-dir", run_dir]
        ranks = ForkedRanks(server, argv, processes)
        try:
            assert ranks.wait(timeout), f"not over after {timeout} s"
        finally:
            ranks.kill()
        if any(ranks.exits.values()):
            raise RunError(ranks.failure())
        return json.loads((run_dir / "summary.json").read_text())

    return run


@pytest.fixture(scope="session")
def ranks_of():
    """Return a function from a world size to ``Ranks`` that all tests share; failures leave fresh ones."""
    running = {}

    def get(world_size):
        if world_size not in running or running[world_size].is_closed:
            running[world_size] = Ranks(world_size)
        return running[world_size]

    yield get
    for one in running.values():
        one.close()


@pytest.fixture(params=[1, 2, 3, 4])
def ranks(request, ranks_of):
    """Return processes that share a gloo group, at each of the world sizes."""
    return ranks_of(request.param)


@pytest.fixture
def script(tmp_path):
    """Write a small script for ranks and return its path."""

    def write(text, name="ranks.py"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def course(tmp_path):
    """Return a copy of the solutions, labs and starters, for tests that write there."""
    for name in ("solutions", "labs", "assessment/starters"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "assessment/train.py", tmp_path / "assessment")
    return tmp_path
