"""The laws that nothing but its settings changes a run: no watching, nothing that an earlier run has left, no kill."""

from assessment.laws.survival import (
    draws_on,
    goes_on_with_the_next_images,
    place,
    restores_the_weights,
    steps_otherwise,
)
from assessment.laws.validation import saved_weights
from assessment.laws.verdict import HOLDS, Verdict, broken, listed, unseen
from assessment.recorder.sketch import distance

GOES_ON_ELSEWHERE = "killed and started again with --resume, it ends elsewhere"
SAME = 1e-4  # relative to the size of all weights; the same program on the same machine differs by nothing


def is_the_same_unwatched(trial):
    """A run without the recorder ends with the weights of the watched run with the same settings.

    The recorder changes no result, so a script that does another thing when it finds itself watched is found out.

    Within ``SAME`` (1e-4 of the size of all weights). Not seen: what a script does only at other settings than
    these.
    """
    watched = trial.reference
    if trial.outcome.state == "hung" and watched is not None and watched.outcome.state == "finished":
        return broken("the run that was watched ends; the same run, not watched, does not")
    if trial.outcome.state != "finished" or watched is None or watched.outcome.state != "finished":
        return unseen("there are no two runs to compare")
    if not any(rank.steps for rank in watched.evidence.ranks):
        return unseen("no rank trained")
    return _ends_alike(
        trial,
        "the run that was not watched",
        "under the recorder: the script depends on something else than its settings and its seed",
    )


def is_the_same_again(trial):
    """A run in the folders that an earlier one with the same settings has left ends with the weights of that one.

    Within ``SAME`` (1e-4 of the size of all weights). Nobody has asked it to go on from the other. In the place of the
    data lie such as were prepared from other images: ranks that do not wait until they are prepared anew are a remark,
    since that happens where images change. Images are changed as the script does it by itself, so both draw the same
    only where all that they draw follows ``--seed``. Not seen: what lies elsewhere than in these folders.
    """
    first = trial.reference
    if trial.outcome.state != "finished" or first is None or first.outcome.state != "finished":
        return unseen("there are no two runs to compare")
    verdict = _ends_alike(
        trial,
        "the second run in the same folders",
        "in a folder that was empty: the script takes up what an earlier run has left there, and nobody asked it to",
    )
    ranks = zip(trial.evidence.ranks, first.evidence.ranks, strict=True)
    outdated = [one.number for one, other in ranks if labels(one) != labels(other) and rows(one) == rows(other)]
    if verdict.holds is False and outdated:
        return Verdict(
            True,
            f"where data lie that were prepared from other images, rank {listed(outdated)} learns from those: wait for"
            " the rank that prepares them anew, not for its file",
        )
    if verdict.holds is False and draws_otherwise(trial):
        return broken(
            "two runs with the same --seed draw other numbers: from their first step on they learn otherwise, from the"
            " same images with the same weights"
        )
    return verdict


def labels(rank):
    """Return the labels of all images that a rank learned from, in order."""
    return [label for step in rank.steps for label in step.labels]


def rows(rank):
    """Return the numbers of all images that a rank learned from, in order."""
    return [row for step in rank.steps for row in step.rows]


def is_the_same_gone_on(trial):
    """A run that was killed and is started again with ``--resume`` ends with the weights of one that nobody killed.

    Within ``SAME`` (1e-4 of the size of all weights), where it goes on with the weights that were there and with other
    images than were to come. Where it does not, something else of it is not saved: that is a remark. Not seen: scripts
    that do not know ``--resume``; those that begin anew end alike.
    """
    if "resume" not in trial.run.flags:
        return HOLDS
    if trial.before is not None and trial.before.outcome.state == "finished":
        return Verdict(True, "no step of an optimizer was seen, so no run was killed and gone on with")
    whole = trial.reference
    if trial.outcome.state != "finished" or whole is None or whole.outcome.state != "finished":
        return unseen("there are no two runs to compare")
    verdict = _ends_alike(trial, "the run that was killed and started again", "that nobody killed")
    if verdict.holds is not False or isinstance(place(trial), Verdict):
        return verdict
    images = goes_on_with_the_next_images(trial)
    if images.holds is False and restores_the_weights(trial):
        return broken(f"{GOES_ON_ELSEWHERE}: {images.symptom}", images.line)
    return Verdict(True, f"{GOES_ON_ELSEWHERE}: not all that it draws by, or remembers beside the network, is saved")


def remembers_when_it_goes_on(trial):
    """A run that was killed and is started again with ``--resume`` has what the optimizer remembered of earlier steps.

    Judged by the first step of rank 0, to the last bit, where the same gradient moved the same weights. Not seen:
    scripts that do not know ``--resume``, and what that step does not read.
    """
    at = place(trial) if "resume" in trial.run.flags else None
    if at is None or isinstance(at, Verdict) or not draws_on(trial):
        return HOLDS
    whole = trial.reference.evidence.ranks[0]
    lost = steps_otherwise(at, trial.evidence.ranks[0].steps[0], whole.steps[at])
    return HOLDS if lost else broken(f"{GOES_ON_ELSEWHERE}: {lost.symptom}", lost.line)


def keeps_the_rate(trial):
    """A run that was killed and is started again with ``--resume`` goes on with the rate that its next step had.

    Judged by the first step of rank 0, exactly. Not seen: scripts that do not know ``--resume``, and optimizers that
    torch does not know of.
    """
    at = place(trial) if "resume" in trial.run.flags else None
    if at is None or isinstance(at, Verdict) or not trial.evidence.ranks[0].steps:
        return HOLDS
    ours, theirs = trial.evidence.ranks[0].steps[0], trial.reference.evidence.ranks[0].steps[at]
    if ours.rates == theirs.rates:
        return HOLDS
    rates = f"a rate of {listed(ours.rates)} in step {at + 1}; it was {listed(theirs.rates)}"
    return broken(f"killed and started again with --resume, the run goes on with {rates}", ours.line)


def _ends_alike(trial, other_run, where):
    one, other = saved_weights(trial.reference), saved_weights(trial)
    if isinstance(one, Verdict) or isinstance(other, Verdict):
        return unseen("there are no saved weights to compare")
    if set(one.names) != set(other.names) or one.sketches.keys() != other.sketches.keys():
        return broken(f"{other_run} saved another network")
    apart = distance(other.sketches, one.sketches)
    if apart <= SAME:
        return HOLDS
    return broken(f"the weights differ by {100 * apart:.2g} % from those of the same run {where}")


def draws_otherwise(trial):
    """Say whether ranks of ``trial`` begin with weights and images of its reference, and learn otherwise."""
    ranks = [(one, other) for one, other in zip(trial.evidence.ranks, trial.reference.evidence.ranks, strict=True)]
    if not all(one.steps and other.steps for one, other in ranks) or any(rows(one) != rows(two) for one, two in ranks):
        return False
    first = [(one.steps[0], other.steps[0]) for one, other in ranks]
    return all(one.seen == two.seen for one, two in first) and any(
        one.inputs != two.inputs or one.local != two.local for one, two in first
    )
