"""Whether a run stands still is judged only by what was seen of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from conftest import need, until

from assessment.checklists.common import COLD_START
from assessment.trials import forked_ranks
from assessment.trials.data import Stage, trial_data
from assessment.trials.fork_server import ForkServer
from assessment.trials.forked_ranks import ForkedRanks, Idle
from assessment.trials.plan import Trials
from assessment.trials.trial import _lay_out

BEGINS = "import pathlib, time; pathlib.Path({mark!r}).touch()\n"
SLEEPS = "time.sleep(3600)"
COMPUTES = "while True: pass"
# Who starts a process by vfork sleeps as one that waits for a disk does, until that process goes its own way.
WAITS = "import ctypes; ctypes.CDLL(None).vfork() or time.sleep(3600)"


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that stands still unless a test moves it on; the watch for idleness reads it."""
    own = SimpleNamespace(now=0.0)
    monkeypatch.setattr(forked_ranks, "time", SimpleNamespace(monotonic=lambda: own.now))
    return own


@pytest.mark.parametrize(("text", "is_idle"), [(SLEEPS, True), (COMPUTES, False), (WAITS, False)])
def test_a_run_is_idle_that_neither_computes_nor_reads(server, tmp_path, clock, text, is_idle):
    need(sys.platform == "linux", "sleeps are told apart by the system")
    script, mark = tmp_path / "script.py", tmp_path / "begun"
    script.write_text(BEGINS.format(mark=str(mark)) + text)
    ranks = ForkedRanks(server, [script], 1)
    try:
        until(mark.exists, 60, "the script's first line")
        if text == WAITS:
            until(lambda: server.activity()[1], 60, "the sleep in vfork")
        watch = Idle(server, 3)
        watch()
        told = []
        for _ in range(10):
            if text == COMPUTES:
                seen = server.activity()[0]
                until(lambda seen=seen: server.activity()[0] > seen + 0.15, 60, "something computed")
            clock.now += 0.4
            told.append(watch())
        assert told == ([False] * 7 + [True] * 3 if is_idle else [False] * 10)  # 3 s are over at the eighth
    finally:
        ranks.kill()


def test_a_pause_of_the_whole_machine_is_no_idleness(clock):
    computed = [5.0]
    is_idle = Idle(SimpleNamespace(activity=lambda: (computed[0], False)), limit_s=1)
    assert not is_idle()
    clock.now += 3600  # nobody looks, as when a virtual machine is stopped and goes on
    assert not is_idle()
    computed[0] += 1
    assert not asked_for(0.8, is_idle, clock)
    assert asked_for(0.4, is_idle, clock)


def asked_for(seconds, is_idle, clock):
    """Ask for ``seconds`` whether it is idle; stop at the first yes."""
    until = clock.now + seconds
    while clock.now < until:
        if is_idle():
            return True
        clock.now += 0.05
    return is_idle()


MACHINES = """
import os, socket, sys
names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"
open(f"{sys.argv[1]}-{os.environ['RANK']}", "w").write(" ".join([*(os.environ[one] for one in names), sys.argv[2]]))
"""


