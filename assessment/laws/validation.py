"""The laws of validation: the saved weights are the network's, and the reported number is theirs."""

import re

import torch

from assessment.laws.lockstep import differing
from assessment.laws.verdict import HOLDS, Verdict, broken, listed, number, percent, unseen
from assessment.recorder.sketch import UNNAMED, sketch

PREFIXES = ("module.", "_orig_mod.")
MOST_TEXT = 100_000  # characters of a text that is searched
EXACT = 2e-5  # a mean of means of two shares that differ by one image is further off


def saved_weights(trial):
    """Return the ``Weights`` in ``model.pt``, or the ``Verdict`` that says why they cannot be had."""
    found = trial.artifacts.weights
    if found is None:
        has_finished = trial.outcome.state == "finished"
        return broken("the run left no model.pt") if has_finished else unseen("the run did not finish")
    return broken(found) if isinstance(found, str) else found


def saves_the_network(trial):
    """``model.pt`` is the bare network's ``state_dict``: the weights after the last step, or those judged last.

    Others are judged where a script averages weights over its steps, and saves the average.

    Compared are sketches within 1e-4, under the names in the file; a prefix of the script's own module is left out.
    Not seen: tensors that are no floating-point numbers.
    """
    weights = saved_weights(trial)
    if isinstance(weights, Verdict):
        return weights
    prefix = next((one for one in PREFIXES if any(name.startswith(one) for name in weights.names)), None)
    if prefix:
        return broken(f"the names in model.pt begin with {prefix!r}: it is the wrapper that was saved, not the network")
    steps = [rank.steps for rank in trial.evidence.ranks if rank.steps]
    if not steps:
        return unseen("no rank trained")
    names = set(weights.names)
    last = saved_names(steps[0][-1].after, names)
    # Weights that are windows into one flat tensor have names of no optimizer.
    missing = sorted(name for name in set(last) - names if not name.startswith(UNNAMED))
    if missing:
        return broken(f"model.pt lacks {listed(missing)}")
    if is_same(weights, saved_names(steps[0][0].seen, names)) and len(steps[0]) > 1:
        return broken("the weights in model.pt are those before the first step")
    judged = [saved_names(rank.evaluations[-1].weights, names) for rank in trial.evidence.ranks if rank.evaluations]
    found = [one for one in (last, mean_of_last(steps, names), *judged) if one.keys() & weights.sketches.keys()]
    if found and not any(is_same(weights, one) for one in found):
        rows, epochs = len(trial.artifacts.metrics), len(trial.evidence.epochs(0))
        if rows < epochs:
            return broken(f"the record has {rows} of {epochs} epochs, so model.pt lacks what the last one taught")
        return broken("the weights in model.pt are those neither after the last step nor of the last validation")
    return HOLDS


def is_same(weights, sketches):
    """Say whether the saved ``weights`` are those sketched, as far as both are known."""
    return bool(weights.sketches.keys() & sketches.keys()) and not differing([weights.sketches, sketches])


def saved_names(sketches, names):
    """Return ``sketches`` by the ``names`` in model.pt; a module of the script's own puts another name before them."""
    found = {}
    for name, one in sketches.items():
        parts = name.split(".")
        ends = (".".join(parts[at:]) for at in range(len(parts)))
        found[next((end for end in ends if end in names), name)] = one
    return found


def mean_of_last(steps, names):
    """Return the mean over the ranks of their weights after the last step (ranks may average weights)."""
    every = [saved_names(own[-1].after, names) for own in steps]
    return {
        name: torch.tensor([one.get(name, every[0][name]) for one in every]).mean(dim=0).tolist() for name in every[0]
    }


