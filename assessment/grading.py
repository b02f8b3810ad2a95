"""Grade one submission after the other: behaviour, accuracy, and what it learns from renamed classes.

``assessment.grade`` starts this as a process of its own, so that nothing that happens here ends the class. Each
submission runs in a sandbox that is made for it; its weights are scored by another process, in another sandbox.
"""

import json
import shutil
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from assessment import assignment
from assessment.checklist import examine
from assessment.checklists import checklist
from assessment.checklists.common import ORDER
from assessment.conversation import LostError, answering
from assessment.exam import given_name
from assessment.fork_server import ForkServer
from assessment.forked import ForkedRanks
from assessment.marking import (
    FAIL,
    PASS,
    Grade,
    cause_of,
    faulty,
    mark_accuracy,
    mark_behaviour,
    mark_taught,
    nothing_earned,
)
from assessment.sandbox import MEGABYTE, NONE, Limits, Sandbox, Watch
from assessment.trial import CALM_ENVIRONMENT, trial_folder
from assessment.trial_data import Stage, trial_data
from utils.files import keep_plain_files
from utils.runs import read_metrics

SCORING = Path(__file__).with_name("scoring.py")
SCORE_S, IDLE_S, METRICS_BYTES = 120, 30, 1_000_000


@dataclass
class Training:
    """One training run of a submission, not watched: what it reports, and what its weights are worth."""

    curve: list = field(default_factory=list)  # reported accuracies, by epoch
    scored: float = 0.0  # of the saved weights on the test images
    hidden: float = 0.0  # ... and on images that the script has never seen
    problem: str = ""  # why there is nothing to score
    cut: str = ""  # said where the time was over before the script was

    @property
    def reported(self):
        return self.curve[-1] if self.curve else None


