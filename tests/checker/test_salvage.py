"""What a stranger's run left is read without harm, or not at all."""

import os
import tempfile
from pathlib import Path

import pytest
from conftest import until

from assessment.trials import salvage as module
from assessment.trials.salvage import NotPlainError, remove, salvage


@pytest.fixture
def places(tmp_path):
    """Return a work folder, the folder of a run in it, and one outside with a file and a link of its own."""
    run, outside = tmp_path / "work/check/run", tmp_path / "outside"
    run.mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (outside / "link").symlink_to("secret.txt")
    return tmp_path / "work", run, outside


def contents(folder):
    return {str(path.relative_to(folder)): path.is_symlink() for path in folder.rglob("*")}


def test_plain_files_stay_and_nothing_else(places):
    work, run, outside = places
    (run / "run-0/deeper").mkdir(parents=True)
    (run / "run-0/deeper/metrics.csv").write_text("epoch\n1\n")
    (run / "model.pt").symlink_to(outside / "secret.txt")
    (run / "folder").symlink_to(outside)
    os.mkfifo(run / "pipe.csv")
    salvage(work, run, 10**6)
    assert contents(run) == {"run-0": False, "run-0/deeper": False, "run-0/deeper/metrics.csv": False}
    assert (run / "run-0/deeper/metrics.csv").read_text() == "epoch\n1\n"
    assert contents(outside) == {"secret.txt": False, "link": True}


@pytest.mark.parametrize("which", ["the run's folder", "a folder above it"])
def test_a_folder_that_became_a_link_is_not_followed(places, which):
    work, run, outside = places
    swapped = run if which == "the run's folder" else run.parent
    swapped.rename(work / "elsewhere")
    (outside / "run").mkdir()
    swapped.symlink_to(outside)
    with pytest.raises(NotPlainError):
        salvage(work, run, 10**6)
    assert contents(outside) == {"secret.txt": False, "link": True, "run": False}


@pytest.mark.parametrize("how", ["bytes", "files", "depth"])
def test_too_much_is_not_read(places, how, monkeypatch):
    work, run, _ = places
    monkeypatch.setattr(module, "MOST_FILES", 50)
    if how == "bytes":
        (run / "large").write_bytes(bytes(2_000))
    elif how == "files":
        for at in range(51):
            (run / f"{at}").touch()
    else:
        deep(run, 20)
    with pytest.raises(NotPlainError, match="more than"):
        salvage(work, run, 1_000)


def deep(folder, levels):
    here = os.getcwd()
    os.chdir(folder)
    try:
        for _ in range(levels):
            os.mkdir("x")
            os.chdir("x")
    finally:
        os.chdir(here)


def test_a_tree_of_any_depth_is_removed_and_links_are_not_followed(places):
    work, run, outside = places
    deep(run, 3_000)
    (run / "link").symlink_to(outside)
    remove(work)
    assert not work.exists() and (outside / "secret.txt").read_text() == "secret"
    until(lambda: not list(Path("/tmp").glob("salvaged-*")), 60, "nothing left")  # others have theirs for a moment


def as_nobody(folder, act):
    """Call ``act`` in a process that is not root, to which ``folder`` belongs; return what it returns, a number."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 65534, 65534)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        os._exit(act())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(os.getuid() != 0, reason="becoming somebody else takes root")
def test_folders_that_nobody_may_enter_are_removed_too():
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        Path(place).chmod(0o777)
        hidden = Path(place) / "room" / "run" / "hidden" / "below"
        hidden.mkdir(parents=True)
        (hidden / "weights").write_bytes(b"large")
        hidden.parent.chmod(0)
        room = Path(place) / "room"
        assert as_nobody(room, lambda: remove(room) or room.exists()) == 0
