"""A program that is forked off a process with torch in it does what it does in a process of its own."""

import json
import os
import subprocess
import sys

import psutil
import pytest
import torch
from conftest import until

from utils.launch import processes as system
from utils.launch.warm import WarmProcess

COLD = {"LOCKSTEP_COLD": "1"}

# What a program can find out about how it was started, as JSON.
PROBE = """
import json, os, signal, sys
import torch
names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGCHLD", "SIGPIPE", "SIGUSR1")
mine = {name: told for name, told in os.environ.items() if name not in ("LOCKSTEP_COLD", "LOCKSTEP_PARENT")}
found = {
    "name": __name__, "argv": sys.argv, "path": sys.path[0], "folder": os.getcwd(), "environment": mine,
    "signals": [str(signal.getsignal(getattr(signal, name))) for name in names],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "leads a session": os.getsid(0) == os.getpid(), "input": sys.stdin.read(), "threads": torch.get_num_threads(),
    "encodings": [sys.stdout.encoding, sys.stderr.encoding],
    "utils": sorted(one for one in sys.modules if one[:5] == "utils"),
    "parent": os.environ["LOCKSTEP_PARENT"] == str(os.getpid()), "descriptors": len(os.listdir("/proc/self/fd")),
}
print(json.dumps(found))
"""

ENDS = {
    "by itself": "print('all')",
    "with a code": "import sys; sys.exit(3)",
    "with a word": "import sys; sys.exit('choose another folder')",
    "with a thing that is no word": "import sys; sys.exit(['choose', 2])",
    "by an error": "def fall(depth):\n    return fall(depth - 1) if depth else 1 / 0\n\nfall(3)",
    "by an error with a cause": "try:\n    {}['a']\nexcept KeyError as error:\n    raise ValueError('b') from error",
    "by an error in its text": "print('never')\ndef broken(:\n    pass",
    "by an interrupt": "raise KeyboardInterrupt",
    "by a signal": "import os; os.kill(os.getpid(), 15)",
    "at once": "import os; print('said', flush=True); os._exit(7)",
    "with its handlers": "import atexit; atexit.register(print, 'last'); print('first')",
    "with its threads": (
        "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()"
    ),
    "without an end of line": "import sys; sys.stdout.write('half'); sys.stderr.write('other half')",
}


def run(command, log, env=None, **options):
    """Run a Python command to its end and return it, with its exit code and what it printed."""
    process = system.start(system.tethered([sys.executable, *command], log), env=env, **options)
    code = process.wait(timeout=60)
    return process, code, log.read_text() if log.exists() else ""


def both(command, folder, env=None, **options):
    """Return exit code and output of a command, started warm and started cold."""
    warm, *told_warm = run(command, folder / "warm.log", env, **options)
    cold, *told_cold = run(command, folder / "cold.log", (env or {}) | COLD, **options)
    assert isinstance(warm, WarmProcess) and isinstance(cold, subprocess.Popen)
    return told_warm, told_cold


@pytest.mark.parametrize("threads", [1, 2])
def test_a_program_finds_what_it_finds_in_a_process_of_its_own(threads, script, tmp_path):
    path = script(PROBE)
    warm, cold = both([path, "one word", "-u"], tmp_path, {"MARK": "1"}, threads=threads)
    assert json.loads(warm[1]) == json.loads(cold[1])
    assert warm[0] == cold[0] == 0 and json.loads(warm[1])["threads"] == threads


def test_a_module_is_run_as_python_does(script, tmp_path, monkeypatch):
    script(PROBE, "probed.py")
    monkeypatch.chdir(tmp_path)
    warm, cold = both(["-m", "probed", "word"], tmp_path)
    assert json.loads(warm[1]) == json.loads(cold[1])


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS)
def test_a_program_ends_as_in_a_process_of_its_own(text, script, tmp_path):
    warm, cold = both([script(text)], tmp_path)
    assert warm == cold


def test_a_program_finds_the_utils_beside_it(script, tmp_path):
    script("MINE = 'beside'", "utils.py")
    warm, cold = both([script("import utils\nprint(utils.MINE)")], tmp_path)
    assert warm == cold == [0, "beside\n"]


def test_each_process_draws_its_own_random_numbers(script, tmp_path):
    path = script("import random, numpy\nprint(random.random(), numpy.random.rand())")
    assert len({number for at in range(3) for number in run([path], tmp_path / f"{at}.log")[2].split()}) == 6


def test_what_torch_reads_as_it_is_imported_is_not_overlooked(script, tmp_path):
    path = script("import torch\nprint(torch.backends.cpu.get_cpu_capability())")
    process, _, told = run([path], tmp_path / "log", {"ATEN_CPU_CAPABILITY": "default"})
    assert told == "DEFAULT\n" and isinstance(process, subprocess.Popen)


