"""Checkpoints: whole or not at all, the one before where the last is damaged, and the same draws after as before."""

import hashlib
import io
import os
import random
import time

import numpy as np
import pytest
import torch
from conftest import until
from programs import Program

from utils.checkpoints import Checkpoints, random_states, restore_random_states
from utils.errors import UserError
from utils.saver import Clock, is_whole

WRITER = """
import sys, torch
from utils.checkpoints import Checkpoints
step = 0
while True:
    step += 1
    Checkpoints(sys.argv[1]).save(step, {"step": step, "weights": torch.full((300_000,), float(step))})
"""


def test_what_was_saved_last_comes_back_and_two_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run/checkpoints")
    assert checkpoints.latest() is None
    for step in (7, 80, 900):
        state = {"step": step, "place": (1, 2.5), "weights": torch.arange(step), "rows": ["1,2"], "none": None}
        torch.load(checkpoints.save(step, state), weights_only=True)
    found = checkpoints.latest()
    assert found["step"] == 900 and found["place"] == (1, 2.5) and torch.equal(found["weights"], torch.arange(900))
    assert len(list(checkpoints.folder.iterdir())) == 2
    checkpoints.remove()
    assert checkpoints.latest() is None and not list(checkpoints.folder.iterdir())


def test_a_step_that_is_saved_again_counts_as_the_last(tmp_path):
    """A run that went on from an earlier checkpoint comes to the same step once more."""
    checkpoints = Checkpoints(tmp_path)
    for value in (1, 2):
        checkpoints.save(5, {"value": value})
    checkpoints.save(4, {"value": 3})
    assert checkpoints.latest() == {"value": 2}


@pytest.mark.parametrize("harm", ["flipped", "cut", "emptied"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(harm, tmp_path, capfd):
    checkpoints = Checkpoints(tmp_path)
    first, last = (checkpoints.save(step, {"step": step, "weights": torch.ones(1000)}) for step in (1, 2))

    def damage(path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes({"flipped": content, "cut": content[: len(content) // 2], "emptied": b""}[harm])

    damage(last)
    assert checkpoints.latest()["step"] == 1
    assert capfd.readouterr().err.splitlines() == [f"{last} is damaged: going on from the checkpoint before it"]
    damage(first)
    with pytest.raises(UserError, match=f"no checkpoint in {tmp_path} can be read: start anew, without --resume"):
        checkpoints.latest()


def written(folder, step, content):
    """Write ``content`` (bytes, or what torch saves) as the checkpoint of a ``step``, with the digest that it has."""
    if not isinstance(content, bytes):
        held = io.BytesIO()
        torch.save(content, held)
        content = held.getvalue()
    path = folder / f"step-{step:09}-{hashlib.sha256(content).hexdigest()[:16]}.pt"
    path.write_bytes(content)
    return path


NAME = "step-000000002-0123456789abcdef.pt"
OTHERS = {
    "a list": lambda folder: written(folder, 2, [1, 2, 3]),
    "nothing": lambda folder: written(folder, 2, b""),
    "a text": lambda folder: written(folder, 2, b"no archive"),
    "a dictionary of something else": lambda folder: written(folder, 2, {"weights": torch.ones(1)}),
    "a folder": lambda folder: (folder / NAME).mkdir() or folder / NAME,
    "a pipe": lambda folder: os.mkfifo(folder / NAME) or folder / NAME,
    "a link that leads nowhere": lambda folder: (folder / NAME).symlink_to("/nowhere") or folder / NAME,
    "a link to itself": lambda folder: (folder / NAME).symlink_to(NAME) or folder / NAME,
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_checkpoint_is_set_aside_and_the_one_before_it_used(kind, tmp_path, capfd):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, {"step": 1})
    other = OTHERS[kind](tmp_path)
    assert checkpoints.latest(lambda state: "step" in state) == {"step": 1}
    assert capfd.readouterr().err.splitlines() == [f"{other} is damaged: going on from the checkpoint before it"]
    assert os.path.lexists(other.with_suffix(".damaged")) and not os.path.lexists(other)
    OTHERS[kind](tmp_path)
    checkpoints.save(3, {"step": 3})  # which removes all but the last two
    checkpoints.save(4, {"step": 4})
    checkpoints.remove()
    assert not list(tmp_path.glob("step-*.pt"))


def test_a_folder_in_the_place_of_what_was_damaged_is_one_line(tmp_path):
    path = written(tmp_path, 2, b"")
    (path.with_suffix(".damaged") / "something").mkdir(parents=True)
    with pytest.raises(UserError, match=r"cannot write .*\.damaged: it is a folder"):
        Checkpoints(tmp_path).latest()


def test_only_what_a_run_can_go_on_from_is_whole():
    whole = {"effective_batch": 64, "place": (1, 0, 0), "record": None}
    whole["ranks"] = [{"start": {}, "random": {}, "sums": torch.zeros(3), "elapsed": 0.0}]
    assert is_whole(whole)
    for name in whole:
        assert not is_whole({key: one for key, one in whole.items() if key != name})
    for change in (
        {"place": 3},
        {"place": (1, 0)},
        {"place": (1, 0, "0")},
        {"ranks": []},
        {"ranks": [{}]},
        {"ranks": 2},
    ):
        assert not is_whole(whole | change)


def test_a_writer_that_is_killed_leaves_whole_checkpoints(tmp_path):
    """Killed with signal 9 at twelve moments, in whatever it is doing."""
    checkpoints, moments = Checkpoints(tmp_path), random.Random(4)
    for _ in range(12):
        writer = Program("-c", WRITER, tmp_path)
        try:
            until(lambda: any(tmp_path.glob("step-*.pt")), 60, "the first checkpoint")
            time.sleep(moments.uniform(0, 0.05))
        finally:
            writer.kill()
        found = checkpoints.latest()
        assert torch.equal(found["weights"], torch.full((300_000,), float(found["step"])))
        checkpoints.remove()
        assert not list(tmp_path.iterdir())


def test_a_folder_that_takes_no_checkpoint_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write .*file/step-000000001-\w+\.pt: .*file is a file; choose"):
        Checkpoints(tmp_path / "file").save(1, {})


def test_draws_go_on_as_they_would_have():
    own = torch.Generator().manual_seed(3)

    def draws():
        numbers = random.random(), np.random.rand(), np.random.randn(), torch.rand(()).item()
        return (*numbers, torch.randn((), generator=own).item())

    draws()  # NumPy keeps a normal number in reserve
    states = random_states(own)
    expected = [draws() for _ in range(3)]
    restore_random_states(states, own)
    assert [draws() for _ in range(3)] == expected


def test_random_states_are_read_as_plain_values(tmp_path):
    torch.save(random_states(), tmp_path / "states.pt")
    restore_random_states(torch.load(tmp_path / "states.pt", weights_only=True))


def test_checkpoints_take_no_more_than_their_share(monkeypatch):
    """With any cost of one, and however short the interval asked for."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    for cost in (0.001, 0.4, 3.0):
        began, spent, clock = now, 0.0, Clock(every_s=0.01)
        for _ in range(200_000):
            now += 0.005  # a step
            if clock.is_due:
                with clock:
                    now += cost
                    spent += cost
        assert 0 < spent <= 0.021 * (now - began) + cost
