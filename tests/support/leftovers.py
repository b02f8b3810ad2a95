"""No test leaves anything behind: who still lives at the end of a run of the tests, or lies in shared memory, fails it.

Every process that a test starts inherits the environment of the tests, in which a mark stands, and pytest's own note of
which test was running: so that who outlives the run is known, and who started it. A process that lives holds its ports.
"""

import os
import time
from pathlib import Path

import psutil
import pytest

MARK, PATIENCE_S = "LOCKSTEP_TESTS", 30
# What ends with the process whose child it is: where tests are divided among workers, it is over with them.
HELPERS = ("multiprocessing.forkserver", "multiprocessing.resource_tracker", "utils.launch.forking")
SHARED_MEMORY = Path("/dev/shm")
OURS = ("torch_", "nccl", "psm_", "sem.mp", "lockstep")  # beginnings of names; other programs of a user have others
_before = set()


def pytest_configure(config):
    """Put the mark into the environment, and note what lies in shared memory; workers inherit the mark."""
    if not is_worker(config):
        os.environ[MARK] = f"{os.getpid()} {time.time_ns()}"
        _before.update(in_shared_memory())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    """Once the workers have ended, fail where something is left; what is about to end gets ``PATIENCE_S``."""
    result = yield
    if is_worker(session.config):
        return result
    deadline = time.monotonic() + PATIENCE_S
    while (left := leftovers()) and time.monotonic() < deadline:
        time.sleep(0.2)
    for line in left:
        print(f"left behind: {line}")
    if left:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return result


def leftovers():
    """Return a line for each process and each file in shared memory that tests have left."""
    own, children = psutil.Process(), {one.pid for one in psutil.Process().children()}
    lines = []
    for process in psutil.process_iter():
        try:
            environment, command = process.environ(), " ".join(process.cmdline())
            is_own = process == own or (process.pid in children and any(one in command for one in HELPERS))
            if environment.get(MARK) == os.environ[MARK] and not is_own:
                lines.append(f"process {process.pid} of {environment.get('PYTEST_CURRENT_TEST')}: {command[:200]}")
        except psutil.Error:  # it has ended meanwhile, or is not ours to look into
            continue
    return lines + [f"{SHARED_MEMORY / name}" for name in sorted(in_shared_memory() - _before)]


def in_shared_memory():
    """Return the names of files in shared memory: with ``CI`` set all, else those that training makes."""
    names = os.listdir(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else []
    return {one for one in names if os.environ.get("CI") or one.startswith(OURS)}


def is_worker(config):
    """Say whether this process is one of those among which xdist divides the tests."""
    return hasattr(config, "workerinput")