@pytest.mark.slow
def test_what_torch_sets_itself_as_it_is_imported_makes_no_program_start_cold(script, tmp_path):
    starter = script(
        "import os, sys\ndel os.environ['LOCKSTEP_COLD']\n"
        "from utils.launch import processes as system\nsystem.warm_up()\n"
        "import torch._dynamo\n"
        "ranks = {'WORLD_SIZE': '1', 'TORCHELASTIC_USE_AGENT_STORE': 'True'}\n"
        "process = system.start(system.tethered([sys.executable, sys.argv[1]]), env=ranks)\n"
        "print(type(process).__name__, process.wait(timeout=60))"
    )
    inner = script("print('done', flush=True)", "inner.py")
    assert run([starter, inner], tmp_path / "log", COLD)[1:] == (0, "done\nWarmProcess 0\n")


def test_a_process_is_found_by_its_command(script, tmp_path):
    path = script("import time\ntime.sleep(60)", "found by its name.py")
    process = system.start(system.tethered([sys.executable, "-u", path, "--epochs", 3], tmp_path / "log"))
    wanted = [sys.executable, "-u", str(path), "--epochs", "3"]
    until(lambda: [word for word in psutil.Process(process.pid).cmdline() if word] == wanted, 60, "the command line")
    process.kill()
    assert process.wait(timeout=60) == -9


def test_pipes_reach_the_program_and_close_with_it(script, tmp_path):
    path = script("import sys\nfor line in sys.stdin:\n    print(line.upper(), end='', flush=True)")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = system.start(system.tethered([sys.executable, path]), **pipes)
    assert isinstance(process, WarmProcess)
    for word in ("one", "two"):
        process.stdin.write(word + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == word.upper() + "\n"
    process.stdin.close()
    assert process.stdout.read() == "" and process.wait(timeout=60) == 0


def test_programs_end_with_their_server_and_the_next_gets_another(script, tmp_path):
    path = script("import os, time\nprint(os.getppid(), flush=True)\ntime.sleep(300)")
    log = tmp_path / "log"
    process = system.start(system.tethered([sys.executable, path], log))
    until(lambda: log.exists() and log.read_text().endswith("\n"), 60, "the server's number")
    psutil.Process(int(log.read_text())).kill()
    assert process.wait(timeout=60) == -9
    assert run([script("print('again')")], tmp_path / "next.log")[1:] == (0, "again\n")


def test_the_server_outlives_the_folder_that_it_was_started_in(script, tmp_path):
    program = (
        "import os, sys, tempfile\nfrom utils.launch import processes as system\n"
        "with tempfile.TemporaryDirectory() as folder:\n    os.chdir(folder)\n    system.warm_up()\n"
        "os.chdir('/')\nprint(system.start(system.tethered([sys.executable, sys.argv[1]])).wait(timeout=60))"
    )
    path = script("import torch\nprint(torch.ones(300, 300).mm(torch.ones(300, 300)).mean().item())", "inner.py")
    assert run([script(program), path], tmp_path / "log")[1:] == (0, "300.0\n0\n")


def test_a_process_whose_server_has_died_meanwhile_ends_before_its_first_line(script, tmp_path):
    program = (
        "import os, sys\nfrom utils.launch import processes as system\nfrom utils.launch.forking import become\n"
        "command = system.tethered([sys.executable, sys.argv[1]])\n"
        "if (pid := os.fork()) == 0:\n    become(command, dict(os.environ), parent=1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert run([script(program), script("print('never')", "inner.py")], tmp_path / "log", COLD)[1:] == (0, "1\n")


def test_beside_a_gpu_programs_start_cold(script, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    started, *told = run([script("print('here')")], tmp_path / "log")
    assert isinstance(started, subprocess.Popen) and told == [0, "here\n"]


def test_an_environment_too_long_for_a_message_starts_cold(script, tmp_path):
    long = {f"LONG_{at}": "x" * 100_000 for at in range(20)}
    process, code, told = run([script("import os\nprint(len(os.environ['LONG_19']))")], tmp_path / "log", long)
    assert (code, told) == (0, "100000\n") and isinstance(process, subprocess.Popen)


def test_nothing_is_left_when_the_program_ends_that_started_others(script, tmp_path):
    sleeper = script("import time\ntime.sleep(300)", "sleeper.py")
    starter = script(
        "import sys\nfrom utils.launch import processes as system\n"
        "process = system.start(system.tethered([sys.executable, sys.argv[1]], sys.argv[2]))\n"
        "print(process.pid, *[one.pid for one in system.family(__import__('os').getpid())], flush=True)"
    )
    _, code, told = run([starter, sleeper, tmp_path / "inner.log"], tmp_path / "log")
    assert code == 0
    left = [int(word) for word in told.split() if psutil.pid_exists(int(word))]
    until(lambda: not any(map(psutil.pid_exists, left)), 60, "the end of every process")
    assert os.getpid() not in left
