"""What is true of any right script, however it is written: many processes train as one, weights move, a network learns.

For the first the script runs twice more, as three processes of batch b and as one of 3 b, with a small network in
which nothing looks at one share alone (``recorder/calm.py``). Both must end with the same weights and report the same
numbers. That says nothing where the two take other images in a step (shares dealt in another way), or change them at
random in another way: then the laws decide alone.
"""

import math

from assessment.laws.verdict import HOLDS, Verdict, broken, number, unseen
from assessment.recorder.sketch import distance
from assessment.trials.artifacts import Weights

SAME = 0.01  # of the way that the weights went; gradients sent in 16 bits end nearer
ROUNDED = 1e-4  # of that way: sums in another order end a hundred times nearer
SAME_WEIGHTS = 1e-3  # of the size of the weights, where the way was not seen
SAME_INPUTS = 1e-3
SAME_RATE = 1e-4  # relative
SAME_LOSS, EQUAL_LOSS = 2e-3, 2e-5  # relative: with nearly the same weights, and with the same ones
STEEP = 10  # a loss is apart by at most so many times as much as the weights are, of their way
ON_THE_EDGE, NEAR_THE_EDGE = 1.5, 6.5  # images that fall either way: with the same weights, and with nearly those
NEAR = 0.4  # of the size of the first gradient, where the loss of an image depends on the others of its share
TRAINING, VALIDATION = ("train_loss", "train_accuracy"), ("val_loss", "val_accuracy")
LEARNT = 0.2  # of the images of training, in the last of three epochs; a guess has a tenth


def pair(trial):
    """Return the runs as many processes and as one, or the ``Verdict`` that says why they cannot be compared."""
    if trial.undivided is None:
        return unseen("it was not run as one process")
    if any(one.outcome.state != "finished" for one in trial.undivided):
        return unseen("the run did not finish with a small network, or not as one process")
    many, one = (run.evidence.rounds for run in trial.undivided)
    if [batch(steps) for steps in many] != [batch(steps) for steps in one]:
        return unseen("one process with the undivided batch takes other images in a step")
    if any(not alike(inputs(ours), inputs(whole)) for ours, whole in zip(many, one, strict=True)):
        return unseen("the images are changed at random, in another way by one process with the undivided batch")
    if rates_that_differ(trial) is not None:
        return unseen("the rate is another with one process and the undivided batch")
    return trial.undivided


def rates_that_differ(trial):
    """Return the first rates that are not the same in the two runs, as a pair; None where there are none.

    Runs of other numbers of steps are not compared: their schedules may be as long as they are.
    """
    many, one = ([step.rates[0] for step in run.evidence.ranks[0].steps if step.rates] for run in trial.undivided)
    if len(many) != len(one):
        return None
    return next((pair for pair in zip(many, one, strict=True) if abs(pair[0] - pair[1]) > SAME_RATE * pair[1]), None)


def batch(steps):
    return sorted(row for step in steps for row in step.rows if row is not None)


def inputs(steps):
    """Return the sum of the fingerprints of what the networks of all ranks were given in a step."""
    return [sum(column) for column in zip(*(step.inputs for step in steps if step.inputs), strict=True)]


def alike(ours, whole):
    apart = math.hypot(*(a - b for a, b in zip(ours, whole, strict=True))) if len(ours) == len(whole) else math.inf
    return apart <= SAME_INPUTS * math.hypot(*whole) + 1e-6


def ends_as_one_process(trial):
    """N processes of batch b end with the weights of one of N x b."""
    runs = pair(trial)
    if isinstance(runs, Verdict):
        return runs
    ours, whole = (run.artifacts.weights for run in runs)
    if not isinstance(ours, Weights) or not isinstance(whole, Weights) or set(ours.names) != set(whole.names):
        return unseen("the two runs left no weights that could be compared")
    apart, way = apart_and_way(runs)
    if apart <= (SAME * way if way else SAME_WEIGHTS):
        return HOLDS
    processes = runs[0].evidence.world_size
    told = f"{100 * apart / way:.0f} % of the way that they went" if way else f"{100 * apart:.2g} %"
    return broken(
        f"{processes} processes end with other weights than one process with the undivided batch: they differ by {told}"
    )


def apart_and_way(runs):
    """Return how far apart two runs end, and how far the second's weights went; 0 where that was not seen."""
    ours, whole = (run.artifacts.weights.sketches for run in runs)
    first = runs[1].evidence.rounds[0][0].seen if runs[1].evidence.rounds else {}
    names = whole.keys() & first.keys()
    way = distance({name: whole[name] for name in names}, {name: first[name] for name in names}) if names else 0.0
    return distance(ours, whole), way


