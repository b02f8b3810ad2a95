"""Try a script: run it as several ranks with the recorder beside it, and bring back what it did.

A trial ends when the script does, soon after its first rank fails, when it hangs, or after ``LIMIT_S``. It hangs
where for ``SILENT_S`` seconds it told the recorder nothing and then computed nothing for ``IDLE_S`` either (a
compiler may be at work for long). No process stays behind.
"""

import json
import os
import re
import shutil
import signal
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from assessment.starters.regions import ROOT
from assessment.trials.artifacts import Artifacts
from assessment.trials.conversation import LostError
from assessment.trials.data import TrialData
from assessment.trials.evidence import Evidence, Rank
from assessment.trials.forked_ranks import ForkedRanks, Idle

LIMIT_S, SILENT_S, IDLE_S = 60, 7, 3
SAVED = Path(__file__).with_name("saved.py")  # who reads strangers' weights
UNREAD = {"names": [], "sketches": {}, "predictions": None}
RECORD = (".lock", "config.json", "metrics.csv", "model.pt", "summary.json")
PROBE_LIMIT_S = 12  # for calls that take no time
EVIDENCE_BYTES, MOST_LOG = 60_000_000, 100_000
# What the recorded runs leave to chance or to the processor otherwise; a script may not know these flags.
CALM = {"augment": "none", "precision": "float32", "dropout": "0"}
# What makes trials alike on any machine: no bars, and three ranks on the CPU.
CALM_ENVIRONMENT = {"TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True)
class Run:
    """What is run: a script as so many ranks, with which arguments, on what data, and how it is disturbed.

    ``settings`` and ``flags`` become its arguments: by name, without dashes; a value of None makes a switch.
    ``apart`` gives every rank a folder of its own for its record. Without being watched it leaves no evidence.
    ``{machine}`` in ``data_dir`` stands for the number of a rank's machine.
    """

    script: Path
    processes: int
    settings: dict
    flags: dict
    data: TrialData  # in which the images of its evidence are found
    dataset: str  # what the script is told that it trains on ...
    data_dir: Path  # ... and where
    delays: dict = field(default_factory=dict)  # seconds, or the name of a signal
    apart: bool = False
    is_watched: bool = True  # by the recorder; else in processes that share nothing
    is_calm: bool = False  # the network as recorder/calm.py has it
    draws_alike: bool = False  # what is drawn as recorder/draws.py has it
    probe: str = ""  # which functions of the script are called instead (recorder/probes.py)
    machines: int = 1  # that the ranks take themselves to be on, each with a folder of data of its own
    earlier: Path | None = None  # the folder of the record of a run that it finds in its own
    is_damaged: bool = False  # the file beside that record which was written last
    prepared: Path | None = None  # where ``data`` lies, out of the script's reach

    @property
    def data_dirs(self):
        """Return the folder of data of each machine."""
        return [Path(str(self.data_dir).replace("{machine}", str(machine))) for machine in range(self.machines)]

    @property
    def is_to_end(self):
        """Say whether it is to end before its time: killed, told to stop, or given numbers that are none."""
        return any(isinstance(one, str) for one in self.delays.values())

    def machine(self, rank):
        """Return the number of the machine that ``rank`` is on."""
        return rank // (self.processes // self.machines)

    def argv(self, run_dir):
        """Return the script and its arguments."""
        argv = [self.script.absolute(), "--dataset", self.dataset, "--data-dir", self.data_dir, "--run-dir", run_dir]
        for name, value in (self.settings | self.flags).items():
            argv += [f"--{name.replace('_', '-')}", *([] if value is None else [value])]
        return argv


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    state: str  # finished, failed or hung
    exits: dict  # the exit code of each rank that ended by itself
    failure: str  # the first failing rank's own output
    logs: list  # the end of what each rank printed
    stacks: list  # where each rank stood when the run hung


@dataclass
class Trial:
    """One run of a script: its evidence, how it ended, and what it left: all that a law judges by."""

    run: Run
    outcome: Outcome
    evidence: Evidence
    artifacts: Artifacts
    reference: "Trial | None" = None  # the run that this one is compared with
    before: "Trial | None" = None  # the run in whose folders it is
    undivided: tuple | None = None  # a run of many processes, and one of one process with the same global batches


def attempt(server, run, folder):
    """Let ``server`` fork off the ranks of ``run``, with what they leave in ``folder``, and return the ``Trial``."""
    evidence = trial_folder(server, folder)
    run_dir = evidence / ("run-0" if run.apart else "run")
    if run.earlier:
        _lay_out(server, run.earlier, evidence)
        if run.is_damaged:
            _damage(evidence / run.earlier.name)
    argv = run.argv(evidence / "run-{rank}" if run.apart else run_dir)
    beside = _beside(evidence, [*run.data_dirs, run_dir], run.delays) if run.is_watched else {}
    beside |= {"LOCKSTEP_CALM": "1"} if run.is_calm else {}
    beside |= {"LOCKSTEP_DRAWS": "alike"} if run.draws_alike else {}
    beside |= {"LOCKSTEP_PROBE": run.probe} if run.probe else {}
    beside |= CALM_ENVIRONMENT
    ranks = ForkedRanks(server, argv, run.processes, beside, evidence, run.machines, are_apart=not run.is_watched)
    try:
        is_over = ranks.wait(PROBE_LIMIT_S if run.probe else LIMIT_S, Stillness(server, evidence))
        if not is_over:
            _ask_for_stacks(server, evidence)
    finally:
        ranks.kill()
    server.settle(evidence)
    outcome = Outcome(
        state="failed" if any(ranks.exits.values()) else "finished" if is_over else "hung",
        exits=ranks.exits,
        failure=ranks.failure(),
        logs=[ranks.logs.text(rank)[-MOST_LOG:] for rank in range(run.processes)],
        stacks=[] if is_over else _stacks(evidence, run.processes),
    )
    seen = _evidence(evidence, run, outcome)
    kept = server.keep(evidence) / run_dir.name
    told = partial(_saved, server, run, kept / "model.pt") if server.is_wrapped else None
    return Trial(run, outcome, seen, Artifacts(run_dir, run.data, told, kept))


def _lay_out(server, earlier, folder):
    """Copy the records that an earlier run left beside and in ``earlier`` to ``folder``, for ranks to write there."""
    for place in earlier.parent.glob(f"{earlier.name.removesuffix('-0')}*"):
        copied = folder / place.name
        with suppress(OSError, shutil.Error):  # a pipe, say: of a learner's own; strangers' files are plain by now
            if place.is_dir():
                shutil.copytree(place, copied, symlinks=True)
            elif place.is_file():
                shutil.copyfile(place, copied, follow_symlinks=False)
        for path in (copied, *copied.rglob("*")):
            if path.exists() and not path.is_symlink():
                server.open_to_ranks(path)


def _damage(folder):
    """Cut the file in ``folder`` that was written last to half its length; those of the record stay whole."""
    paths = [one for one in folder.rglob("*") if one.is_file() and one.name not in RECORD]
    if paths:
        last = max(paths, key=lambda one: one.stat().st_mtime_ns)
        os.truncate(last, last.stat().st_size // 2)


def _saved(server, run, left):
    """Have what a stranger's run has left examined where it may do harm; return what ``saved.examined`` says of it."""
    if not left.exists():
        return None
    weights = trial_folder(server, server.work) / "model.pt"
    shutil.copyfile(left, weights)
    try:
        reading = ForkedRanks(server, [SAVED, weights, run.data.name, run.prepared], 1)
        is_over = reading.wait(server.patience_s)
        reading.kill()
        if is_over and reading.exits == {0: 0}:
            found = json.loads(reading.logs.text(0).strip().splitlines()[-1])
            if found["predictions"] and run.data.order is not None:
                found["predictions"] = [found["predictions"][at] for at in run.data.order.tolist()]
            return found
        problem = reading.logs.last_line(0)[:200] if is_over else f"it takes more than {server.patience_s:g} s"
        server.patience_s *= 1 if is_over else 0.5  # what one run left to harm is in all that it leaves
    except LostError as lost:
        problem = str(lost)
    except (ValueError, IndexError, KeyError, TypeError):
        problem = "what it holds cannot be told"
    return UNREAD | {"problem": f"model.pt cannot be read: {problem}"}


def trial_folder(server, folder):
    """Make a folder in ``folder`` for what one run leaves behind, and return its path."""
    made = Path(tempfile.mkdtemp(prefix="trial-", dir=folder))
    server.open_to_ranks(made)
    return made


def _evidence(folder, run, outcome):
    """Read what the recorder wrote; where a script has meddled with it, nothing was seen."""
    try:
        if sum(path.stat().st_size for path in folder.glob("*.jsonl")) < EVIDENCE_BYTES:
            return Evidence.read(folder, run.processes, run.data, run.settings, outcome.state == "finished")
    except Exception:  # whatever it is, a script that was left alone does not make it
        pass
    return Evidence([Rank(rank, []) for rank in range(run.processes)], run.data, run.settings)


def _beside(evidence, watched, delays):
    """Return the environment that the recorder needs."""
    beside = [str(ROOT / "assessment/recorder/beside"), str(ROOT), os.environ.get("PYTHONPATH")]
    return {
        "LOCKSTEP_EVIDENCE": str(evidence),
        "LOCKSTEP_WATCHED": json.dumps([str(folder) for folder in watched]),
        "LOCKSTEP_DELAYS": json.dumps(delays or {}),
        "PYTHONPATH": os.pathsep.join(filter(None, beside)),  # for processes that a rank starts itself
    }


class Stillness:
    """Say, asked again and again, whether a run has come to a stop."""

    def __init__(self, server, evidence):
        self.evidence, self.is_idle = evidence, Idle(server, IDLE_S)

    def __call__(self):
        told = []
        with suppress(OSError):  # a script may have removed or hidden it meanwhile
            told += [path.lstat().st_mtime for path in self.evidence.glob("*.jsonl")]
        latest = max(told, default=time.time())
        return time.time() - latest >= SILENT_S and self.is_idle()


def _ask_for_stacks(server, evidence):
    """Have each rank write where it stands."""
    server.signal([int(path.stem) for path in evidence.glob("*.jsonl") if path.stem.isdecimal()], signal.SIGUSR1)
    time.sleep(0.5)


def _stacks(evidence, processes):
    """Return where each rank stood when it was asked."""
    found = [""] * processes
    for path in evidence.glob("*.stack"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            first = path.with_suffix(".jsonl").read_text(encoding="utf-8").partition("\n")[0]
            rank = int(json.loads(first)["rank"])
            if path.stat().st_size and 0 <= rank < processes:
                found[rank] = path.read_text(encoding="utf-8", errors="replace")
    return found


def unknown_flags(trial):
    """Return the names of flags that a script said it does not know, from what it printed."""
    said = re.search(r"unrecognized arguments: (.*)|[Nn]o such option:? (\S+)", trial.outcome.failure)
    return {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", said[0])} if said else set()
