"""Grade one submission after the other: behaviour, accuracy, and what it learns from renamed classes.

``assessment.grade`` starts this as a process of its own, so that nothing that happens here ends the class. Each
submission runs in a sandbox that is made for it; its weights are scored by another process, in another sandbox.
"""

import json
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from assessment.checklists import checklist
from assessment.checklists.common import ORDER
from assessment.checklists.examine import examine
from assessment.grader.compiling import MOST_MB, MOST_S
from assessment.grader.control_group import control_group
from assessment.grader.exam import given_name
from assessment.grader.marks import (
    FAIL,
    NOT_GRADABLE,
    PASS,
    Grade,
    cause_of,
    faulty,
    mark_accuracy,
    mark_behaviour,
    mark_taught,
    nothing_earned,
)
from assessment.grader.own_limits import MOST_BYTES
from assessment.grader.sandbox import MEGABYTE, Limits, Sandbox
from assessment.grader.snapshots import Snapshots
from assessment.grader.training_run import MARKED, TOO_MUCH, Beside, Training, counting, dodge, reported, unlike_epochs
from assessment.grader.watchdog import Watch
from assessment.pace import longest_s
from assessment.starters.make import solution_digest
from assessment.task import CONFIG, assignment
from assessment.trials.conversation import LostError, answering
from assessment.trials.data import Stage, trial_data
from assessment.trials.fork_server import ForkServer
from assessment.trials.forked_ranks import ForkedRanks, Idle
from assessment.trials.salvage import remove
from assessment.trials.trial import CALM_ENVIRONMENT, trial_folder
from utils.data import load

SCORING, COMPILING = (Path(__file__).with_name(name) for name in ("scoring.py", "compiling.py"))
SCORERS = 2  # that the same weights may end
SCORE_S, IDLE_S, SPARE_S = 60, 30, 60


