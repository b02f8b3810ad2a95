"""What the recording of a submission leads to: the result of judging it, without a process."""

from functools import cache

from recording import AGAIN, digest, judged, load, path_of, played
from submitted import submissions

from assessment.checklists.examine import asked

ALL = [*submissions("right"), *submissions("wrong")]
KNOWN = {}  # (id of a trial, law) -> verdict: laws are pure


@cache
def recordings(path):
    return load(path)


@cache
def run_of(submission):
    """Return the recorded trials of ``submission`` by name."""
    assert is_recorded(submission), f"not recorded as it stands: {AGAIN} {submission.lab} '{submission.name}'"
    return played(submission, recordings(path_of(submission))[submission.name]["trials"])


def known(law, trial):
    """Return the verdict of ``law`` on a recorded ``trial``, worked out once."""
    if (id(trial), law) not in KNOWN:
        KNOWN[id(trial), law] = asked(law, trial)
    return KNOWN[id(trial), law]


def outcome(submission, ask=known):
    """Return the ``Result`` that the recording of ``submission`` leads to."""
    return judged(submission, run_of(submission), ask)


def is_recorded(submission):
    return recordings(path_of(submission)).get(submission.name, {}).get("digest") == digest(submission)


def named_submission(lab, name):
    (found,) = [one for one in ALL if (one.lab, one.name) == (lab, name)]
    return found
