"""Grade a folder of submissions.

    python -m assessment.grade DIR --out grades [-j N] [--roster roster.csv]

A submission is <learner>/train.py, <learner>.py or an archive. Each runs in a sandbox. What has been graded
stays as it is; a run that was interrupted goes on where it stopped. INSTRUCTORS.md says what the parts mean.
"""

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from filelock import FileLock, Timeout

from assessment.grader import gradebook
from assessment.grader.class_grader import MOST_TRIES, ClassGrader, tell
from assessment.grader.feedback import keep
from assessment.grader.marks import FAULT
from assessment.grader.sandbox import NONE, best_kind, lacks, refuse_shown
from assessment.grader.submissions import find, left_aside, unmatched
from assessment.task import CONFIG, chosen, read
from utils.arguments import at_least, folder
from utils.errors import UserError, one_line_errors
from utils.files import cannot_write

ROSTER = Path(".kept/roster.csv")


def parse_args():
    parser = argparse.ArgumentParser(
        prog="python -m assessment.grade", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="the folder with the submissions")
    add("--out", type=place, default=Path("grades"), help="where grades go (default: %(default)s)")
    add("-j", "--jobs", type=at_least(1), help="how many at once (default: as the cores allow)")
    add(
        "--roster",
        type=Path,
        help="CSV with the column learner, and name, id, email, login, section, canvas_id as you have them",
    )
    add("--config", type=Path, default=CONFIG, help="the assignment (default: %(default)s)")
    add("--dataset", help="grade on this dataset, for which the assignment sets a target")
    add("--data-dir", type=place, default=Path("data"), help="where prepared datasets lie")
    add("--again", nargs="+", default=[], metavar="LEARNER", help="grade these anew")
    add("--gpus", action="store_true", help="let scripts train on this machine's GPUs, one submission after another")
    add(
        "--no-sandbox",
        action="store_true",
        help="run strangers' scripts with your own rights, where nothing else works",
    )
    return parser.parse_args()


def place(text):
    return Path(folder(text))


def resolved(path):
    """Return the place that ``path`` leads to. Raises ``UserError`` where it is a link that leads to itself."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # it depends on Python's version
        raise UserError(f"{path} is a link that leads to itself: name another folder") from None


def main():
    """Grade the submissions that the command line names; the exit code is 1 where the grader itself failed."""
    args = parse_args()
    os.umask(0o022)  # strangers' processes are nobody in particular, and must read what they are given
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as Ctrl-C does
    config = read(args.config)
    task = SimpleNamespace(**chosen(config, args.config, args.dataset))
    kind = NONE if args.no_sandbox else best_kind()
    if lacks(kind) and not args.no_sandbox:
        raise UserError(lacks(kind))
    inside = resolved(args.out)
    if resolved(args.folder) in (inside, *inside.parents):
        raise UserError(
            f"--out {args.out} lies in {args.folder}, where it would be taken for submissions: choose another"
        )
    if kind != NONE:
        places = {"the folder of submissions": args.folder, "--out": args.out, "--data-dir": args.data_dir}
        places |= {"--roster": args.roster} if args.roster else {}
        refuse_shown(places | {"the folder for temporary files": tempfile.gettempdir()})
    roster = args.roster or kept_roster(args.out)
    found = find(args.folder, task.source_kb, roster)
    if not found:
        raise UserError(f"{args.folder} holds no submission: <learner>/train.py, <learner>.py or <learner>.zip")
    strangers = set(args.again) - {one.learner for one in found}
    if strangers:
        raise UserError(f"--again names {', '.join(sorted(strangers))}, of whom {args.folder} holds nothing")
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        open(args.out / ".lock", "a").close()  # where no file can be, the lock would wait for ever
    except OSError as error:
        raise UserError(cannot_write(error.filename or args.out, error)) from None
    for told in (left_aside(args.folder, roster), unmatched(found, roster) if roster else None):
        if told:
            tell(told)
    try:
        with FileLock(args.out / ".lock", timeout=0):
            grader = ClassGrader(args, task, kind, config)
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
        again = "" if grade.tries < MOST_TRIES else f"; it is tried again by --again {grade.learner}"
        tell(f"{grade.learner}: the grader failed{again}\n{grade.fault}")
    print(gradebook.summary_line(grades, args.out))
    sys.exit(1 if faults else 0)


def kept_roster(out):
    """Return the roster that this class was graded with the last time, None where there was none."""
    path = out / ROSTER
    return path if path.exists() else None


if __name__ == "__main__":
    with one_line_errors():
        main()
