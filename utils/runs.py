"""A run's record on disk, and the one safe way to end a training process.

A run's folder holds ``config.json`` (the settings), ``metrics.csv`` (a row for each finished epoch),
``model.pt`` (the weights after the last finished epoch) and ``summary.json`` (how it went). Rank 0
writes it; whatever ends the process, the record is whole up to the last finished epoch.
"""

import atexit
import csv
import hashlib
import json
import os
import re
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from filelock import FileLock, Timeout

from utils.errors import UserError
from utils.files import cannot_write, refuse_special, written_whole

COLUMNS = (
    "epoch",
    "time_s",
    "epoch_time_s",
    "images_per_s",
    "lr",
    "train_loss",
    "train_accuracy",
    "val_loss",
    "val_accuracy",
)
# Where things lie is no setting of the training, nor is what it goes on from.
ELSEWHERE = ("data_dir", "run_dir", "resume", "checkpoint_every")
OF_A_RUN = ("metrics.csv", "model.pt", "summary.json")  # beside config.json, which comes first
DIVIDED = ("world_size", "batch_size")  # what may change where a run goes on with the same effective batch


def run_folder(script, args, defaults, world_size, runs_dir="runs"):
    """Return ``runs/<script>-<settings>``: the number of processes and every setting that is no default.

    ``args`` and ``defaults`` are mappings of settings; ``batch_size`` is a process's, ``global_batch_size``
    that of all together. Names longer than a file name may be end in a hash of the rest.
    """
    batch = (
        f"{world_size}x{args['batch_size']}" if "batch_size" in args else f"{args['global_batch_size']}on{world_size}"
    )
    changed = [
        f"{name.replace('_', '-')}={_plain(value)}"
        for name, value in sorted(args.items())
        if value != defaults.get(name) and name not in ELSEWHERE
    ]
    name = "-".join([Path(script).stem, batch, *changed])
    if len(name) > 160:
        name = f"{name[:150]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return Path(runs_dir) / name


def folder_for(name, *args, runs_dir="runs"):
    """Return ``runs/<name>-<hash>`` for a script's arguments: other arguments get another folder."""
    digest = hashlib.sha256(" ".join(map(str, args)).encode()).hexdigest()[:8]
    return Path(runs_dir) / f"{name}-{digest}"


def _plain(value):
    """Return ``value`` as text that may stand in a file name, different for different values."""
    text = str(value)
    plain = re.sub(r"[^A-Za-z0-9_.,+]", "_", text)
    return plain if plain == text else f"{plain[-24:]}_{hashlib.sha256(os.fsencode(text)).hexdigest()[:6]}"


