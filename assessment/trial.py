"""Try a script: run it with the recorder beside it, and bring back what it did.

A trial ends when the script does, when it has done nothing for ``SILENT_S`` seconds (it hangs) or after
``LIMIT_S``. No process stays behind.
"""

import json
import os
import re
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from assessment.evidence import Evidence
from utils.launch import launch

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S, SILENT_S, START_S = 60, 12, 25
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
    state: str  # finished, failed or hung
    failure: str  # the first failing rank's own output
    logs: list  # what each rank printed
    stacks: list  # where each rank stood when the run hung
    delays: dict
    seconds: float
    reference: "Trial | None" = None  # the run that this one is compared with
    undivided: tuple | None = None  # a run of many processes, and one of one process with the same global batches


def attempt(script, data, folder, *, processes, settings, flags, dataset, data_dir, delays):
    """Run ``script`` as ``processes`` ranks and return the ``Trial``.

    ``data`` is what the images in its evidence are found in; the script gets ``dataset`` in ``data_dir``.
    ``settings`` and ``flags`` become its arguments: by name, without dashes; a value of None makes a switch.
    """
    evidence = Path(tempfile.mkdtemp(prefix="evidence-", dir=folder))
    run_dir = evidence / "run"
    args = ["--dataset", dataset, "--data-dir", data_dir]
    for name, value in (settings | flags).items():
        args += [f"--{name.replace('_', '-')}", *([] if value is None else [value])]
    watched = [str(data_dir), str(run_dir)]
    beside = [str(ROOT / "assessment/beside"), str(ROOT), os.environ.get("PYTHONPATH")]
    env = {
        "LOCKSTEP_EVIDENCE": str(evidence),
        "LOCKSTEP_WATCHED": json.dumps(watched),
        "LOCKSTEP_DELAYS": json.dumps(delays),
        "PYTHONPATH": os.pathsep.join(filter(None, beside)),
        "TQDM_DISABLE": "1",
    }
    began = time.monotonic()
    run = launch(script, *args, processes=processes, run_dir=run_dir, threads=1, env=env)
    try:
        is_over = _watch(run, evidence)
        stacks = [] if is_over else _stacks(run, evidence, processes)
    finally:
        run.stop()
    state = run.state if is_over else "hung"
    return Trial(
        Path(script),
        Evidence.read(evidence, processes, data, settings),
        run_dir,
        data_dir,
        flags,
        state,
        run.failure() if state == "failed" else "",
        [run.log(rank) for rank in range(processes)],
        stacks,
        delays,
        time.monotonic() - began,
    )


def _watch(run, evidence):
    """Wait until ``run`` ends and return True, or False where it has stopped doing anything."""
    began = time.monotonic()
    while run.state == "running":
        run.wait(timeout=0.2)
        written = [path.stat().st_mtime for path in evidence.glob("*.jsonl")]
        silent = time.time() - max(written) if written else 0.0
        waited = time.monotonic() - began
        if waited > LIMIT_S or silent > SILENT_S or (not written and waited > START_S):
            return False
    return True


def _stacks(run, evidence, processes):
    """Return where each rank stands: the stack that it writes when asked by signal."""
    for path in evidence.glob("*.jsonl"):
        try:
            os.kill(int(path.stem), signal.SIGUSR1)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
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
