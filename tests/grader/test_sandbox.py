"""The sandbox keeps strangers in: each kind that this machine allows is tried with real processes."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, need

from assessment.grader.control_group import control_group
from assessment.grader.sandbox import BUBBLEWRAP, MASKED, MEGABYTE, NONE, UNSHARE, Limits, Sandbox, best_kind, lacks
from assessment.grader.watchdog import Watch
from assessment.trials.conversation import LostError
from assessment.trials.fork_server import ForkServer
from assessment.trials.forked_ranks import ForkedRanks
from assessment.trials.salvage import remove
from assessment.trials.trial import trial_folder
from utils.launch.tether import JOIN_SESSION_KEYRING, KEYCTL

LIMITS = Limits(wall_s=60, cpu_s=30, memory_mb=3000, processes=100, file_mb=20, disk_mb=50, output_mb=1)
LOOKS = """
import json, os, socket, sys
def reaches():
    try:
        socket.create_connection(("192.0.2.1", 9), 2)
    except OSError as error:
        return error.errno
def writes(path):
    try:
        open(path, "w").close()
        return True
    except OSError:
        return False
def reads(path):
    try:
        return len(open(path, "rb").read())
    except OSError:
        return 0
print(json.dumps({
    "top": sorted(os.listdir("/")), "network": reaches(), "processes": sum(map(str.isdigit, os.listdir("/proc"))),
    "writes": [path for path in sys.argv[2:] if writes(path)], "reads": reads(sys.argv[1]), "uid": os.getuid(),
    "resolves": socket.gethostbyname("localhost"), "secrets": [name for name in os.environ if "SECRET" in name],
}))
"""

# Fills files that have no name, of 10 MB each.
NAMELESS = """
import time
held = []
def deleted():
    number = os.open('x', os.O_CREAT | os.O_WRONLY)
    os.unlink('x')
    return number