def test_ranks_take_themselves_to_be_on_several_machines(server, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(MACHINES)
    ranks = ForkedRanks(server, [script, tmp_path / "told", "data-{machine}-{rank}"], 4, machines=2)
    try:
        assert ranks.wait(60) and not any(ranks.exits.values()), ranks.failure()
    finally:
        ranks.kill()
    told = [(tmp_path / f"told-{rank}").read_text() for rank in range(4)]
    assert told == ["0 0 4 2 0 2 data-0-0", "1 1 4 2 0 2 data-0-1", "2 0 4 2 1 2 data-1-2", "3 1 4 2 1 2 data-1-3"]


# To a file of each rank's own: what several ranks print at once is mixed.
NAMES = """
import json, os, sys
with open(f"{sys.argv[1]}-{os.environ['RANK']}", "w") as file:
    json.dump(sorted(os.environ), file)
"""
OF_THE_AGENT = {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE", "COLUMNS", "LINES"}  # not for the script


def test_a_forked_rank_finds_what_torchrun_gives_it(server, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    script = tmp_path / "script.py"
    script.write_text(NAMES)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    subprocess.run([*command, tmp_path / "real"], capture_output=True, timeout=120, check=True)
    ranks = ForkedRanks(server, [script, tmp_path / "forked"], 2)
    try:
        assert ranks.wait(60) and not any(ranks.exits.values()), ranks.failure()
    finally:
        ranks.kill()
    real = set(json.loads((tmp_path / "real-0").read_text())) & set(json.loads((tmp_path / "real-1").read_text()))
    given = real - set(os.environ) - OF_THE_AGENT  # what this process hands on is no doing of torchrun's
    assert {"RANK", "TORCHELASTIC_RUN_ID"} < given
    assert not given - set(json.loads((tmp_path / "forked-0").read_text()))


def test_a_process_may_call_itself_by_bytes_that_are_no_text(server, tmp_path):
    script = tmp_path / "named.py"
    script.write_text("import ctypes, time\nctypes.CDLL(None).prctl(15, b'\\xff\\xfe', 0, 0, 0)\ntime.sleep(20)\n")
    ranks = ForkedRanks(server, [script], 2)
    try:
        until(lambda: {one.name() for one in server.rank_processes()} == {"\udcff\udcfe"}, 15, "the names")
    finally:
        ranks.kill()


def test_nothing_that_a_script_has_put_in_the_place_of_data_is_followed(server, tmp_path):
    """A link at the place of a machine's data leads to a folder that nobody but its owner may enter."""
    script, own, folder = tmp_path / "nothing.py", tmp_path / "own", tmp_path / "check"
    script.write_text("")
    own.mkdir(mode=0o700)
    folder.mkdir()
    (folder / "cold-0").symlink_to(own)
    stage = Stage(trial_data("digits"), tmp_path / "stage")
    Trials(server, script, stage, folder).attempt(COLD_START)
    assert own.stat().st_mode & 0o777 == 0o700 and not any(own.iterdir())
    assert not (folder / "cold-0").is_symlink()


ORDER = """
import os, sys
names = {f"layer {number}" for number in range(100)}
open(f"{sys.argv[1]}-{os.environ['RANK']}", "w").write(" ".join(names))
"""


def orders(server, folder, **options):
    """Return in which order each of three ranks goes through a set of texts."""
    script = folder / "script.py"
    script.write_text(ORDER)
    ranks = ForkedRanks(server, [script, folder / "order"], 3, within=folder, **options)
    try:
        assert ranks.wait(60) and not any(ranks.exits.values()), ranks.failure()
    finally:
        ranks.kill()
    return [(folder / f"order-{rank}").read_text() for rank in range(3)]


@pytest.mark.parametrize("stands_by", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_ranks_that_are_apart_have_no_order_of_a_set_in_common(stands_by, tmp_path):
    with ForkServer(stands_by=stands_by) as server:
        assert len(set(orders(server, tmp_path))) == 1  # what forking gives them
        assert len(set(orders(server, tmp_path, are_apart=True))) == 3


@pytest.mark.slow
def test_who_stands_by_may_be_lost_and_ends_with_the_server(tmp_path):
    with ForkServer(stands_by=True) as server:
        assert len(set(orders(server, tmp_path))) == 1
        (ready,) = standing_by(server)
        ready.kill()
        until(lambda: not ready.is_running() or ready.status() == psutil.STATUS_ZOMBIE, 30, "its end")
        assert len(set(orders(server, tmp_path, are_apart=True))) == 3
    with ForkServer(stands_by=True) as server:
        assert len(set(orders(server, tmp_path))) == 1
        (ready,) = standing_by(server)
    until(lambda: not ready.is_running(), 30, "its end with the server")


def standing_by(server):
    return [one for one in server.members() if "assessment.trials.rank_process" in one.cmdline()]


def test_what_lies_beside_the_record_comes_along_whatever_it_is(tmp_path):
    """A script may keep a log or a lock beside its folder, under a name that begins like it."""
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    (earlier / "run/checkpoints").mkdir(parents=True)
    later.mkdir()
    for name, text in (("run/config.json", "{}"), ("run.txt", "a log"), ("run.lock", "")):
        (earlier / name).write_text(text)
    (earlier / "run-link").symlink_to("/etc/passwd")
    os.mkfifo(earlier / "run-pipe")
    _lay_out(SimpleNamespace(open_to_ranks=lambda path: path.chmod(0o777)), earlier / "run", later)
    assert (later / "run/config.json").read_text() == "{}" and (later / "run.txt").read_text() == "a log"
    assert (later / "run/checkpoints").is_dir() and not (later / "run-pipe").exists()
    assert Path("/etc/passwd").stat().st_mode & 0o777 == 0o644
