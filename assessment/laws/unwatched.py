"""The law that being watched changes nothing."""

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
    one, other = saved_weights(watched), saved_weights(trial)
    if isinstance(one, Verdict) or isinstance(other, Verdict):
        return unseen("there are no saved weights to compare")
    if set(one.names) != set(other.names) or one.sketches.keys() != other.sketches.keys():
        return broken("the run that was not watched saved another network")
    apart = distance(other.sketches, one.sketches)
    if apart <= SAME:
        return HOLDS
    return broken(
        f"the weights differ by {100 * apart:.2g} % from those of the same run under the recorder: the script"
        " depends on something else than its settings and its seed"
    )