def fill(make, megabytes):
    for _ in range(megabytes // 10):
        held.append(make())
        os.write(held[-1], bytes(10_000_000))
    time.sleep(60)
"""
# Keeps a key in the kernel's keyring of its session (add_key(2)), and tells whether there was one (keyctl(2)).
KEYS = """
import ctypes, platform
add, keyctl = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
call, session = ctypes.CDLL(None).syscall, ctypes.c_long(-3)
print("found" if call(keyctl, 10, session, b"user", b"carried", 0) > 0 else "nothing")
call(add, b"user", b"carried", b"weights", 7, session)
"""
# Looks again and again at what all processes hold open, while further ranks and their store begin.
LISTENS = """
import json, os, time
held, end = set(), time.monotonic() + 2
while time.monotonic() < end:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            held |= {os.readlink(f"/proc/{pid}/fd/{number}") for number in os.listdir(f"/proc/{pid}/fd")}
        except OSError:
            pass
print(json.dumps(sorted(held)))
"""


@pytest.fixture(scope="module")
def guarded():
    """Return a server in a sandbox, and the folder that its ranks can write to."""
    need(best_kind() != NONE, "no sandbox works on this machine")
    with tempfile.TemporaryDirectory(prefix="lockstep-sandbox-") as folder:
        work = Path(folder)
        work.chmod(0o777)
        with ForkServer(Sandbox(best_kind(), work, LIMITS).wrap, work) as server:
            yield server, work


@pytest.fixture(params=[BUBBLEWRAP, UNSHARE])
def sandbox(request):
    """Return a sandbox of each kind, with a folder to write to."""
    need(shutil.which({BUBBLEWRAP: "bwrap", UNSHARE: "unshare"}[request.param]), f"{request.param} is not installed")
    work = Path(tempfile.mkdtemp(prefix="lockstep-sandbox-"))
    work.chmod(0o777)
    yield Sandbox(request.param, work, LIMITS)
    shutil.rmtree(work)


def test_a_process_sees_and_changes_little(sandbox, tmp_path, monkeypatch):
    monkeypatch.setenv("A_SECRET", "x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (sandbox.work / "looks.py").write_text(LOOKS)
    places = [outside / "x", ROOT / "utils/x", "/etc/x", "/x", "/usr/x", sandbox.work / "x", "/tmp/x"]
    command = sandbox.wrap(["python3", sandbox.work / "looks.py", MASKED, *places])
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    # Alone: who makes the sandbox has the grader's environment and descriptors, and is not in it.
    assert seen["network"] and seen["processes"] == 1 and seen["resolves"] == "127.0.0.1"
    assert set(seen["writes"]) == {str(sandbox.work / "x"), "/tmp/x"} and not Path("/tmp/x").exists()
    assert seen["secrets"] == [] and seen["reads"] < 100 and (sandbox.work / "x").exists()
    assert os.getuid() or seen["uid"]  # never root
    assert not {"home", "root", "mnt", "opt", "srv", "var"} & set(seen["top"]) - {
        Path(p).parts[1] for p in (ROOT, os.__file__)
    }


def test_an_environment_that_is_a_link_is_found(sandbox, tmp_path, monkeypatch):
    link = tmp_path / "environment"
    link.symlink_to(sys.prefix)
    monkeypatch.setattr(sys, "prefix", str(link))
    python = [link / "bin/python", "-c", "import sys, tqdm; print(sys.prefix, tqdm.__file__)"]
    done = subprocess.run(sandbox.wrap(python), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(str(link)) == 2


@pytest.mark.parametrize(
    "script",
    [
        "x = []\nwhile True: x.append(bytearray(10**8))\n",
        "x = bytearray(10**11)\n",
        "open('x', 'wb').write(bytes(10**8))\n",
    ],
    ids=["memory", "100 GB", "one file"],
)
def test_what_the_system_refuses_fails_the_script(script, guarded):
    server, work = guarded
    (work / "script.py").write_text(f"import os\nos.chdir({str(work)!r})\n{script}")
    ranks = ForkedRanks(server, [work / "script.py"], 1)
    assert ranks.wait(100) and ranks.exits[0] != 0
    ranks.kill()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("import time\nwhile True: time.sleep(1)\n", "more than the 5 s"),
        (
            "import os, time\nfor _ in range(3): os.fork()\nx = b'x' * (8 * 10**8)\ntime.sleep(60)\n",
            "more than 3,000 MB",
        ),
        ("import time\nwhile True: print('x' * 100_000, flush=True), time.sleep(0.01)\n", "printed more than 1 MB"),
        ("for at in range(10**6): open(f'{at}', 'wb').write(bytes(10**7))\n", "wrote more than"),
        ("import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n", "processes and threads"),
        (f"{NAMELESS}fill(lambda: os.memfd_create('x'), 4_000)\n", "more than 3,000 MB"),
        (f"{NAMELESS}fill(deleted, 100)\n", "wrote more than"),
        ("import os, time\nfor _ in range(3000): os.mkdir('x'), os.chdir('x')\ntime.sleep(60)\n", "folders more than"),
    ],
    ids=["waits", "memory of all", "prints", "disk", "fork bomb", "memory files", "deleted files", "deep"],
)
def test_nobody_takes_more_than_the_limits(script, told, request):
    kind = best_kind()
    need(kind != NONE, "no sandbox works on this machine")
    work = Path(tempfile.mkdtemp(prefix="lockstep-sandbox-"))
    request.addfinalizer(lambda: remove(work))  # however deep it is by then
    work.chmod(0o777)
    (work / "script.py").write_text(f"import os\nos.chdir({str(work)!r})\n{script}")
    limits = replace(LIMITS, wall_s=5 if "sleep(1)" in script else 100)
    with ForkServer(Sandbox(kind, work, limits).wrap, work) as server:
        server.exits()  # it takes its time to start
        with Watch(server, limits):
            ranks = ForkedRanks(server, [work / "script.py"], 1)
            with pytest.raises(LostError, match=told):
                ranks.wait(100)
            ranks.kill()


def test_what_a_run_has_left_is_out_of_reach_of_the_next(guarded):
    server, work = guarded
    left = trial_folder(server, work)
    (left / "model.pt").write_bytes(b"weights")
    kept = server.keep(left)
    (work / "script.py").write_text(f"import os, sys\nsys.exit(os.path.exists({str(kept)!r}))\n")
    ranks = ForkedRanks(server, [work / "script.py"], 1)
    assert ranks.wait(100) and ranks.exits == {0: 0}
    ranks.kill()
    assert not left.exists() and (kept / "model.pt").read_bytes() == b"weights"
    remove(server.kept)


# Files in memory that are on their way between two ends of a socket, and open nowhere.
IN_FLIGHT = """
import os, socket, time
held = []
for _ in range(400):
    ends = socket.socketpair()
    number = os.memfd_create('x')
    os.write(number, bytes(10_000_000))
    socket.send_fds(ends[0], [b'x'], [number])
    os.close(number)
    held.append(ends)
time.sleep(60)
"""


def test_memory_that_nobody_holds_open_is_counted_where_the_kernel_counts(request):
    need(best_kind() != NONE, "no sandbox works on this machine")
    work = Path(tempfile.mkdtemp(prefix="lockstep-sandbox-"))
    request.addfinalizer(lambda: remove(work))
    work.chmod(0o777)
    (work / "script.py").write_text(IN_FLIGHT)
    with control_group(LIMITS.memory_mb * MEGABYTE) as group:
        if group is None:
            pytest.skip("this machine lets nobody make a control group")
        with ForkServer(Sandbox(best_kind(), work, LIMITS).wrap, work) as server:
            server.exits()
            with pytest.raises(LostError, match="more than 3,000 MB of memory"), Watch(server, LIMITS, group):
                ForkedRanks(server, [work / "script.py"], 1).wait(50)
                for _ in range(20):  # the rank has been ended; the watch looks again and again
                    server.exits()
                    time.sleep(0.1)
        folder = group.folder
    assert not folder.exists()


def test_no_rank_reaches_what_the_grader_or_its_server_holds(sandbox):
    (sandbox.work / "script.py").write_text(LISTENS)
    with ForkServer(sandbox.wrap, sandbox.work) as server:
        ranks = ForkedRanks(server, [sandbox.work / "script.py"], 6)
        assert ranks.wait(60) and set(ranks.exits.values()) == {0}, ranks.failure()
        held = {one for rank in range(6) for one in json.loads(ranks.logs.text(rank))}
    of_anybody = ("/proc", "/sys", "/usr", "/lib", sys.base_prefix, os.devnull)
    assert str(ranks.logs.path(0)) in held
    assert not {one for one in held if not one.startswith((str(sandbox.work), *of_anybody))}  # no pipe, no socket


def test_no_module_comes_from_where_an_earlier_run_could_write(sandbox):
    scripts = {
        "plants": "open('/tmp/planted.py', 'w').close()\n",
        "takes": "import planted\n",
        "tells": "import sys, site\nprint([one for one in sys.path if one in ('', '/tmp')], site.ENABLE_USER_SITE)\n",
    }
    for name, script in scripts.items():
        (sandbox.work / f"{name}.py").write_text(script)
    with ForkServer(sandbox.wrap, sandbox.work) as server:
        ends = {}
        for name in scripts:
            ranks = ForkedRanks(server, [sandbox.work / f"{name}.py"], 1)
            assert ranks.wait(60)
            ends[name] = ranks.exits[0], ranks.logs.last_line(0)
    assert ends["plants"][0] == 0 and ends["takes"][0] == 1 and "No module named 'planted'" in ends["takes"][1]
    assert ends["tells"] == (0, "[] False")


def test_a_run_whose_server_has_ended_is_lost_and_the_next_has_another(tmp_path):
    (tmp_path / "script.py").write_text("import time\ntime.sleep(600)\n")
    with ForkServer() as server:
        ranks = ForkedRanks(server, [tmp_path / "script.py"], 1)
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(LostError, match="has ended"):
            ranks.wait(30)
        ranks.kill()
        assert ranks.exits == {}
        (tmp_path / "script.py").write_text("print('here')\n")
        ranks = ForkedRanks(server, [tmp_path / "script.py"], 1)
        assert ranks.wait(30) and ranks.exits == {0: 0}


def test_without_a_sandbox_the_grader_says_what_to_do():
    assert lacks(BUBBLEWRAP) is None
    assert "install bubblewrap" in lacks(NONE) and "--no-sandbox" in lacks(NONE)


def test_no_key_goes_from_one_sandbox_to_the_next(sandbox):
    if os.uname().machine not in KEYCTL:
        pytest.skip("the number of keyctl(2) on this machine is not known")
    (sandbox.work / "script.py").write_text(KEYS)
    # Where somebody has logged in, his processes share a keyring; this one has none of its own in CI.
    ctypes.CDLL(None).syscall(KEYCTL[os.uname().machine], JOIN_SESSION_KEYRING, b"lockstep-test")
    told = []
    for _ in range(2):
        with ForkServer(sandbox.wrap, sandbox.work) as server:
            ranks = ForkedRanks(server, [sandbox.work / "script.py"], 1)
            assert ranks.wait(60) and ranks.exits == {0: 0}, ranks.failure()
            told.append(ranks.logs.last_line(0))
    assert told == ["nothing", "nothing"]