class Grader:
    """Grades submissions of one assignment with the data in the folder ``room``, in sandboxes of one ``kind``.

    ``budget_s`` is how many seconds a training may take on this machine, ``devices`` are those of the GPUs that
    scripts may train on.
    """

    def __init__(self, room, task, kind, limits, budget_s, devices=()):
        self.devices = tuple(devices)
        self.room, self.task, self.kind, self.limits, self.budget_s = Path(room), task, kind, limits, budget_s
        self.lab = checklist("assessment")
        self.stage = Stage(trial_data(self.lab.dataset), self.room / "stage")
        self.true, self.renamed = self.room / "true", self.room / "renamed"
        self.scorer = self._server(limits, (self.true, self.renamed))
        self.weights = self.scorer.work / "weights.pt"
        self.images = len(load(given_name(task), self.true / "data", "train"))

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
        try:
            with self._watched(self.limits, script, self.stage.root) as server:
                problem, program = compiled(server, script)
                if problem:
                    grade.verdict, grade.cause = NOT_GRADABLE, problem
                    return
                result = examine(script, self.lab, ORDER, server, self.stage)
            mark_behaviour(grade.checks, result)
            grade.cause, grade.remarks = cause_of(result), list(result.advice)
            if program == solution_digest(self.lab.name):
                grade.remarks.append("this is the course's own solution")
            if result.has_trained:
                self._train(grade, script, result.unknown)
            elif not grade.cause:
                grade.cause = "no rank was seen to train"
        except LostError as lost:
            grade.cause = f"the run was ended: {lost}"
        for check in grade.checks:
            check.told = check.told or "not seen"
        if all(check.is_passed for check in grade.checks):
            grade.verdict, grade.cause = PASS, ""
        elif not grade.cause:
            grade.cause = next(f"{one.name}: {one.told}" for one in grade.checks if not one.is_passed)

    @contextmanager
    def _watched(self, limits, script, *readable):
        """Yield a server in a sandbox of its own, under watch; nothing of it stays."""
        server = self._server(limits, (script.parent, *readable), lambda: self._watched(limits, script, *readable))
        with control_group(limits.memory_mb * MEGABYTE) as group:
            try:
                begun(server)
                with Watch(server, limits, group):
                    yield server
            finally:
                server.close()
                remove(server.work)
                remove(server.kept)

    def _train(self, grade, script, unknown):
        """Let the script train as the assignment asks, and then on renamed classes; mark both runs."""
        task = self.task
        asked = {"epochs": task.epochs, "batch_size": task.batch_size, "target_accuracy": task.distinction}
        run = self._train_once(script, self.true, asked, unknown)
        grade.curve, grade.accuracy = run.curve, None if run.problem else run.hidden
        grade.is_distinguished = mark_accuracy(grade.checks[-1], run, task)
        grade.remarks += [run.remark] if run.remark else []
        asked = {"epochs": task.taught_epochs, "batch_size": task.taught_batch_size}
        run = self._train_once(script, self.renamed, asked, unknown)
        mark_taught(grade.checks[-2], run, task)

    def _train_once(self, script, exam, asked, unknown):
        """Train in a sandbox that holds this exam's data alone, and nothing of any other run."""
        # As long as the assignment says, and more to start, to judge after each epoch and to save.
        longest = longest_s(self.budget_s)
        wall_s, cpu_s = longest + SPARE_S, max(self.limits.cpu_s, 2 * longest)
        limits = replace(self.limits, wall_s=wall_s, cpu_s=round(cpu_s))
        with tempfile.TemporaryDirectory(prefix="epochs-", dir=self.room) as folder:
            with self._watched(limits, script, exam / "data") as server:
                run, epochs = self.training(server, script, exam, asked, unknown, longest, folder)
            self._judge(run, exam, asked, epochs)
        return run

    def _judge(self, run, exam, asked, epochs):
        """Score what a run has saved, at its end and in the ``epochs`` that count (paths by number), or say why not."""
        if len(run.curve) > asked["epochs"]:
            run.problem = f"the run reports {len(run.curve)} epochs where {asked['epochs']} were asked for"
            run.curve = run.curve[: asked["epochs"]]  # of a hundred thousand nobody needs a picture
        elif not run.problem and not run.seconds <= self.budget_s:  # a time that is no number is none within it
            run.problem = f"training took {run.seconds:.0f} s; it may take {self.budget_s:.0f} s on this machine"
        elif not run.problem:  # which accuracies come in a row matters to the target alone
            run.problem = run.dodge or (run.unlike if exam is self.true else "")
        if not run.problem:
            self._score(run, exam)
        wanted = (self.task.target, self.task.distinction) if exam is self.true and not run.problem else ()
        for epoch in {one for each in wanted for one in counting(run.curve, each, self.task.patience)}:
            if epoch in epochs:
                shutil.copy(epochs[epoch], self.weights)
                proof = Training()
                self._score(proof, exam)
                run.proven[epoch] = 0.0 if proof.problem else proof.scored

    def training(self, server, script, exam, flags, unknown, limit, kept):
        """Run the script on the data of ``exam``; return the ``Training``, and paths in ``kept`` of weights by epoch.

        These are the weights after each epoch that could be copied.
        """
        folder = trial_folder(server, server.work)
        argv = [script, "--dataset", given_name(self.task), "--data-dir", exam / "data", "--run-dir", folder / "run"]
        for name, value in (flags | {"seed": 0}).items():
            argv += [] if name in unknown else [f"--{name.replace('_', '-')}", value]
        environment = CALM_ENVIRONMENT | {"LOCKSTEP_COUNTS": str(folder)}
        if self.devices:
            del environment["CUDA_VISIBLE_DEVICES"]  # which hides them
        most = self.limits.file_mb * MEGABYTE
        ranks, beside = ForkedRanks(server, argv, self.task.processes, environment, folder), Beside(server)
        idle = Idle(server, IDLE_S)
        try:
            with Snapshots(folder / "run", kept, most) as snapshots:
                is_over = ranks.wait(limit, lambda: beside.look() or idle())
        finally:
            ranks.kill()
        server.settle(folder)
        curve, seconds = reported(folder / "run")
        run = Training(curve, seconds=seconds)
        run.dodge = dodge(folder, self.task.processes, flags, self.images)
        run.unlike = unlike_epochs(folder, self.task.processes, flags, self.images, len(curve))
        if not self.devices:  # beside a GPU, loading images may well take the processors longer
            run.dodge, run.remark = run.dodge or beside.told(TOO_MUCH), beside.told(MARKED)
        if not is_over:
            run.cut = f"; the run was ended after {limit / 60:.3g} min, or because nothing went on"
        weights = folder / "run/model.pt"
        if any(ranks.exits.values()):
            run.problem = "the run failed: " + ranks.failure()[-1500:]
        elif not weights.is_file():
            run.problem = "the run left no model.pt" + run.cut
        elif weights.stat().st_size > most:
            run.problem = "model.pt is too large"
        else:
            shutil.copy(weights, self.weights)
        return run, snapshots.paths

    def _score(self, run, exam):
        """Have the saved weights scored by a process that has never run the script."""
        self.weights.chmod(0o644)
        try:
            for left in reversed(range(SCORERS)):
                begun(self.scorer)
                try:
                    return self._score_once(run, exam)
                except LostError as lost:  # ended by the system, perhaps; if it is again, these weights end it
                    run.problem = "" if left else f"the weights in model.pt cannot be scored: {lost}"
        finally:
            self.weights.unlink()

    def _score_once(self, run, exam):
        argv = [SCORING, self.weights, self.task.model, exam / "test.pt", exam / "hidden.pt"]
        scoring = ForkedRanks(self.scorer, argv, 1)
        is_over = scoring.wait(SCORE_S)
        scoring.kill()
        said = scoring.logs.last_line(0) if is_over else "scoring them took too long"
        remove(scoring.logs.folder)  # this process scores for the whole class
        if is_over and scoring.exits == {0: 0}:
            run.scored, run.hidden = json.loads(said)
        else:
            run.problem = f"the weights in model.pt cannot be scored as {self.task.model}: {said[:300]}"

    def _server(self, limits, readable, another=None):
        work = Path(tempfile.mkdtemp(prefix="work-", dir=self.room))
        work.chmod(0o755)
        replaced = ((self.room / "config.json", CONFIG),)  # what the script is told is what it is graded by
        sandbox = Sandbox(self.kind, work, limits, readable, replaced, self.devices)
        return ForkServer(sandbox.wrap, work, another)

    def close(self):
        self.scorer.close()


