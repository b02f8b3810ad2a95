"""Grade a folder of submissions.

    python -m assessment.grade DIR --out grades [-j N] [--roster roster.csv]

A submission is <learner>/train.py, <learner>.py or an archive. Each runs in a sandbox. What has been graded
stays as it is; a run that was interrupted goes on where it stopped. INSTRUCTORS.md says what the parts mean.
"""

import argparse
import hashlib
import json
import os
import queue
import secrets
import signal
import sys
import tempfile
import threading
import traceback
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from assessment.checklists import checklist
from assessment.grader import gradebook
from assessment.grader.exam import keep_exams
from assessment.grader.feedback import keep, write_feedback
from assessment.grader.marks import FAULT, NOT_GRADABLE, Grade, faulty, nothing_earned
from assessment.grader.sandbox import NONE, Limits, best_kind, lacks
from assessment.grader.submissions import NOTHING, find
from assessment.laws.verdict import listed
from assessment.task import CONFIG, assignment
from assessment.trials.conversation import Conversation, LostError
from assessment.trials.data import Stage, trial_data
from utils.arguments import at_least
from utils.devices import physical_cores
from utils.errors import UserError, one_line_errors
from utils.files import written_whole

GRACE_S = 600  # beyond the limits of a submission, which the process that grades keeps itself
ROSTER = Path(".kept/roster.csv")
RECIPE = 3  # a higher number makes everything be graded anew


def parse_args():
    parser = argparse.ArgumentParser(
        prog="python -m assessment.grade", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="the folder with the submissions")
    add("--out", type=Path, default=Path("grades"), help="where grades go (default: %(default)s)")
    add("-j", "--jobs", type=at_least(1), help="how many at once (default: as the cores allow)")
    add(
        "--roster",
        type=Path,
        help="CSV with the column learner, and name, id, email, login, section, canvas_id as you have them",
    )
    add("--config", type=Path, default=CONFIG, help="the assignment (default: %(default)s)")
    add("--dataset", help="grade on this dataset, for which the assignment sets a target")
    add("--data-dir", type=Path, default=Path("data"), help="where prepared datasets lie")
    add("--again", nargs="+", default=[], metavar="LEARNER", help="grade these anew")
    add(
        "--no-sandbox",
        action="store_true",
        help="run strangers' scripts with your own rights, where nothing else works",
    )
    return parser.parse_args()


