"""Launched runs: they start at once, say whose fault a failure was, and leave no process behind."""

import json
import os
import signal
import threading

import psutil
import pytest
import torch
from conftest import ROOT, until
from programs import Program

from utils.devices import physical_cores
from utils.errors import UserError
from utils.launch import RunError
from utils.launch import processes as system
from utils.launch.failures import explain_failure
from utils.launch.rank_logs import RankLogs

START = "import os, sys, time; rank = int(os.environ['RANK'])\n"
JOIN = START + "import torch, torch.distributed as dist; dist.init_process_group('gloo')\n"
LEAVE = "dist.barrier(); os._exit(0)\n"
SLEEP = "print('ready', flush=True); time.sleep(300)\n"


def processes_with(text):
    """List the processes that have ``text`` in their command line."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if any(str(text) in word for word in command) and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def all_ready(run):
    return all("ready" in run.log(rank) for rank in range(run.processes))


def test_launch_returns_at_once_and_the_run_ends_by_itself(torchrun, script):
    run = torchrun(script(JOIN + "print('hello from', rank); " + LEAVE), processes=2)
    assert run.state == "running"
    assert run.result(timeout=60) is None
    assert run.state == "finished"
    assert [run.log(rank).strip() for rank in (0, 1)] == ["hello from 0", "hello from 1"]


def test_the_culprits_own_traceback_comes_first_and_uncut(torchrun, script):
    deep = "def fall(depth):\n    if depth == 0: raise ValueError('the culprit')\n    fall(depth - 1)\n"
    body = "if rank == 1:\n    time.sleep(1); fall(12)\ndist.all_reduce(torch.ones(1))\n"
    run = torchrun(script(JOIN + deep + body), processes=2)
    with pytest.raises(RunError) as caught:
        run.result(timeout=60)
    told = str(caught.value)
    assert told.startswith("rank 1 failed first (exit code 1):\n\nTraceback (most recent call last)")
    assert "ValueError: the culprit" in told
    assert "in <module>" in told and told.count("in fall") == 4 and "repeated 9 more times" in told
    assert "Connection closed" not in told[: told.index("the culprit")]
    assert run.state == "failed"


def test_a_rank_killed_by_a_signal_is_named_before_those_that_lost_it(torchrun, script):
    body = "if rank == 1:\n    time.sleep(1); os.kill(os.getpid(), 9)\ndist.all_reduce(torch.ones(1))\n"
    run = torchrun(script(JOIN + body), processes=2)
    with pytest.raises(RunError, match=r"^rank 1 failed first, ended by signal 9 \(SIGKILL"):
        run.result(timeout=60)


def test_a_one_line_error_of_a_script_is_the_first_thing_said(torchrun, script):
    run = torchrun(script(START + "sys.exit('choose another folder')"), processes=1)
    with pytest.raises(RunError, match=r"^rank 0 failed first \(exit code 1\):\n\nchoose another folder$"):
        run.result(timeout=60)


def test_two_runs_at_once_do_not_collide(torchrun, script):
    path = script(JOIN + "total = torch.ones(1); dist.all_reduce(total); time.sleep(2); print(int(total)); " + LEAVE)
    runs = [torchrun(path, processes=2) for _ in range(2)]
    for run in runs:
        run.result(timeout=90)
        assert run.log(1).strip() == "2"


@pytest.mark.parametrize("processes", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_cores_are_shared_out_not_oversubscribed(processes, torchrun, script):
    run = torchrun(script(START + "import torch; print(torch.get_num_threads()); os._exit(0)"), processes=processes)
    run.result(timeout=60)
    assert int(run.log()) == max(1, physical_cores() // processes)


def test_output_streams_while_the_run_goes_on(torchrun, script, capsys):
    path = script(START + "print('early'); print('from', rank); time.sleep(60)")
    run = torchrun(path, processes=2)
    until(lambda: "from 1" in run.log(1) and "from 0" in run.log(0), 60, "the first lines")
    assert run.wait(timeout=0.5, show=True) == "running"
    assert sorted(capsys.readouterr().out.splitlines()) == ["[rank 1] early", "[rank 1] from 1", "early", "from 0"]


STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
)


@pytest.mark.parametrize("manner", ["", STUBBORN], ids=["polite", "ignores SIGTERM"])
def test_a_stopped_run_leaves_no_process(manner, torchrun, script):
    path = script(START + manner + SLEEP)
    run = torchrun(path, processes=2)
    until(lambda: all_ready(run), 60, "both ranks")
    assert len(processes_with(path)) >= 3
    run.stop()
    assert not processes_with(path)
    assert run.state == "stopped"
    with pytest.raises(RunError, match="was stopped"):
        run.result()


HELD = """
import datetime
import torch, torch.distributed as dist
from utils.errors import one_line_errors
with one_line_errors():
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
    dist.barrier()
    print(os.getpid(), flush=True)
    while True:
        dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize(
    "environment",
    [pytest.param({}, id="warm"), pytest.param({"LOCKSTEP_COLD": "1"}, id="cold", marks=pytest.mark.slow)],
)
def test_a_rank_that_a_signal_holds_is_named_by_those_that_wait_for_it(environment, torchrun, script):
    run = torchrun(script(START + HELD), processes=3, env=environment | {"PYTHONPATH": str(ROOT)})
    until(lambda: all(run.log(rank).strip() for rank in range(3)), 60, "the group")
    held = int(run.log(1).split()[0])
    os.kill(held, signal.SIGSTOP)
    told = f"Timed out waiting for rank 1 (process {held}): stopped from outside"
    until(lambda: told in run.log(0) + run.log(2), 30, "the timeout")
    system.kill(system.family(held))  # torchrun would wait for it for half a minute
    with pytest.raises(RunError, match=rf"^the others waited in vain for rank 1 \(process {held}\): stopped"):
        run.result(timeout=60)