def ends_exactly_as_one_process(trial):
    """Say whether many processes end with the weights of one to rounding, nearer than gradients in 16 bits would."""
    if not ends_as_one_process(trial):
        return False
    apart, way = apart_and_way(trial.undivided)
    return apart <= ROUNDED * way


def begins_near_one_process(trial):
    """Say whether the first gradients of the two runs are near each other, and yet not the same.

    So it is where the loss divides by something that depends on the others of a share, as weights of classes do.
    """
    first = [run.evidence.rounds[0][0].applied if run.evidence.rounds else {} for run in trial.undivided or ()]
    names = set.intersection(*map(set, first)) if first else set()
    if not names:
        return False
    ours, whole = ({name: one[name] for name in names} for one in first)
    return SAME_INPUTS < distance(ours, whole) < NEAR


def reports_training_as_one_process(trial):
    """N processes of batch b report the loss and the accuracy of training that one of N x b reports.

    The loss within 0.2 %, the accuracy within one and a half images, or six and a half where weights are the same but
    for gradients in 16 bits, say. Judged only where both runs end with the same weights. Not seen: numbers that are
    equally wrong for any number of processes; laws of the record tell of some.
    """
    return _reports(trial, TRAINING)


def reports_validation_as_one_process(trial):
    """N processes of batch b report the loss and the accuracy of validation that one of N x b reports.

    The loss as near as the weights are: within 2e-5 where these differ by rounding, so that one image in a thousand
    that is counted twice shows, and at most 0.2 %; the accuracy within one and a half images, or six and a half where
    the weights differ by more. Judged only where both runs end with the same weights. Not seen: numbers that are
    equally wrong for any number of processes; ``reports_the_truth`` tells of the accuracy.
    """
    return _reports(trial, VALIDATION)


def _reports(trial, names):
    if not ends_as_one_process(trial):
        return HOLDS  # other weights have other losses: laws about the weights tell of it
    many, one = (run.artifacts.metrics for run in trial.undivided)
    data = trial.evidence.data
    on_the_edge = ON_THE_EDGE if ends_exactly_as_one_process(trial) else NEAR_THE_EDGE
    edge = on_the_edge / len(data.train if names == TRAINING else data.test)
    apart, way = apart_and_way(trial.undivided)
    same_loss = min(SAME_LOSS, max(EQUAL_LOSS, STEEP * apart / way)) if way else SAME_LOSS
    for epoch, (ours, whole) in enumerate(zip(many, one, strict=False), start=1):
        for name in names:
            told, wanted = number(ours.get(name)), number(whole.get(name))
            allowed = max(SAME_LOSS * abs(wanted), edge)
            if name == "val_loss":
                allowed = same_loss * abs(wanted) + last_digit(whole.get(name))
            if math.isfinite(wanted) and not abs(told - wanted) <= allowed:
                processes = trial.undivided[0].evidence.world_size
                return broken(
                    f"with the same weights, {processes} processes report {name} {told:.4f} for epoch {epoch}, and one"
                    f" process with the undivided batch {wanted:.4f}"
                )
    return HOLDS


def last_digit(text):
    """Return what the last digit of a number is worth, as it was written: rounded numbers differ by that."""
    digits = str(text).partition(".")[2]
    return 10.0 ** -len(digits) if digits.isdecimal() else 0.0


def moves(trial):
    """Training moves the weights."""
    rounds = trial.evidence.rounds
    if len(rounds) < 2:
        return unseen("not every rank took two steps")
    first, last = rounds[0][0], rounds[-1][0]
    if not first.seen or any(last.seen.get(name) != one for name, one in first.seen.items()):
        return HOLDS
    return broken(
        f"after {len(rounds) - 1} steps every weight is what it was at the start: no gradient comes to the optimizer,"
        " or it holds the weights of another network",
        last.line,
    )


def learns(trial):
    """After some epochs the network knows more of the images that it trains on, by their own labels, than a guess.

    A guess knows a tenth, ``LEARNT`` (a fifth) is asked for in the last of three epochs; a right script knows more
    than half. Not seen: networks that return no choice of a class.
    """
    if trial.outcome.state != "finished" or not trial.evidence.rounds:
        return unseen("the run did not finish")
    epochs = [trial.evidence.epochs(rank)[-1:] for rank in range(trial.evidence.world_size)]
    steps = [step for own in epochs for epoch in own for step in epoch]
    if any(step.correct is None for step in steps):
        return Verdict(True, "whether the network learns was not judged: what it returns shows no choice of a class")
    seen, right = sum(len(step.rows) for step in steps), sum(step.correct for step in steps)
    if not seen or right >= LEARNT * seen:
        return HOLDS
    return broken(f"in the last epoch the network knows {100 * right / seen:.0f} % of the images that it trains on")
