"""Try a script: run it as several ranks with the recorder beside it, and bring back what it did.

A trial ends when the script does, soon after its first rank fails, when it has done nothing for ``SILENT_S``
seconds (it hangs), or after ``LIMIT_S``. No process stays behind.
"""

import json
import os
import re
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import TCPStore

from assessment.evidence import Evidence
from assessment.fork_server import exit_code
from assessment.labs import ROOT
from utils import processes as system
from utils.failures import explain_failure
from utils.ranklogs import RankLogs

LIMIT_S, SILENT_S, GRACE_S, POLL_S = 60, 10, 3, 0.05
# What the recorded runs leave to chance or to the processor otherwise; a script may not know these flags.
CALM = {"augment": "none", "precision": "float32", "dropout": "0"}


@dataclass
class Trial:
    """One run of a script: its evidence, how it ended, and what it left in ``run_dir``."""

    script: Path
    evidence: Evidence
    run_dir: Path
    data_dir: Path
    flags: dict
    delays: dict
    state: str  # finished, failed or hung
    exits: dict  # the exit code of each rank that ended by itself
    failure: str  # the first failing rank's own output
    logs: list  # what each rank printed
    stacks: list  # where each rank stood when the run hung
    seconds: float
    reference: "Trial | None" = None  # the run that this one is compared with
    undivided: tuple | None = None  # a run of many processes, and one of one process with the same global batches


def attempt(server, script, data, folder, *, processes, settings, flags, dataset, data_dir, delays):
    """Run ``script`` as ``processes`` ranks that ``server`` forks off, and return the ``Trial``.

    ``data`` is what the images in its evidence are found in; the script gets ``dataset`` in ``data_dir``.
    ``settings`` and ``flags`` become its arguments: by name, without dashes; a value of None makes a switch.
    """
    began = time.monotonic()
    evidence = Path(tempfile.mkdtemp(prefix="evidence-", dir=folder))
    run_dir, logs = evidence / "run", RankLogs(processes)
    argv = [Path(script).absolute(), "--dataset", dataset, "--data-dir", data_dir, "--run-dir", run_dir]
    for name, value in (settings | flags).items():
        argv += [f"--{name.replace('_', '-')}", *([] if value is None else [value])]
    # The ranks find each other at a port that the system chose for this store, as under torchrun.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = _environment(processes, store.port, evidence, [data_dir, run_dir], delays)
    files = [evidence / f"{rank}.exit" for rank in range(processes)]
    ranks = {"RANK": str, "LOCAL_RANK": str, "GROUP_RANK": lambda _rank: "0"}
    pids = [
        server.fork(argv, env | {name: of(rank) for name, of in ranks.items()}, logs.path(rank), files[rank])
        for rank in range(processes)
    ]
    try:
        is_over = _watch(files, evidence)
        stacks = [] if is_over else _stacks(evidence, processes)
    finally:
        exits = {rank: code for rank, file in enumerate(files) if (code := exit_code(file)) is not None}
        system.kill(set().union(*(system.family(pid) for pid in pids)))
    failed = {rank: code for rank, code in exits.items() if code}
    return Trial(
        Path(script),
        Evidence.read(evidence, processes, data, settings),
        run_dir,
        Path(data_dir),
        flags,
        delays,
        "failed" if failed else "finished" if is_over else "hung",
        exits,
        explain_failure(logs, failed) if failed else "",
        [logs.text(rank) for rank in range(processes)],
        stacks,
        time.monotonic() - began,
    )


def _environment(processes, port, evidence, watched, delays):
    """Return what torchrun puts into the environment of all ranks, and what the recorder needs."""
    beside = [str(ROOT / "assessment/beside"), str(ROOT), os.environ.get("PYTHONPATH")]
    return {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "LOCKSTEP_EVIDENCE": str(evidence),
        "LOCKSTEP_WATCHED": json.dumps([str(folder) for folder in watched]),
        "LOCKSTEP_DELAYS": json.dumps(delays),
        "PYTHONPATH": os.pathsep.join(filter(None, beside)),  # for processes that a rank starts itself
        "TQDM_DISABLE": "1",
        "CUDA_VISIBLE_DEVICES": "",  # trials of three ranks run alike on any machine: on the CPU
    }


def _watch(files, evidence):
    """Wait until all ranks ended, or a little longer than the first failure; False where they do nothing more."""
    began, deadline = time.monotonic(), None
    while None in (codes := [exit_code(file) for file in files]):
        time.sleep(POLL_S)
        if deadline is None and any(codes):
            deadline = time.monotonic() + GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            return True
        latest = max((path.stat().st_mtime for path in evidence.glob("*.jsonl")), default=time.time())
        if time.time() - latest > SILENT_S or time.monotonic() - began > LIMIT_S:
            return False
    return True


def _stacks(evidence, processes):
    """Return where each rank stands: the stack that it writes when asked by signal."""
    for path in evidence.glob("*.jsonl"):
        with suppress(ProcessLookupError):
            os.kill(int(path.stem), signal.SIGUSR1)
    time.sleep(0.5)
    found = [""] * processes
    for path in evidence.glob("*.stack"):
        first = path.with_suffix(".jsonl").read_text(encoding="utf-8").partition("\n")[0]
        rank = int(json.loads(first)["rank"])
        if path.stat().st_size and rank < processes:
            found[rank] = path.read_text(encoding="utf-8")
    return found


def unknown_flags(trial):
    """Return the names of flags that a script said it does not know, from what it printed."""
    said = re.search(r"unrecognized arguments: (.*)|[Nn]o such option:? (\S+)", trial.failure)
    return {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", said[0])} if said else set()