@pytest.mark.parametrize("number", ["7", "9" * 5_000], ids=["no such rank", "a number of 5,000 digits"])
def test_a_script_that_says_so_itself_harms_nobody_who_explains_it(number):
    logs = RankLogs(1)
    logs.path(0).write_text(f"Timed out waiting for rank {number} " + "x" * 50_000)
    assert len(explain_failure(logs, {0: 1})) < 25_000


def test_a_run_that_takes_too_long_is_stopped_and_says_where_each_rank_was(torchrun, script):
    path = script(START + "print('at step', rank); time.sleep(300)")
    run = torchrun(path, processes=2)
    until(lambda: "step" in run.log(1), 60, "rank 1")
    with pytest.raises(TimeoutError, match="rank 1: at step 1"):
        run.result(timeout=1)
    assert not processes_with(path)


CALLER = "import sys; from utils.launch import launch\nrun = launch(sys.argv[1], processes=2)\nrun.wait(show=True)\n"


MANNERS = {"polite": "", "ignores SIGTERM": STUBBORN}
HOW = [(number, manner) for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM) for manner in MANNERS]
TELLING = [(signal.SIGKILL, "polite"), (signal.SIGINT, "ignores SIGTERM")]


@pytest.mark.parametrize(
    ("number", "manner"),
    [pytest.param(*how, id=f"{how[0].name} {how[1]}", marks=() if how in TELLING else pytest.mark.slow) for how in HOW],
)
def test_a_run_ends_with_its_caller(number, manner, script):
    path = script(START + MANNERS[manner] + SLEEP)
    caller = Program(script(CALLER, "caller.py"), path)
    try:
        until(lambda: caller.stdout.count("ready") == 2, 60, "both ranks")
        caller.send_signal(number)
        caller.wait()
        until(lambda: not processes_with(path), 60, "the end of every process")
    finally:
        caller.kill()
        for process in processes_with(path):
            process.kill()


RECORDS = """
from utils import runs
if rank == 0:
    record = runs.Record(sys.argv[2], {}, world_size=2, effective_batch=2)
"""
KEEPS = """
import sys
from utils.launch import launch
launch(sys.argv[1], processes=2, run_dir=sys.argv[2]).wait(show=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_record_of_a_run_whose_caller_is_asked_to_end_says_stopped(number, script, tmp_path):
    path, folder = script(START + RECORDS + SLEEP), tmp_path / "run"
    caller = Program(script(KEEPS, "caller.py"), path, folder)
    try:
        until(lambda: caller.stdout.count("ready") == 2, 60, "both ranks")
        caller.send_signal(number)
        caller.wait()
        assert json.loads((folder / "summary.json").read_text())["state"] == "stopped"
        assert not processes_with(path)
    finally:
        caller.kill()
        for process in processes_with(path):
            process.kill()


def test_a_run_outlives_the_thread_that_launched_it(torchrun, script):
    started = []
    path = script(START + "time.sleep(3); print('still here'); os._exit(0)")
    thread = threading.Thread(target=lambda: started.append(torchrun(path, processes=1)))
    thread.start()
    thread.join()
    started[0].result(timeout=60)
    assert started[0].log().strip() == "still here"


def test_what_cannot_be_launched_is_said_in_one_line(torchrun, script, tmp_path):
    with pytest.raises(UserError, match=r"missing\.py does not exist"):
        torchrun(tmp_path / "missing.py")
    with pytest.raises(UserError, match="processes=0"):
        torchrun(script(""), processes=0)
    with pytest.raises(UserError, match="restarts=-1"):
        torchrun(script(""), restarts=-1)


def test_a_run_that_loses_a_rank_starts_all_again_as_often_as_asked(torchrun, script):
    body = "dist.barrier(); print(os.getpid(), flush=True)\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    "
    run = torchrun(script(JOIN + body + "time.sleep(300)\n" + LEAVE), processes=2, restarts=1)
    until(lambda: all(run.log(rank).strip() for rank in (0, 1)), 60, "both ranks")
    assert run.pids == [int(run.log(rank)) for rank in (0, 1)]
    os.kill(run.pids[1], signal.SIGKILL)
    run.result(timeout=60)
    assert [len(run.log(rank).split()) for rank in (0, 1)] == [2, 2] and run.pids == []


def test_a_path_with_spaces_is_no_obstacle(torchrun, tmp_path):
    folder = tmp_path / "a folder with spaces"
    folder.mkdir()
    (folder / "my script.py").write_text(START + "print(sys.argv[1:]); os._exit(0)")
    run = torchrun(folder / "my script.py", "one word", processes=1)
    run.result(timeout=60)
    assert run.log().strip() == "['one word']"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the machine has a GPU")
def test_nccl_without_gpus_is_refused():
    from utils.devices import choose_device

    for device, backend in [("cuda", None), ("cpu", "nccl")]:
        with pytest.raises(UserError, match="choose"):
            choose_device(device, backend, local_world_size=2)
    assert os.environ.get("RANK") is None
