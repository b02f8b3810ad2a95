"""Grade a class into one folder: several submissions at once, each grade kept as soon as it is known."""

import hashlib
import json
import os
import queue
import secrets
import sys
import tempfile
import threading
import traceback
from dataclasses import asdict
from pathlib import Path

from tqdm import tqdm

from assessment.checklists import checklist
from assessment.grader import gradebook
from assessment.grader.exam import keep_exams
from assessment.grader.feedback import write_feedback
from assessment.grader.gpus import gpu_devices
from assessment.grader.marks import FAULT, NOT_GRADABLE, Grade, faulty, nothing_earned
from assessment.grader.own_limits import refuse_too_much
from assessment.grader.room import room as own_room
from assessment.grader.sandbox import Limits
from assessment.pace import budget_s, longest_s
from assessment.trials.conversation import Conversation, LostError
from assessment.trials.data import Stage, trial_data
from utils.devices import physical_cores
from utils.errors import UserError
from utils.files import cannot_write, written_whole

GRACE_S = 600  # beyond the limits of a submission, which the process that grades keeps itself
MOST_TRIES = 2  # of a submission at which the grader itself failed, unless it is asked for by name
SEED_BITS = 31
RECIPE = 6  # a higher number makes everything be graded anew


class ClassGrader:
    """Grades a class into the folder ``args.out``, several submissions at once.

    ``task`` is what the assignment ``config`` asks for with one of its datasets.
    """

    def __init__(self, args, task, kind, config):
        self.args, self.task, self.kind, self.config = args, task, kind, config
        self.limits = Limits(**task.limits)
        refuse_too_much(kind, self.limits)
        self.devices = gpu_devices(task.processes) if args.gpus else ()
        self.lab = checklist("assessment")
        self.kept = args.out / ".kept"
        try:
            self.kept.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(cannot_write(self.kept / "grade", error)) from None

    def grade(self, found):
        """Grade what has not been graded yet, write all files, and return every ``Grade``."""
        digests = {one.key: self._digest(one) for one in found}
        done = {one.key: grade for one in found if (grade := self._kept(one, digests[one.key]))}
        waiting = queue.SimpleQueue()
        for one in found:
            if one.key not in done and one.problem:
                done[one.key] = Grade(one.learner, one.key, NOT_GRADABLE, one.problem, nothing_earned(self.lab))
                self._keep(done[one.key], digests[one.key])
            elif one.key not in done:
                waiting.put(one)
        try:
            if waiting.qsize():
                self._grade_all(waiting, len(found), done, digests)
        finally:
            grades = [done[one.key].shown() for one in found if one.key in done]
            for grade in grades:
                write_feedback(grade, self.task, self.args.out / "learners" / grade.key)
            about = {one.key: one.about for one in found}
            gradebook.write(grades, about, self.args.out, len(found) - len(grades))
        return grades

    def _grade_all(self, waiting, total, done, digests):
        # GPUs are not shared out: each submission finds all of them.
        jobs = 1 if self.devices else self.args.jobs or max(1, physical_cores() // self.task.processes)
        with own_room() as room:
            Stage(trial_data(self.lab.dataset), room / "stage").keep()
            keep_exams(self.task, self.args.data_dir, room, self._secret())
            shown = self.config | {"dataset": self.task.dataset}
            (room / "config.json").write_text(json.dumps(shown), encoding="utf-8")
            asked = {"room": str(room), "kind": self.kind, "limits": asdict(self.limits)}
            asked["devices"] = self.devices
            asked["budget_s"] = budget_s(self.task)  # measured once, so that all are graded alike
            asked["longest_s"] = self.limits.wall_s + 2 * longest_s(asked["budget_s"]) + GRACE_S
            asked |= {"dataset": self.task.dataset, "config": str(room / "config.json")}
            command = [sys.executable, "-m", "assessment.grader.submission_grader", json.dumps(asked)]
            talks = [Conversation(command, name="the process that grades") for _ in range(min(jobs, waiting.qsize()))]
            finished = queue.SimpleQueue()
            for talk in talks:
                threading.Thread(target=work, args=(talk, asked, waiting, finished), daemon=True).start()
            try:
                with tqdm(total=total, initial=len(done), unit="submission", disable=None) as bar:
                    for grade in arriving(finished, len(talks)):
                        done[grade.key] = grade
                        self._keep(grade, digests[grade.key])
                        bar.update()
                        if bar.disable:  # no terminal: the log of an unattended run; a name, which may be any, ends it
                            tell(f"{len(done)} of {total}: {grade.verdict}: {grade.learner}")
            finally:
                for talk in talks:
                    talk.stop("grading was interrupted")

    def _digest(self, one):
        """Return what tells whether a grade that is kept is one of this script, for this assignment."""
        script = hashlib.sha256(one.script).hexdigest()
        facts = [RECIPE, bool(self.devices), vars(self.task), asdict(self.limits), one.problem, script]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _kept(self, one, digest):
        """Return the grade that is kept of ``one``; where the grader failed, it tries again, but not for ever."""
        grade = self._read(one.key)
        if grade is None or grade.digest != digest or grade.learner != one.learner or one.learner in self.args.again:
            return None
        return grade if grade.verdict != FAULT or grade.tries >= MOST_TRIES else None

    def _read(self, key):
        path = self.kept / f"{key}.json"
        try:
            return Grade.read(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def _keep(self, grade, digest):
        grade.digest, before = digest, self._read(grade.key)
        if grade.verdict == FAULT:
            grade.tries = 1 + (before.tries if before and before.digest == digest else 0)
        with written_whole(self.kept / f"{grade.key}.json") as part:
            part.write_text(json.dumps(grade.kept(), indent=1), encoding="utf-8")

    def _secret(self):
        """Return the seed of the hidden images: drawn once for a class, known to nobody who handed in."""
        path = self.kept / ".seed"
        if not path.exists():
            with written_whole(path) as part:
                part.touch(0o600)
                part.write_text(str(secrets.randbits(SEED_BITS)))
        try:
            seed = int(path.read_text())
            if seed >> SEED_BITS:
                raise ValueError
            return seed
        except (OSError, ValueError):
            raise UserError(f"{path} is damaged, it holds no number: put it back, or choose another --out") from None


def work(talk, asked, waiting, finished):
    """Grade what is ``waiting`` with the process at the end of ``talk``, until nothing is; then say ``None``."""
    try:
        while True:
            one = waiting.get_nowait()
            try:
                finished.put(ask(talk, asked, one))
            except Exception:  # a disk that is full, or whatever else: the next may fare better
                finished.put(faulty(one.learner, one.key, traceback.format_exc()))
    except queue.Empty:
        pass
    finally:
        finished.put(None)


def arriving(finished, count):
    """Yield each ``Grade`` that arrives, until ``count`` times None has."""
    while count:
        grade = finished.get()
        if grade is None:
            count -= 1
        else:
            yield grade


def ask(talk, asked, one):
    """Return the ``Grade`` of one submission; where the process that grades is lost, the one that says so."""
    with tempfile.TemporaryDirectory(prefix="script-", dir=asked["room"]) as folder:
        Path(folder).chmod(0o755)
        script = Path(folder) / "train.py"
        script.write_bytes(one.script)
        order = {"learner": one.learner, "key": one.key, "script": str(script)}
        try:
            return Grade.read(talk.ask(order, asked["longest_s"]))
        except LostError as lost:
            return faulty(one.learner, one.key, str(lost))


def tell(text):
    """Write a line to standard error; where it cannot be written, as on a full disk, grades matter more."""
    try:
        print(text, file=sys.stderr)
    except OSError:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