def main():
    """Grade the submissions that the command line names; the exit code is 1 where the grader itself failed."""
    args = parse_args()
    os.umask(0o022)  # strangers' processes are nobody in particular, and must read what they are given
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as Ctrl-C does
    task = assignment(args.dataset, args.config)
    kind = NONE if args.no_sandbox else best_kind()
    if lacks(kind) and not args.no_sandbox:
        raise UserError(lacks(kind))
    inside = args.out.resolve()
    if args.folder.resolve() in (inside, *inside.parents):
        raise UserError(
            f"--out {args.out} lies in {args.folder}, where it would be taken for submissions: choose another"
        )
    roster = args.roster or kept_roster(args.out)
    found = find(args.folder, task.source_kb, roster)
    if not found:
        raise UserError(f"{args.folder} holds no submission: <learner>/train.py, <learner>.py or <learner>.zip")
    strangers = set(args.again) - {one.learner for one in found}
    if strangers:
        raise UserError(f"--again names {listed(sorted(strangers))}, of whom {args.folder} holds nothing")
    args.out.mkdir(parents=True, exist_ok=True)
    if roster:
        tell_who_does_not_match(found, roster)
    try:
        with FileLock(args.out / ".lock", timeout=0):
            grader = ClassGrader(args, task, kind)
            if args.roster:
                keep(args.out / ROSTER, args.roster.read_text(encoding="utf-8-sig"))
            grades = grader.grade(found)
    except Timeout:
        raise UserError(f"another run is grading into {args.out}: wait for it or choose another --out") from None
    except KeyboardInterrupt:
        said = f"interrupted; what has been graded is kept in {args.out}, and the same command goes on from there"
        print(said, file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    faults = [grade for grade in grades if grade.verdict == FAULT]
    for grade in faults:
        print(f"{grade.learner}: the grader failed\n{grade.fault}", file=sys.stderr)
    print(gradebook.summary_line(grades, args.out))
    sys.exit(1 if faults else 0)


def kept_roster(out):
    """Return the roster that this class was graded with the last time, None where there was none."""
    path = out / ROSTER
    return path if path.exists() else None


def tell_who_does_not_match(found, roster):
    """Say who handed in and is not on the roster: names that are spelled differently have two rows."""
    strangers = [one.learner for one in found if not one.about]
    absent = [one.learner for one in found if one.problem == NOTHING]
    if strangers:
        missing = f"; on it, and without a submission: {listed(absent, 10)}" if absent else ""
        print(f"not on the roster {roster}: {listed(strangers, 10)}{missing}", file=sys.stderr)


class ClassGrader:
    """Grades a class into the folder ``args.out``, several submissions at once."""

    def __init__(self, args, task, kind):
        self.args, self.task, self.kind = args, task, kind
        self.limits = Limits(**task.limits)
        self.lab = checklist("assessment")
        self.kept = args.out / ".kept"
        self.kept.mkdir(exist_ok=True)

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
            grades = [done[one.key] for one in found if one.key in done]
            for grade in grades:
                write_feedback(grade, self.task, self.args.out / "learners" / grade.key)
            about = {one.key: one.about for one in found}
            gradebook.write(grades, about, self.args.out, len(found) - len(grades))
        return grades

    def _grade_all(self, waiting, total, done, digests):
        jobs = self.args.jobs or max(1, physical_cores() // self.task.processes)
        with tempfile.TemporaryDirectory(prefix="lockstep-grade-", ignore_cleanup_errors=True) as room:
            room = Path(room)
            Stage(trial_data(self.lab.dataset), room / "stage").keep()
            keep_exams(self.task, self.args.data_dir, room, self._secret())
            config = json.loads(self.args.config.read_text(encoding="utf-8")) | {"dataset": self.task.dataset}
            (room / "config.json").write_text(json.dumps(config), encoding="utf-8")
            asked = {"room": str(room), "kind": self.kind, "limits": asdict(self.limits)}
            asked["longest_s"] = self.limits.wall_s + 2 * 60 * self.task.minutes + GRACE_S
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
                        if bar.disable:  # no terminal: the log of an unattended run
                            print(f"{len(done)} of {total}: {grade.learner}: {grade.verdict}", file=sys.stderr)
            finally:
                for talk in talks:
                    talk.stop("grading was interrupted")

    def _digest(self, one):
        """Return what tells whether a grade that is kept is one of this script, for this assignment."""
        facts = [RECIPE, vars(self.task), asdict(self.limits), one.problem, hashlib.sha256(one.script).hexdigest()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _kept(self, one, digest):
        path = self.kept / f"{one.key}.json"
        if not path.exists() or one.learner in self.args.again:
            return None
        try:
            grade = Grade.read(json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, KeyError):
            return None
        return grade if grade.digest == digest and grade.verdict != FAULT else None

    def _keep(self, grade, digest):
        grade.digest = digest
        with written_whole(self.kept / f"{grade.key}.json") as part:
            part.write_text(json.dumps(grade.kept(), indent=1), encoding="utf-8")

    def _secret(self):
        """Return the seed of the hidden images: drawn once for a class, known to nobody who handed in."""
        path = self.kept / ".seed"
        if not path.exists():
            with written_whole(path) as part:
                part.touch(0o600)
                part.write_text(str(secrets.randbits(31)))
        return int(path.read_text())


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


if __name__ == "__main__":
    with one_line_errors():
        main()
