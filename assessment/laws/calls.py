"""What came of calling a script's functions one by one."""

from assessment.laws.verdict import HOLDS, broken


def returned(trial, name, rank=0):
    """Return the calls of the function ``name`` on ``rank`` that came to an end."""
    return [one for one in trial.evidence.ranks[rank].named("called") if one["name"] == name]


def ended(trial, name):
    """Return the verdict on calls of which none showed a mistake: every one came to its end, or there were none.

    A script may have no function of that name, or one that takes something else: then its whole runs tell.
    """
    for rank in trial.evidence.ranks:
        begun = [one for one in rank.named("calling") if one["name"] == name]
        if len(returned(trial, name, rank.number)) < len(begun):
            given = ", ".join(map(str, begun[-1]["given"]))
            return broken(f"{name}({given}) does not come to its end", begun[-1]["line"])
    return HOLDS