class Record:
    """Write the record of one run into ``run_dir``; make it on rank 0 alone.

    ``config`` is a mapping of all settings. The same settings write the run anew; a folder that holds
    a run with other settings, or one that is being written, is refused with a ``UserError``. From then
    on SIGTERM and Ctrl-C leave the state ``stopped``, an error leaves ``failed``.

    ``goes_on_from`` is what ``state()`` returned at some time of the same run, on as many processes or on others: the
    record is then what it was at that time, whatever was written since.
    """

    def __init__(self, run_dir, config, *, world_size, effective_batch, goes_on_from=None):
        self.folder = Path(run_dir)
        config = {name: value for name, value in config.items() if name not in ELSEWHERE}
        self._config = config | {"world_size": world_size}
        self._writing, self._signal = False, None
        self.summary = {
            "world_size": world_size,
            "effective_batch": effective_batch,
            "epochs": 0,
            "best_val_accuracy": None,
            "last_val_accuracy": None,
            "target_reached": False,
            "state": "running",
        }
        self._rows, self._model = [], None  # of the epochs that have finished; the weights after the last of them
        self._open(goes_on_from)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        atexit.register(self._end, "failed")

    def _open(self, goes_on_from):
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.folder / ".lock")
            self._lock.acquire(timeout=0)
            self._refuse_other_settings(DIVIDED if goes_on_from else ())
            write_json(self.folder / "config.json", self._config)
            for name in OF_A_RUN:
                (self.folder / name).unlink(missing_ok=True)
            self._restore(goes_on_from or {})
        except Timeout:
            raise UserError(f"another run is writing to {self.folder}: stop it or choose another --run-dir") from None
        except OSError as error:
            raise UserError(cannot_write(error.filename or self.folder / "metrics.csv", error)) from error
        write_json(self.folder / "summary.json", self.summary)

    def state(self):
        """Return what the record holds, as plain values and tensors: another ``Record`` goes on from that."""
        return {"rows": list(self._rows), "summary": dict(self.summary), "model": self._model}

    def _restore(self, state):
        self._rows, self._model = list(state.get("rows", ())), state.get("model")
        told = state.get("summary", {})
        self.summary |= {name: one for name, one in told.items() if name not in ("world_size", "state")}
        with written_whole(self.folder / "metrics.csv") as part:
            part.write_text("\n".join([",".join(COLUMNS), *self._rows, ""]), encoding="utf-8")
        if self._model is not None:
            self._save_model()

    def _save_model(self):
        with written_whole(self.folder / "model.pt") as part:
            torch.save(self._model, part)

    def _append(self, line):
        with open(self.folder / "metrics.csv", "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _refuse_other_settings(self, but):
        path = self.folder / "config.json"
        if not path.exists():
            foreign = next((name for name in OF_A_RUN if (self.folder / name).exists()), None)
            if foreign:
                raise UserError(f"{self.folder / foreign} is of no run of the course: choose another --run-dir")
            return
        there = read_json(path)
        if not isinstance(there, dict):
            raise UserError(f"{path} is damaged (it holds no settings): remove it")
        for name in sorted((there.keys() | self._config.keys()) - {*but}):
            old, asked = there.get(name), json.loads(json.dumps(self._config.get(name)))
            if old != asked:
                raise UserError(
                    f"{self.folder} holds a run with other settings ({name} is {old} there, {asked} here):"
                    " choose another --run-dir, or remove that folder"
                )

    def epoch(self, module, *, target_reached=False, **row):
        """Write down a finished epoch: its ``row`` (``COLUMNS`` without epoch) and the weights of the bare ``module``.

        ``time_s`` and ``epoch_time_s`` are seconds of training without validation, ``images_per_s`` is
        counted over all ranks, accuracies run from 0 to 1. Raises ``UserError`` where somebody has removed the record
        meanwhile: half of one is none.
        """
        if not (self.folder / "metrics.csv").exists():
            raise UserError(f"{self.folder} has been removed or moved while the run went on: start the run again")
        self._writing = True
        self._model = {name: one.detach().to("cpu", copy=True) for name, one in module.state_dict().items()}
        self._save_model()
        self.summary["epochs"] += 1
        self.summary["last_val_accuracy"] = row["val_accuracy"]
        best = self.summary["best_val_accuracy"]
        self.summary["best_val_accuracy"] = max(row["val_accuracy"], best or 0.0)
        self.summary["target_reached"] = target_reached
        row = {"epoch": self.summary["epochs"]} | row
        self._rows.append(",".join(str(row[name]) for name in COLUMNS))
        try:
            self._append(self._rows[-1])
        except OSError as error:
            raise UserError(cannot_write(self.folder / "metrics.csv", error)) from error
        write_json(self.folder / "summary.json", self.summary)
        self._writing = False
        if self._signal is not None:
            self._on_signal(self._signal, None)

    def _on_signal(self, number, _frame):
        """Stop at once, or where an epoch is being written down, right after."""
        self._signal = number
        if not self._writing:
            self._end("stopped")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + number)

    def _end(self, state):
        if self.summary["state"] == "running" and self.folder.exists():
            self.summary["state"] = state
            write_json(self.folder / "summary.json", self.summary)


def finish(record=None, stopped_by=None):
    """End this process with code 0 once every rank is done; ``record`` is rank 0's, then ``finished``.

    ``stopped_by`` is the number of the signal that all ranks end by, where one does: then the record says ``stopped``,
    and the code is 128 more. Nothing runs after it. The process leaves through ``os._exit``: on the CPU, gloo's threads
    abort a few in a hundred correct runs while the interpreter shuts down.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    if record is not None:
        record._end("stopped" if stopped_by else "finished")
    os._exit(128 + stopped_by if stopped_by else 0)


def read_metrics(run_dir):
    """Return the rows of ``metrics.csv`` as dictionaries of numbers; [] where no epoch has finished."""
    path = Path(run_dir) / "metrics.csv"
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    whole_lines = text[: text.rfind("\n") + 1].splitlines()  # the last may be on its way to the disk
    rows = csv.DictReader(whole_lines)
    return [{name: int(text) if name == "epoch" else float(text) for name, text in row.items()} for row in rows]


def read_json(path):
    """Return what the JSON file ``path`` holds. Raises ``UserError`` where it is damaged."""
    refuse_special(path)
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): remove it") from error


def write_json(path, content):
    """Write ``content`` to ``path`` as JSON, whole or not at all."""
    with written_whole(path) as part:
        part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def set_state(run_dir, state, since):
    """Give a run whose processes are gone its ``state``, where its record does not say that it finished.

    A record that was last written before ``since`` (seconds since the epoch), or that another run is
    writing, is another run's and stays.
    """
    path = Path(run_dir) / "summary.json"
    if not path.exists() or path.stat().st_mtime < since:
        return
    try:
        with FileLock(path.with_name(".lock"), timeout=0):
            summary = read_json(path)
            if summary["state"] not in ("finished", state):
                write_json(path, summary | {"state": state})
    except Timeout:
        return
