"""A grader's room goes with it; what a killed one has left, the next one clears away, and no other's."""

import signal
import subprocess
import sys
import tempfile

import pytest

from assessment.grader.room import LOCK, PREFIX, room

HOLDS = """
import time
from assessment.grader.room import room
with room() as place:
    (place / "work").mkdir()
    print(place, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return the folder in which rooms are made."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # which remembers another
    return tmp_path


def test_a_room_is_locked_and_goes_with_its_grader(temporary):
    with room() as place:
        assert place.parent == temporary and (place / LOCK).is_file()
        (place / "deep/er").mkdir(parents=True)
    assert not list(temporary.iterdir())


def test_what_a_killed_grader_has_left_goes_and_what_a_living_one_has_stays(temporary):
    begun = f"{PREFIX}just-begun"  # not locked yet
    (temporary / begun).mkdir()
    holders = [subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        places = [one.stdout.readline().strip() for one in holders]
        assert all(places) and {str(one) for one in temporary.iterdir()} == {*places, str(temporary / begun)}
        holders[0].send_signal(signal.SIGKILL)
        holders[0].wait()
        with room() as place:
            assert {str(one) for one in temporary.iterdir()} == {places[1], str(place), str(temporary / begun)}
    finally:
        for one in holders:
            one.kill()
            one.wait()
