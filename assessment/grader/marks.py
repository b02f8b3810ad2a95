"""Marks: they start at zero, and evidence adds to them."""

from dataclasses import asdict, dataclass, field, replace

from assessment.checklists import checklist
from assessment.checklists.lab import DONE, UNSEEN
from assessment.checklists.report import Report
from assessment.grader.letters import visible
from assessment.grader.training_run import counting
from assessment.task import reached_in

PASS, FAIL, NOT_GRADABLE, FAULT = "pass", "fail", "not gradable", "grader's own fault"
ACCURACY_POINTS, TAUGHT_POINTS = 15, 10
EXACT = 0.005  # a script may judge in bfloat16; the scorer judges in float32
STRENGTH = 2  # of the hints: the symptom, and the idea
MOST_TOLD = 30_000  # letters, of what a stranger's run has a part in: more is read by nobody


@dataclass
class Check:
    """One thing that was looked at: what it is worth, what it earned, and why not more."""

    name: str
    points: int
    earned: int = 0
    told: str = ""

    @property
    def is_passed(self):
        return self.earned == self.points


@dataclass
class Grade:
    """All that is known of one submission; ``kept`` and ``read`` turn it into JSON and back."""

    learner: str
    key: str
    verdict: str
    cause: str = ""  # the first thing to look at, for the learner
    checks: list = field(default_factory=list)
    accuracy: float | None = None  # of the weights on hidden images
    is_distinguished: bool = False
    curve: list = field(default_factory=list)  # accuracy on the test images after each epoch, as reported
    seconds: float = 0.0
    remarks: list = field(default_factory=list)
    fault: str = ""  # for the instructor
    digest: str = ""  # of what was graded, and how
    tries: int = 0  # that ended in the grader's own fault

    @property
    def points(self):
        return sum(check.points for check in self.checks)

    @property
    def earned(self):
        return sum(check.earned for check in self.checks)

    @property
    def is_graded(self):
        return self.verdict in (PASS, FAIL)

    def shown(self):
        """Return this grade as it may be shown: what strangers said in it is obeyed by no terminal and no browser."""
        checks = [replace(check, told=visible(check.told)) for check in self.checks]
        told = {name: visible(getattr(self, name)) for name in ("learner", "cause", "fault")}
        return replace(self, checks=checks, remarks=list(map(visible, self.remarks)), **told)

    def kept(self):
        return asdict(self)

    @classmethod
    def read(cls, kept):
        return cls(**kept | {"checks": [Check(**one) for one in kept["checks"]]})


def nothing_earned(lab):
    """Return all checks of the assignment ``lab``, with nothing earned."""
    checks = [Check(item.title, item.points) for item in lab.items]
    taught = Check("the network learns what it is taught", TAUGHT_POINTS)
    return [*checks, taught, Check("the target accuracy, within the time", ACCURACY_POINTS)]


def faulty(learner, key, fault):
    """Return the grade of a submission at which the grader itself failed; ``fault`` is for the instructor."""
    cause = "the grader could not finish; your instructor has been told, and no attempt is used"
    return Grade(learner, key, FAULT, cause, nothing_earned(checklist("assessment")), fault=fault)


def mark_behaviour(checks, result):
    """Give ``checks`` what the checker's ``Result`` shows: all of a check's points, or none.

    A step counts as done where each of its laws holds in each trial that it is about.
    """
    for check, item in zip(checks, result.lab.items, strict=False):
        misses = [miss for miss in result.misses if miss.item is item]
        if result.states[item.number] == DONE:
            check.earned, check.told = check.points, "seen in every run"
        elif misses:
            wrong = next((miss for miss in misses if miss.verdict.holds is False), misses[0])
            check.told = (wrong.verdict.symptom or UNSEEN)[:MOST_TOLD]
        else:
            lacking = sorted({name for name, _ in item.laws} - result.ends.keys())
            check.told = f"not seen: there was no run of {', '.join(lacking)}"


def cause_of(result):
    """Return the first thing to look at, in words, where the checker found one."""
    report = Report(result, STRENGTH, grows=False)
    return "\n".join(report.hints(result.cause))[:MOST_TOLD] if result.cause else ""


def mark_accuracy(check, run, task):
    """Give ``check`` its points where the run reached the target in a row of epochs and its weights confirm it.

    Returns whether that was with distinction.
    """
    if run.problem:
        check.told = run.problem
        return False
    least = task.target - task.tolerance
    reached = reached_in(run.curve, task.target, task.patience)
    told = f"{run.hidden:.1%} of hidden images (at least {least:.1%} are asked for)"
    if run.reported is None or abs(run.reported - run.scored) > EXACT:
        said = "no accuracy" if run.reported is None else f"{run.reported:.1%}"
        check.told = f"the script reports {said} on the test images; the weights that it saved get {run.scored:.1%}"
    elif unproven := unproven_epoch(run, task.target, task):
        check.told = (
            f"for epoch {unproven} the script reports {run.curve[unproven - 1]:.1%} on the test images; the weights"
            f" that it saved then get {run.proven.get(unproven, run.scored):.1%}"
        )
    elif reached is None:
        best = max(run.curve)
        check.told = (
            f"no {task.patience} epochs in a row at {task.target:.1%}: the best of {len(run.curve)} has"
            f" {best:.1%}{run.cut}"
        )
    elif run.hidden < least:
        check.told = f"the weights get {told}"
    else:
        check.earned, check.told = check.points, f"the weights get {told}"
        distinguished = reached_in(run.curve, task.distinction, task.patience) is not None
        distinguished &= unproven_epoch(run, task.distinction, task) is None
        return distinguished and run.hidden >= task.distinction - task.tolerance
    return False


def unproven_epoch(run, wanted, task):
    """Return the first epoch that counts for the accuracy ``wanted`` and whose weights do not have what was reported.

    None where all have it. Where weights were overwritten before anybody could score them, those at the end must have
    what is ``wanted``.
    """
    for epoch in counting(run.curve, wanted, task.patience):
        if epoch in run.proven and abs(run.proven[epoch] - run.curve[epoch - 1]) > EXACT:
            return epoch
        if epoch not in run.proven and run.scored < wanted - EXACT:
            return epoch
    return None


def mark_taught(check, run, task):
    """Give ``check`` its points where the run on renamed classes learned those names."""
    if run.problem:
        check.told = run.problem
    elif run.hidden < task.taught_accuracy:
        check.told = (
            f"trained for {task.taught_epochs} epochs on data whose classes had been renamed in secret, the weights"
            f" get {run.hidden:.1%} (at least {task.taught_accuracy:.1%} are asked for): they do not come from"
            " the data that the script was given"
        )
    elif run.reported is None or abs(run.reported - run.scored) > EXACT:
        said = "no accuracy" if run.reported is None else f"{run.reported:.1%}"
        check.told = f"on renamed classes the script reports {said}; the weights that it saved get {run.scored:.1%}"
    else:
        check.earned, check.told = check.points, f"{run.hidden:.1%} on classes that had been renamed in secret"