def reports_the_truth(trial):
    """The reported accuracy is that of the saved network on all test images, each counted once.

    Within ``EXACT`` (2e-5, a fiftieth of one test image). Assumes that the network is one of the course's. Where
    ranks hold other weights than each other, what each of them said of its own images counts. Not seen: the
    reported loss, and epochs before the last; the run as one process tells of both.
    """
    if isinstance(saved_weights(trial), Verdict):
        return unseen("there are no saved weights to judge by")
    predictions, test = trial.artifacts.predictions, trial.evidence.data.test
    if predictions is None:
        return unseen("the saved weights fit no network of the course")
    correct = predictions == test.labels
    accuracy = correct.float().mean().item()
    reported = reported_accuracy(trial, accuracy)
    if reported is None:
        return broken("the run reports no validation accuracy in its record")
    if abs(reported - accuracy) < EXACT:
        return wasteful(trial) or HOLDS
    if is_true_of_each_ranks_own(trial, reported):
        return Verdict(True, "the ranks judge with weights of their own, and what they report is true of those")
    if abs(reported / 100 - accuracy) < EXACT:
        return broken(
            f"the run reports a validation accuracy of {reported:.4g}, in percent; the record is in fractions of 1"
        )
    return broken(
        f"the run reports a validation accuracy of {reported:.4f}; the saved network has {accuracy:.4f}"
        f" ({int(correct.sum())} of {len(test)}){explained(trial, correct, reported)}",
        next((rank.evaluations[-1].line for rank in trial.evidence.ranks if rank.evaluations), None),
    )


def is_true_of_each_ranks_own(trial, reported):
    """Say whether the ranks judge with weights of their own, and ``reported`` is what those get on all test images."""
    judged = [rank.evaluations[-1] for rank in trial.evidence.ranks if rank.evaluations]
    rows = sorted(row for one in judged for row in one.rows if row is not None)
    if not have_weights_of_their_own(trial) or any(one.correct is None for one in judged):
        return False
    is_each_once = rows == list(range(len(trial.evidence.data.test)))
    return is_each_once and abs(sum(one.correct for one in judged) / len(rows) - reported) < EXACT


def have_other_statistics_than_saved(trial, evaluations):
    """Say whether the running statistics of the network that was judged are not those in ``model.pt``."""
    saved = trial.artifacts.weights
    judged = {name: one for name, one in evaluations[0].buffers.items() if isinstance(one, list)}
    kept = {name: sketch(torch.tensor(one)) for name, one in saved_names(judged, saved.sketches).items()}
    return bool(kept.keys() & saved.sketches.keys()) and bool(differing([saved.sketches, kept]))


def have_weights_of_their_own(trial):
    """Say whether the ranks hold different weights after the last step."""
    last = [rank.steps[-1].after for rank in trial.evidence.ranks if rank.steps]
    return len(last) > 1 and all(last) and bool(differing(last))


def wasteful(trial):
    """Return a verdict that holds, with advice, where every rank judged everything."""
    counts = [len(rank.evaluations[-1].rows) for rank in trial.evidence.ranks if rank.evaluations]
    total = len(trial.evidence.data.test)
    if len(counts) > 1 and all(count == total for count in counts):
        return Verdict(
            True,
            f"each of {len(counts)} ranks judges all {total} test images; shared out, that takes less time",
        )
    return None


def reported_accuracy(trial, truth):
    """Return the last accuracy in ``metrics.csv``; without that, the number nearest ``truth`` in what was written."""
    rows = trial.artifacts.metrics
    if rows and "val_accuracy" in rows[-1]:
        return number(rows[-1]["val_accuracy"])
    texts = [text[-MOST_TEXT:] for text in (*trial.artifacts.texts.values(), trial.outcome.logs[0])]
    found = [float(one) for text in texts for one in re.findall(r"\d{1,3}\.\d{1,17}", text)]
    candidates = [one for value in found for one in (value, value / 100) if 0 <= one <= 1]
    near = min(candidates, key=lambda one: abs(one - truth), default=None)
    if near is None:
        return None
    return truth if abs(near - truth) < 6e-4 else near


