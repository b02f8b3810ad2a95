"""The laws that nothing but its settings changes a run: not being watched, and not what an earlier run has left."""

from assessment.laws.validation import saved_weights
from assessment.laws.verdict import HOLDS, Verdict, broken, unseen
from assessment.recorder.sketch import distance

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

    Within ``SAME`` (1e-4 of the size of all weights). Nobody has asked it to go on from the other. Not seen: what lies
    elsewhere than in the folders of the data and of the record.
    """
    first = trial.reference
    if trial.outcome.state != "finished" or first is None or first.outcome.state != "finished":
        return unseen("there are no two runs to compare")
    return _ends_alike(
        trial,
        "the second run in the same folders",
        "in a folder that was empty: the script takes up what an earlier run has left there, and nobody asked it to",
    )


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
