"""A job over two machines: the steps of one, and what it does when a worker, the cable or a machine is lost."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from conftest import ROOT, SMOOTH, need, until
from nodes import Nodes, what_is_missing

from utils.launch.failures import LOST_PEER
from utils.runs import read_metrics

SCRIPT = ROOT / "solutions/03_ddp.py"
EPOCHS, STEPS = 3, 50  # and steps in each
SHORT = ("--epochs", EPOCHS, "--train-images", 64 * STEPS, "--device", "cpu", "--precision", "float32")
FOUR = (*SHORT, "--batch-size", 16, "--checkpoint-every", 0.2)  # images for each of four ranks
TIMEOUT_S = 10
# A restart over several machines hangs where workers take over the store of torchrun's first meeting.
RESTARTS = {"env": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}}
# A node counts as lost after eight seconds without a sign of life; nobody waits longer than one for another to come.
QUICK = "--rdzv-conf=last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=8"


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    """Return two nodes that the tests of this file share."""
    need(not (missing := what_is_missing()), missing)
    with Nodes(tmp_path_factory.mktemp("nodes")) as nodes:
        yield nodes
        networks = [node.network for node in nodes]
    assert not [pid for pid in psutil.pids() if network_of(pid) in networks]


@pytest.fixture
def nodes(machines):
    """Return the nodes, and see that a test leaves nothing on them: no process, no file, and the cable in its place."""
    before = list(psutil.net_if_addrs())
    yield machines
    for node in machines:
        left = psutil.Process(node.pid).children(recursive=True)
        for process in left:
            process.kill()
        assert not left and set(node.processes()) <= {node.pid}
        for place in node.temporary.glob("torchelastic_*"):  # torchrun's folders for logs, which it never removes
            shutil.rmtree(place)
        files = [*node.temporary.iterdir(), *Path("/proc", str(node.pid), "root", "dev/shm").iterdir()]
        assert not files, f"left on {node.name}"
    machines.mend()
    assert list(psutil.net_if_addrs()) == before, "an interface outside the nodes"


@pytest.fixture(scope="module")
def undisturbed(machines, digits):
    """Return the folder of a run of four ranks on two nodes that nobody disturbs."""
    folder = machines.folder / "undisturbed"
    finish(train(machines, digits, folder))
    return folder


def network_of(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def has_ended(process):
    """Say whether nothing runs there any more, though torchrun may not have taken note of it."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def train(nodes, digits, folder, *args, **options):
    """Start the script as two ranks on each of ``nodes``; return what torchrun runs there."""
    own = ("--data-dir", digits, *FOUR, "--run-dir", folder, *args)
    return [node.torchrun(4 // len(nodes), SCRIPT, *own, nnodes=len(nodes), **options) for node in nodes]


def finish(runs, seconds=100):
    codes = [run.process.wait(seconds) for run in runs]
    assert not any(codes), "\n".join(run.told() for run in runs)


def saved_step(folder):
    """Return after how many steps the last checkpoint was made."""
    return max((int(path.name.split("-")[1]) for path in Path(folder, "checkpoints").glob("step-*.pt")), default=0)


def wait_for_step(runs, folder, step):
    is_over = lambda: any(run.process.poll() is not None for run in runs)  # noqa: E731
    until(lambda: is_over() or saved_step(folder) >= step, 100, f"step {step}")
    assert not is_over(), "\n".join(run.told() for run in runs)


def weights(folder):
    return torch.load(folder / "model.pt", weights_only=True)


def furthest(folder, other):
    """Return how far the weights of two runs are apart."""
    ours, theirs = weights(folder), weights(other)
    return max((ours[name].double() - theirs[name].double()).abs().max().item() for name in theirs)


def test_each_node_is_a_machine_of_its_own(nodes):
    one, other = nodes
    assert [node.run("hostname").strip() for node in nodes] == ["node0", "node1"]
    for node in nodes:
        seen = node.run("ip", "-brief", "address")
        assert [line.split()[0].split("@")[0] for line in seen.splitlines()] == ["lo", "eth0"], seen
    assert "10.99.0.2" in one.run("getent", "hosts", "node1") and "10.99.0.1" in other.run("getent", "hosts", "node0")
    assert len({network_of(pid) for pid in (one.pid, other.pid, os.getpid())}) == 3


def test_nodes_end_with_a_program_that_is_killed(tmp_path):
    need(not (missing := what_is_missing()), missing)
    text = (
        f"import time, nodes; made = nodes.Nodes({str(tmp_path)!r}); print(*(one.pid for one in made)); time.sleep(100)"
    )
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}", "PYTHONUNBUFFERED": "1"}
    program = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, env=os.environ | paths)
    try:
        networks = {network_of(int(pid)) for pid in program.stdout.readline().split()}
        assert len(networks) == 2 and network_of(os.getpid()) not in networks
    finally:
        program.kill()
        program.communicate(timeout=60)
    until(lambda: not [pid for pid in psutil.pids() if network_of(pid) in networks], 10, "the end of all processes")


