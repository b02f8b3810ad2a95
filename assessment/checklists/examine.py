"""Examine a script by the checklist of its lab.

``examine(script, lab, order)`` runs the trials and judges them. ``judge(lab, script, run, order)`` is the second half
alone, a pure function from trials to a ``Result``: the state of every step, and one root cause.
"""

import time
from contextlib import ExitStack, contextmanager
from copy import copy
from pathlib import Path
from tempfile import mkdtemp

from assessment.checklists.lab import DONE, UNBEGUN, UNSEEN, WRONG, Miss, Result
from assessment.laws.group import joins, meets, survives
from assessment.laws.verdict import unseen
from assessment.starters.difference import untouched_steps
from assessment.starters.make import is_untouched
from assessment.trials.data import Stage, trial_data
from assessment.trials.fork_server import ForkServer
from assessment.trials.plan import Plan, Trials
from assessment.trials.salvage import remove
from utils.errors import UserError
from utils.files import refuse_special

PROCESSES = 3  # that are compared with one
LOCKED = "another run is writing to"  # what a record says that a second rank opens


def examine(script, lab, order, server=None, stage=None, look=None, tell=None):
    """Run ``lab``'s trials on ``script`` and return the ``Result``; a learner's mistake is a result, no error.

    ``order`` lists all laws from cause to consequence. Who examines many scripts hands over a ``ForkServer``, and
    the ``Stage`` with the data for trials. ``look`` is shown the trials by name and the ``Result``, while what
    the trials left is still there; ``tell`` is shown the ``Result`` so far after each of the lab's trials.
    """
    script = Path(script).absolute()
    refuse_special(script)
    try:
        text = script.read_text(encoding="utf-8", errors="replace")  # what Python says of other bytes, a run tells
    except OSError:
        raise UserError(f"{script} cannot be read: name a lab's script") from None
    if is_untouched(text):
        return Result(lab, script, {item.number: UNSEEN for item in lab.items}, [], is_untouched=True)
    began, untouched = time.monotonic(), untouched_steps(lab.name, text)
    tell_so_far = tell and (lambda trials: tell(judge(lab, script, trials.done, order, untouched)))
    with tried(script, lab, untouched, server, stage, tell_so_far) as trials:
        result = judge(lab, script, trials.done, order, untouched)
        if look:
            look(trials.done, result)
    result.seconds, result.unknown = time.monotonic() - began, trials.unknown
    return result


@contextmanager
def tried(script, lab, untouched=frozenset(), server=None, stage=None, tell=None):
    """Put ``script`` through ``lab``'s trials and yield the ``Trials``; what they left goes when the block ends.

    ``tell`` is shown the ``Trials`` after each.
    """
    with ExitStack() as stack:
        are_apart = any(not plan.is_watched for plan in lab.plans)
        server = server or stack.enter_context(ForkServer(stands_by=are_apart))
        folder = Path(mkdtemp(prefix="lockstep-check-", dir=server.work))
        stack.callback(remove, folder)
        server.show_to_ranks(folder)
        if stage is None:
            stage = Stage(trial_data(lab.dataset), folder).keep(any(plan.is_cold for plan in lab.plans))
        own = Trials(server, script, stage, folder, lab.optional, lab.record_step in untouched)
        for plan in filter(own.is_due, lab.plans):
            trial = own.attempt(plan)
            if LOCKED in trial.outcome.failure and asked(joins, trial) and not own.apart:
                own.apart = True  # all ranks keep the record: each in a folder of its own they show what else they do
                trial = own.attempt(plan)
            is_over = trial.outcome.state == "finished" or trial.run.is_to_end
            if tell:
                tell(own)
            if not is_over and not plan.is_cold:
                break  # what a broken run shows in other trials would only repeat it
        _compare_with_one_process(own, lab)
        yield own