def begun(server):
    """Have ``server`` running. Raises ``RuntimeError`` where it does not start: no script has a part in that."""
    try:
        server.exits()
    except LostError as lost:
        raise RuntimeError(f"the sandbox does not start: {lost}\n{server.said()}") from lost


def compiled(server, script):
    """Return why ``script`` is no program ("" where it is one), and its digest: says ``compiling.py`` in a sandbox."""
    ranks = ForkedRanks(server, [COMPILING, script], 1)
    is_over = ranks.wait(2 * MOST_S)
    ranks.kill()
    if is_over and ranks.exits == {0: 0}:
        told = json.loads(ranks.logs.last_line(0))
        return told["problem"], told["program"]
    return f"it is no Python program: to compile it takes more than {MOST_S} s or {MOST_MB:,} MB", ""


def main():
    """Grade what standard input asks for, with what the first argument says (JSON)."""
    asked = json.loads(sys.argv[1])
    os.umask(0o022)  # strangers' processes are nobody in particular, and must read what they are given
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, most))  # what a stranger left may be made to be large
    task = assignment(asked["dataset"], asked["config"])
    grader = Grader(asked["room"], task, asked["kind"], Limits(**asked["limits"]), asked["budget_s"], asked["devices"])
    answering(lambda order, _answers: grader.grade(**order).kept())


if __name__ == "__main__":
    main()