class Grader:
    """Grades submissions of one assignment with the data in the folder ``room``, in sandboxes of one ``kind``."""

    def __init__(self, room, task, kind, limits):
        self.room, self.task, self.kind, self.limits = Path(room), task, kind, limits
        self.lab = checklist("assessment")
        self.stage = Stage(trial_data(self.lab.dataset), self.room / "stage")
        self.true, self.renamed = self.room / "true", self.room / "renamed"
        self.scorer = self._server((self.true, self.renamed))

    def grade(self, learner, key, script):
        """Return the ``Grade`` of a script. What goes wrong in the grader itself is told in ``fault``."""
        began = time.monotonic()
        grade = Grade(learner, key, FAIL, checks=nothing_earned(self.lab))
        try:
            self._grade(grade, Path(script))
        except Exception:
            grade = faulty(learner, key, traceback.format_exc())
        grade.seconds = time.monotonic() - began
        return grade

    def _grade(self, grade, script):
        readable = (script.parent, self.stage.root, self.true / "data", self.renamed / "data")
        server = self._server(readable)
        try:
            with Watch(server, self.limits):
                result = examine(script, self.lab, ORDER, server, self.stage)
                mark_behaviour(grade.checks, result)
                grade.cause, grade.remarks = cause_of(result), list(result.advice)
                if "finished" in result.ends.values():
                    self._train(grade, server, script, result)
                elif not grade.cause:
                    grade.cause = "no run of the script came to its end"
        except LostError as lost:
            grade.cause = f"the run was ended: {lost}"
        finally:
            server.close()
            shutil.rmtree(server.work, ignore_errors=True)
        for check in grade.checks:
            check.told = check.told or "not seen"
        if all(check.is_passed for check in grade.checks):
            grade.verdict, grade.cause = PASS, ""
        elif not grade.cause:
            grade.cause = next(f"{one.name}: {one.told}" for one in grade.checks if not one.is_passed)

    def _train(self, grade, server, script, result):
        """Let the script train as the assignment asks, and then on renamed classes; mark both runs."""
        task, taught = self.task, {"epochs": self.task.taught_epochs, "batch_size": self.task.taught_batch_size}
        asked = {"epochs": task.epochs, "batch_size": task.batch_size, "target_accuracy": task.distinction}
        run = self.training(server, script, self.true, asked, result.unknown, 60 * task.minutes)
        grade.curve, grade.accuracy = run.curve, None if run.problem else run.hidden
        grade.is_distinguished = mark_accuracy(grade.checks[-1], run, task)
        run = self.training(server, script, self.renamed, taught, result.unknown, 60 * task.minutes)
        mark_taught(grade.checks[-2], run, task)

    def training(self, server, script, exam, flags, unknown, limit):
        """Run the script on the data of ``exam`` and return the ``Training``."""
        folder = trial_folder(server, server.work)
        argv = [script, "--dataset", given_name(self.task), "--data-dir", exam / "data", "--run-dir", folder / "run"]
        for name, value in (flags | {"seed": 0}).items():
            argv += [] if name in unknown else [f"--{name.replace('_', '-')}", value]
        ranks = ForkedRanks(server, argv, self.task.processes, CALM_ENVIRONMENT)
        try:
            is_over = ranks.wait(limit, Idle(server))
        finally:
            ranks.kill()
        keep_plain_files(folder)
        run = Training(curve=_curve(folder / "run"))
        if not is_over:
            run.cut = f"; the run was ended after {limit / 60:.3g} min, or because nothing went on"
        if any(ranks.exits.values()):
            run.problem = "the run failed: " + ranks.failure()[-1500:]
        else:
            self._score(run, folder / "run/model.pt", exam)
        return run

    def _score(self, run, weights, exam):
        """Have the saved weights scored by a process that has never run the script."""
        if not weights.is_file():
            run.problem = "the run left no model.pt" + run.cut
            return
        if weights.stat().st_size > self.limits.file_mb * MEGABYTE:
            run.problem = "model.pt is too large"
            return
        copy = Path(shutil.copy(weights, self.scorer.work / "weights.pt"))
        copy.chmod(0o644)
        try:
            argv = [SCORING, copy, self.task.model, exam / "test.pt", exam / "hidden.pt"]
            scoring = ForkedRanks(self.scorer, argv, 1)
            is_over = scoring.wait(SCORE_S)
            scoring.kill()
        except LostError:
            is_over = False
        finally:
            copy.unlink()
        if is_over and scoring.exits == {0: 0}:
            run.scored, run.hidden = json.loads(scoring.logs.text(0).strip().splitlines()[-1])
        else:
            said = scoring.logs.last_line(0) if is_over else "scoring them took too long"
            run.problem = f"the weights in model.pt cannot be scored as {self.task.model}: {said[:300]}"

    def _server(self, readable):
        work = Path(tempfile.mkdtemp(prefix="work-", dir=self.room))
        work.chmod(0o777)
        sandbox = Sandbox(self.kind, work, self.limits, readable)
        return ForkServer(sandbox.wrap if self.kind != NONE else None, work)

    def close(self):
        self.scorer.close()


class Idle:
    """Say, asked again and again, whether the processes of ``server`` have computed nothing for long."""

    def __init__(self, server):
        self.server, self.computed, self.since = server, 0.0, time.monotonic()

    def __call__(self):
        computed = self.server.cpu_s()
        if computed > self.computed + 0.1:
            self.computed, self.since = computed, time.monotonic()
        return time.monotonic() - self.since > IDLE_S


def _curve(run_dir):
    """Return the reported accuracies, none where the record is not one."""
    path = run_dir / "metrics.csv"
    with suppress(OSError, ValueError, KeyError, TypeError):
        if path.stat().st_size < METRICS_BYTES:
            found = [float(row["val_accuracy"]) for row in read_metrics(run_dir)]
            return [one for one in found if 0 <= one <= 1]
    return []


def main():
    """Grade what standard input asks for, with what the first argument says (JSON)."""
    asked = json.loads(sys.argv[1])
    task = assignment(asked["dataset"], asked["config"])
    grader = Grader(asked["room"], task, asked["kind"], Limits(**asked["limits"]))
    answering(lambda order, _answers: grader.grade(**order).kept())


if __name__ == "__main__":
    main()