def explained(trial, correct, reported):
    """Say what about the evaluation makes its number wrong, as far as it was seen."""
    evaluations = [rank.evaluations[-1] for rank in trial.evidence.ranks if rank.evaluations]
    rows = [[row for row in one.rows if row is not None] for one in evaluations]
    if not any(rows):
        return ""
    total = len(correct)
    means = [correct[own].float().mean().item() for own in rows if own]
    together = [row for own in rows for row in own]
    twice, missed = len(together) - len(set(together)), total - len(set(together))
    if missed:
        return f": only {total - missed} of the {total} test images were judged"
    if any(one.in_training_mode for one in evaluations):
        return ": the network was in training mode"
    if differing_buffers(evaluations):
        return ": the ranks judged with running statistics of their own"
    if have_weights_of_their_own(trial):
        return ": the ranks judged with weights of their own"
    if len(rows) > 1 and 0 < twice < total:
        return f": {twice} of the {total} test images counted twice"
    if len(means) > 1 and abs(sum(means) / len(means) - reported) < EXACT:
        return ": it is the mean of the ranks' means, whose shares are not of one size"
    if len(means) > 1 and any(abs(one - reported) < EXACT for one in means):
        return ": it is the accuracy of one rank's share"
    if have_other_statistics_than_saved(trial, evaluations):
        return ": the network that was judged has other running statistics than the one that was saved"
    pixels = [one.pixels for one in evaluations if one.pixels]
    if pixels and max(high for _, high in pixels) <= 1:
        low, high = min(low for low, _ in pixels), max(high for _, high in pixels)
        return f": the network was given pixels from {low:.3g} to {high:.3g}, but takes them as bytes, from 0 to 255"
    return ": every image was judged once, so the sums are put together wrongly"


def evaluates_in_evaluation_mode(trial):
    """BatchNorm and dropout are in evaluation mode while the network is judged.

    Seen is the mode of BatchNorm and dropout layers in each pass that teaches nobody. Not seen: layers of the
    script's own.
    """
    evaluations = [one for rank in trial.evidence.ranks for one in rank.evaluations]
    if not evaluations:
        return unseen("no validation was seen")
    wrong = next((one for one in evaluations if one.in_training_mode), None)
    return HOLDS if wrong is None else broken("the network is in training mode while it is judged", wrong.line)


def trains_in_training_mode(trial):
    """BatchNorm and dropout are in training mode while the network learns, also after it was judged.

    Seen is the mode of BatchNorm and dropout layers, in a network without them that of all leaves. Not seen: a
    layer of the script's own with two modes.
    """
    for rank in trial.evidence.ranks:
        for at, step in enumerate(rank.steps, start=1):
            if not step.in_training_mode:
                return broken(f"in step {at} the network learns in evaluation mode", step.line)
    return HOLDS if any(rank.steps for rank in trial.evidence.ranks) else unseen("no rank trained")


def differing_buffers(evaluations):
    """Return the names of buffers with which the ranks judge that are not the same."""
    names = [name for name, value in evaluations[0].buffers.items() if isinstance(value, list)]
    held = [one for one in evaluations if all(name in one.buffers for name in names)]
    return differing([{name: one.buffers[name] for name in names} for one in held]) if len(held) > 1 else []


def judges_alike(trial):
    """All ranks that take part in validation judge the same network: its weights, its running statistics.

    Compared are running statistics within 1e-4, in every validation. Not seen: ranks that judge with other weights;
    ``stays_in_lockstep`` tells of those.
    """
    ranks = [rank.evaluations for rank in trial.evidence.ranks if rank.evaluations]
    if not ranks:
        return unseen("no validation was seen")
    for evaluations in zip(*ranks, strict=False):
        names = differing_buffers(evaluations)
        if names:
            return broken(f"the ranks judge with running statistics of their own: {listed(names)}", evaluations[0].line)
    return HOLDS


def judges_test_images(trial):
    """It is the test images that are judged; a pass over those of training besides, for their accuracy, is no fault.

    One image that is not of the test set is enough. Not seen: images that were changed, where they were fetched
    otherwise than from the dataset's own tensor.
    """
    evaluations = [one for rank in trial.evidence.ranks for one in rank.evaluations]
    if not evaluations:
        return unseen("no validation was seen")
    rows = [row for one in evaluations for row in one.rows]
    if not rows:
        return broken("images of the training set are judged, and no test image", evaluations[0].line)
    strangers = sum(row is None for row in rows)
    return (
        HOLDS if not strangers else broken(f"{percent(strangers, len(rows))} of the images judged are not test images")
    )