@pytest.mark.slow
def test_two_nodes_make_the_steps_of_one(nodes, undisturbed, digits):
    """Four ranks: their sums are the same to the last bit, wherever each of them runs."""
    folder = nodes.folder / "one"
    finish(train([nodes[0]], digits, folder))
    assert furthest(folder, undisturbed) == 0
    summaries = [json.loads((one / "summary.json").read_text()) for one in (folder, undisturbed)]
    assert summaries[0] == summaries[1] and summaries[0]["world_size"] == 4
    # Where the machines are, the accuracy does not say: all test images were counted once in both.
    assert len(read_metrics(undisturbed)) == EPOCHS


@pytest.mark.slow
def test_a_job_goes_on_when_a_worker_is_killed(nodes, undisturbed, digits):
    folder = nodes.folder / "killed"
    runs = train(nodes, digits, folder, "--resume", options=["--max-restarts=1"], **RESTARTS)
    wait_for_step(runs, folder, STEPS + 10)
    assert len(runs[1].ranks) == 2
    runs[1].ranks[-1].kill()
    began = time.monotonic()
    finish(runs)
    print(f"over {time.monotonic() - began:.1f} s after the kill")
    assert "exitcode: -9" in runs[1].told()
    assert furthest(folder, undisturbed) == 0


@pytest.mark.slow
def test_all_ranks_end_when_the_cable_is_cut(nodes, undisturbed, digits):
    """And when it is mended, the job goes on from its last checkpoint."""
    folder = nodes.folder / "cut"
    runs = train(nodes, digits, folder, "--timeout", TIMEOUT_S)
    try:
        wait_for_step(runs, folder, STEPS + 10)
        ranks = [rank for run in runs for rank in run.ranks]
        assert len(ranks) == 4
        nodes.cut()
        until(lambda: all(map(has_ended, ranks)), TIMEOUT_S + 10, "the end of all ranks")
    finally:  # the agent that has lost the other's store would wait for it for a minute
        for run in runs:
            run.kill()
    for run, local_rank in [(run, local_rank) for run in runs for local_rank in (0, 1)]:
        rank = local_rank + 2 * runs.index(run)
        assert LOST_PEER.search(run.logs.last_line(rank)), run.logs.text(rank)
    assert json.loads((folder / "summary.json").read_text())["state"] == "failed"
    nodes.mend()
    finish(train(nodes, digits, folder, "--resume", "--timeout", TIMEOUT_S))
    assert furthest(folder, undisturbed) == 0


@pytest.mark.slow
def test_a_job_shrinks_to_one_node_and_grows_back(nodes, digits):
    """Its effective batch stays, and so do its steps: to rounding, with a network that has no kinks."""
    epochs = 24
    exact = ("--epochs", epochs, *SHORT[2:], "--model", "lenet", "--dropout", 0, "--base-lr", 0.01, "--timeout", 10)
    own = (64, SMOOTH, SCRIPT, "--data-dir", digits, *exact, "--checkpoint-every", 0.2)
    divided, folder = ROOT / "tests/support/divided.py", nodes.folder / "shrunk"
    elastic = {"nnodes": "1:2", "options": ["--max-restarts=3", QUICK], **RESTARTS}
    one, other = (node.torchrun(1, divided, *own, "--run-dir", folder, "--resume", **elastic) for node in nodes)
    wait_for_step([one, other], folder, 60)
    other.kill()
    until(lambda: "one of 1" in one.told(), 60, "going on alone")
    wait_for_step([one], folder, saved_step(folder) + 20)
    back = nodes[1].torchrun(1, divided, *own, "--run-dir", folder, "--resume", **elastic)
    until(lambda: "one of 2" in back.told() or back.process.poll() is not None, 60, "going on together")
    finish([one, back])
    told = [line for line in one.told().splitlines() if line.startswith("one of")]
    assert told == ["one of 2", "one of 1", "one of 2"]
    assert [row["epoch"] for row in read_metrics(folder)] == [*range(1, epochs + 1)]
    finish([node.torchrun(1, divided, *own, "--run-dir", nodes.folder / "whole") for node in nodes])
    assert furthest(folder, nodes.folder / "whole") < 1e-3