def _compare_with_one_process(trials, lab):
    """Add the two runs that show whether many processes train as one, where a run has shown that there are many."""
    whole = [one for one in trials.done.values() if one.outcome.state == "finished" and not one.run.probe]
    finished = [one for one in whole if one.evidence.world_size > 1]
    joined = [one for one in finished if one.run.is_watched and asked(joins, one)]
    if not joined:
        return
    settings, batch = {"epochs": 2, "seed": 3}, 11
    has_global = "global_batch_size" in joined[0].evidence.settings
    many = {"global_batch_size": PROCESSES * batch} if has_global else {"batch_size": batch}
    one = {"global_batch_size" if has_global else "batch_size": PROCESSES * batch}
    plans = (
        Plan("many", PROCESSES, settings | many, lab.pair | lab.pair_of_many, is_calm=True, draws_alike=True),
        Plan("one", 1, settings | one, lab.pair, is_calm=True, draws_alike=True),
    )
    others = copy(trials)
    others.done = {}
    pair = tuple(others.attempt(plan) for plan in plans)
    for one in joined:
        one.undivided = pair


def asked(law, trial):
    """Return the verdict of ``law``; a fault of the checker's own is told as such and never a learner's miss."""
    try:
        return law(trial)
    except Exception as fault:
        return unseen(f"the checker itself failed at this ({law.__name__}: {type(fault).__name__}: {fault})")


def _seen(law, trial, order, ask):
    """Return the verdict of ``law``, which does not hold yet where a run ended before every rank had trained.

    Laws up to ``meets`` are about how a run begins and ends: those do.
    """
    verdict = ask(law, trial)
    is_partial = trial.outcome.state != "finished" and not all(rank.steps for rank in trial.evidence.ranks)
    is_partial = is_partial and not trial.run.probe
    return unseen() if verdict.holds and is_partial and order.index(law) > order.index(meets) else verdict


def judge(lab, script, run, order, untouched=frozenset(), ask=asked):
    """Hold the laws of every step against the trials, and put what does not hold in the order of causes.

    ``run`` maps the names of the plans that were run to their ``Trial``; ``untouched`` are the numbers of the steps
    that stand in the script as the starter has them. ``ask(law, trial)`` returns a verdict.
    A run that failed or hung names its cause; but what runs before it have shown that finished comes first.
    """
    states, misses, advice = {}, [], []
    early = {plan.name for plan in lab.plans if not plan.is_cold and plan.name in run}
    early = {name for name in early if run[name].outcome.state != "finished" and not run[name].run.is_to_end}
    for item in lab.items:
        # Where a broken run ended the check early, what its trial showed is all that there is.
        verdicts = [(name, law, _seen(law, run[name], order, ask)) for name, law in item.laws if name in run]
        told = {law: one.symptom for _, law, one in verdicts if one.holds and one.symptom}  # of each law once
        missed = [Miss(law, one, item, name in early) for name, law, one in verdicts if not one.holds]
        is_wrong = any(one.verdict.holds is False for one in missed)
        lacks = not verdicts or (item.points and len(verdicts) < len(item.laws))  # marks need every trial
        states[item.number] = WRONG if is_wrong else UNSEEN if missed or lacks else DONE
        advice += told.values() if not is_wrong else ()
        misses += missed
    # How calls and runs that are to end before their time end, laws of their own tell.
    whole = [(name, one) for name, one in run.items() if not one.run.probe and not one.run.is_to_end]
    ends = [(name, law, ask(law, one)) for name, one in whole for law in (survives, meets)]
    misses += [Miss(law, verdict, ended_early=name in early) for name, law, verdict in ends if not verdict.holds]
    misses.sort(key=lambda miss: (miss.ended_early, order.index(miss.law)))  # stable: of one law the first trial first
    if all(state == DONE for state in states.values()):
        untouched = set()  # done in other places
    states |= dict.fromkeys(untouched, UNBEGUN)
    return Result(
        lab,
        script,
        states,
        misses,
        advice=list(dict.fromkeys(advice)),
        ends={name: trial.outcome.state for name, trial in run.items()},
        has_trained=any(rank.steps for trial in run.values() for rank in trial.evidence.ranks),
        untouched=set(untouched),
    )
