"""What no script of ours shows: evidence of a right one in which one thing is another, and the law that finds it."""

import math
from dataclasses import replace

import pytest
from altering import (
    a_layer_that_stands_still,
    altered,
    always,
    an_epoch_short,
    as_many,
    each,
    each_call_twice,
    ends,
    evaluations,
    events,
    every_other_message_twice,
    first,
    first_statistics,
    happens,
    images_of_the_other_rank,
    metrics,
    moved,
    no_step_without_communication,
    others_than_the_undivided,
    prefixed,
    profile,
    put,
    steps,
    the_same_order_again,
    times,
    weights,
    written,
)  # fmt: skip
from mutants import named
from outcomes import ALL, run_of

from assessment.checklists.common import COLD, THREE, TWO
from assessment.checklists.lab_01 import FULL
from assessment.checklists.lab_03 import FREE, STOPS
from assessment.checklists.lab_08 import DECAYING
from assessment.checklists.lab_12 import GOES_ON, NO_NUMBER, STOPPED
from assessment.checklists.lab_assessment import UNWATCHED
from assessment.trials.artifacts import Weights
from assessment.trials.data import TEST
from assessment.trials.evidence import Rank

CRASH = "the checker itself failed"
NAN = math.nan


def weights_of_the_other_seed(trials):
    for rank in trials[THREE].evidence.ranks:
        rank.steps[0].seen = trials[TWO].evidence.ranks[0].steps[0].seen


def an_epoch_past_the_target(trials):
    for rank in trials[STOPS].evidence.ranks:
        rank.steps = [*rank.steps, *rank.steps[: len(trials[FREE].evidence.ranks[0].steps) // 8]]


def nothing_moves(trial):
    for rank in trial.evidence.ranks:
        for step in rank.steps:
            step.seen = rank.steps[0].seen


def a_row_short(trial):
    text = trial.artifacts.texts["metrics.csv"]
    trial.artifacts.texts = trial.artifacts.texts | {"metrics.csv": "".join(text.splitlines(keepends=True)[:-1])}


def no_texts(trial):
    trial.artifacts.texts = {}


IN_ONE_TRIAL = {
    ("03", TWO): {
        "a gradient twice as large": (steps(put(applied=times(2))), "averages"),
        "a larger gradient in one step of a rank": (steps(put(applied=times(1.1)), 4, rank=1), "averages"),
        "a gradient that is no number": (steps(put(norms=times(NAN)), 3, rank=0), "averages"),
        "weights that begin apart": (steps(put(seen=times(1.01)), 0, rank=1), "starts_alike"),
        "weights that part": (steps(put(seen=times(1.01)), 7, 8, 9, rank=1), "stays_in_lockstep"),
        "a step in evaluation mode": (steps(put(in_training_mode=always(False)), 6), "trains_in_training_mode"),
        "a layer that stands still": (a_layer_that_stands_still, "trains_all_layers"),
        "a rank with another rate": (steps(put(rates=times(1.01)), 5, rank=1), "steps_alike"),
        "a rank that misses a step": (lambda trial: trial.evidence.ranks[1].steps.pop(), "steps_alike"),
        "two images for both ranks": (images_of_the_other_rank(2), "shares_are_disjoint"),
        "one image for both ranks, to fill up a share": (images_of_the_other_rank(1), "done"),
        "an image of another set": (steps(put(rows=first(None)), 2, rank=1), "shares_are_the_data"),
        "labels one further": (steps(put(labels=lambda own: [(one + 1) % 10 for one in own])), "labels_fit"),
        "an epoch short": (an_epoch_short, "settings_are_obeyed"),
        "one order for all epochs": (the_same_order_again, "orders_change"),
        "an accuracy one image too high": (metrics(val_accuracy=lambda one: one + 1 / TEST), "reports_the_truth"),
        "an accuracy one image too low": (metrics(val_accuracy=lambda one: one - 1 / TEST), "reports_the_truth"),
        "no accuracy anywhere": (
            lambda trial: no_texts(trial) or ends("finished", logs=[""])(trial),
            "reports_the_truth",
        ),
        "columns of other names": (written("train_loss", "loss", "metrics.csv"), "records_epochs"),
        "training mode while judged": (
            evaluations(put(in_training_mode=always(True))),
            "evaluates_in_evaluation_mode",
        ),
        "an image judged that is none of the test's": (evaluations(put(rows=first(None))), "judges_test_images"),
        "stale running statistics": (evaluations(put(buffers=times(1.1))), "judges_alike"),
        "the wrapper saved": (weights(prefixed), "saves_the_network"),
        "other weights saved": (weights(moved), "saves_the_network"),
        "a layer not saved": (weights(lambda one: replace(one, names=one.names[:-1])), "saves_the_network"),
        "no weights saved": (weights(always(None)), "saves_the_network"),
        "weights that cannot be read": (weights(always("model.pt is a song")), "saves_the_network"),
        "both ranks print": (happens("print", text="epoch 1"), "one_rank_prints"),
        "both ranks write": (happens("write", path="{run_dir}/metrics.csv"), "one_rank_writes"),
        "images/s of one rank": (metrics(images_per_s=times(0.5)), "records_epochs"),
        "a loss that is no number": (metrics(0, train_loss=times(NAN)), "records_epochs"),
        "the batch of one process": (
            written('"effective_batch": 32', '"effective_batch": 16'),
            "states_the_effective_batch",
        ),
        "a rank outside the group": (events("group"), "joins"),
        "a group of one": (events("group", world_size=1), "joins"),
        "days of patience": (events("group", timeout_s=60 * 86_400), "joins"),
        "two ranks of one number": (events("group", rank=0), "joins"),
        "a rank that never asks": (events("asks its rank"), "knows_its_rank"),
        "no weight that moves": (nothing_moves, "trains_all_layers"),
        "a run that says that it goes on": (
            written('"state": "finished"', '"state": "running"'),
            "records_epochs",
        ),
        "a time that starts anew": (metrics(1, time_s=times(0.5)), "records_epochs"),
        "the rate of another run": (metrics(1, lr=times(2)), "records_epochs"),
        "two images more that were right": (
            metrics(1, train_accuracy=lambda one: one + 2 / 192),
            "counts_correct_answers",
        ),
        "a loss of one share": (
            as_many(metrics(1, train_loss=times(1.1))),
            "reports_training_as_one_process",
        ),
        "a loss of one share of the test images": (
            as_many(metrics(0, val_loss=times(0.9))),
            "reports_validation_as_one_process",
        ),
        "other weights than one process has": (others_than_the_undivided, "trains_as_one_process"),
        "ranks that draw the same": (
            lambda trial: [events("forward", rank, generator=7)(trial) for rank in (0, 1)],
            "draws_apart",
        ),
        "training images judged": (
            lambda trial: [put(rows=always([]))(one) for rank in trial.evidence.ranks for one in rank.evaluations],
            "judges_test_images",
        ),
        "a rank that dies": (ends("failed", failure="KeyError: 7", exits={0: 0, 1: 1}), "survives"),
        "ranks that wait": (ends("hung", exits={}), "meets"),
    },
    ("03", THREE): {
        "the time of the fastest rank": (
            metrics(0, epoch_time_s=times(0.1), images_per_s=times(10), time_s=times(0.1)),
            "records_epochs",
        ),
        "a rate by the processes": (as_many(steps(put(rates=times(1.5)))), "ignores_the_processes"),
    },
    ("03", COLD): {"both ranks prepare": (happens("write", path="{data_dir}/digits.pt"), "prepares_once")},
    ("01", FULL): {
        "bfloat16 where float32 was asked for": (steps(put(dtype=always("torch.bfloat16"))), "computes_as_asked"),
        "an epoch of no number of seconds": (metrics(1, epoch_time_s=times(NAN)), "times_training"),
        "a clock that counts validation": (metrics(1, epoch_time_s=lambda one: one + 0.3), "times_training"),
    },
    ("02", TWO): {
        "an image more than the load allows": (steps(put(rows=lambda own: [*own, 7]), rank=1), "divides_by_load"),
        "an image that two ranks take": (images_of_the_other_rank(1), "takes_its_part"),
        "statistics of its own": (evaluations(put(buffers=times(1.001)), at=0), "combines_running_statistics"),
        "a gradient of its own, for all the messages": (
            steps(lambda step: vars(step).update(applied=step.local)),
            "goes_round_the_ring",
        ),
        "more messages than a ring needs": (every_other_message_twice, "goes_round_the_ring"),
        "a ring of torch's": (happens("collective", 0, name="all_reduce", numel=9_000), "goes_round_the_ring"),
    },
    ("04", TWO): {
        "outputs of its own share": (events("forward", 0, logits=[[0.0] * 10] * 16), "takes_statistics_of_all"),
        "a gradient of its own share": (steps(put(applied=times(1.02)), 0), "sends_gradients_through"),
        "no running statistics": (first_statistics(lambda buffers: {}), "keeps_running_statistics"),
        "running statistics of its own share": (first_statistics(times(1.001)), "keeps_running_statistics"),
    },
    ("05", TWO): {
        "no profile": (written("step_ms", "profile"), "measures_a_step"),
        "no step without communication": (no_step_without_communication, "measures_a_step"),
        "twice the time of a step": (profile(computing=times(3)), "measures_a_step"),
        "a second of waiting": (profile(waiting=lambda one: one + 1000), "measures_waiting"),
        "a long time of messages": (profile(communicating=lambda one: one + 500), "measures_communication"),
        "the seconds of one device": (profile(device_seconds=times(0.5)), "counts_the_cost"),
    },
    ("06", THREE): {"a rate one percent off": (steps(put(rates=times(1.01))), "follows_the_batch")},
    ("07", TWO): {
        "a step that does not move": (steps(lambda step: vars(step).update(after=step.before), 3), "remembers"),
        "a schedule told of each step twice": (each_call_twice, "schedule_moves"),
    },
    ("08", DECAYING): {"a last step at the first rate": (steps(put(rates=times(0.9)), 9), "rates_follow_the_plan")},
    ("09", TWO): {"a layer of another size": (steps(put(norms=times(2)), 5), "takes_novograd_steps")},
    ("12", GOES_ON): {
        "a rate that was not saved": (steps(put(rates=times(2)), 0), "restores_the_optimizer"),
        "two steps too few": (lambda trial: [rank.steps.pop(0) for rank in trial.evidence.ranks * 2], "goes_on"),
        "an epoch that is not in the record": (a_row_short, "ends_as_if_undisturbed"),
        "other weights at the end": (weights(moved), "ends_as_if_undisturbed"),
        "another loss of training": (metrics(1, train_loss=times(1.1)), "ends_as_if_undisturbed"),
    },
    ("12", STOPPED): {
        "a rank that takes a step more": (
            lambda trial: trial.evidence.ranks[1].steps.append(trial.evidence.ranks[1].steps[-1]),
            "stops_after_the_same_step",
        ),
        "a run that nothing stops": (
            lambda trial: [vars(rank).update(steps=rank.steps * 2) for rank in trial.evidence.ranks],
            "stops_after_the_same_step",
        ),
        "another state": (written('"state": "stopped"', '"state": "running"'), "stops_after_the_same_step"),
    },
    ("12", NO_NUMBER): {
        "a run that hangs": (ends("hung", exits={}), "names_the_culprit"),
        "nobody named": (ends("failed", logs=["no number", ""]), "names_the_culprit"),
    },
    ("assessment", UNWATCHED): {
        "other weights when nobody watches": (weights(moved), "is_the_same_unwatched"),
        "another network when nobody watches": (weights(prefixed), "is_the_same_unwatched"),
        "no end when nobody watches": (ends("hung", exits={}), "meets"),
    },
}
OF_SEVERAL = {
    "weights that no seed moves": (weights_of_the_other_seed, "obeys_the_seed"),
    "an epoch past the target": (an_epoch_past_the_target, "stops_together"),
}
CASES = [
    pytest.param(lab, each(change, trial), law, id=f"{lab} {what}")
    for (lab, trial), cases in IN_ONE_TRIAL.items()
    for what, (change, law) in cases.items()
]
CASES += [pytest.param("03", change, law, id=f"03 {what}") for what, (change, law) in OF_SEVERAL.items()]


def test_ranks_that_show_no_gradients_are_held_against_one_process():
    result = altered("03", each(others_than_the_undivided, TWO), "FSDP")
    assert named(result) == "averages" and "one process" in result.cause.verdict.symptom


@pytest.mark.parametrize(("lab", "change", "law"), CASES)
def test_one_changed_thing_is_named_by_its_law(lab, change, law):
    result = altered(lab, change)
    told = [f"{miss.law.__name__}: {miss.verdict.symptom}" for miss in result.misses]
    assert named(result) == law, told
    assert not any(CRASH in line for line in told)


def without(what):
    def change(trial):
        for rank in trial.evidence.ranks:
            setattr(rank, what, [])

    return change


def half_of(what):
    return lambda trial: put(**{what: lambda held: held[: len(held) // 2]})(trial.evidence.ranks[-1])


def no_number(trial):
    names = ("seen", "before", "after", "local", "applied", "norms", "weights", "buffers")
    steps(put(**{name: times(NAN) for name in names}))(trial)


def one_rank_gone(trial):
    trial.evidence.ranks[-1] = Rank(len(trial.evidence.ranks) - 1, [])


def nonsense(trial):
    trial.artifacts.texts = dict.fromkeys(("metrics.csv", "log.txt"), "\x00,;\n{}")


MAIMED = {
    "no events": without("events"),
    "no steps": without("steps"),
    "no validation": without("evaluations"),
    "half the events of a rank": half_of("events"),
    "half the steps of a rank": half_of("steps"),
    "a rank is gone": one_rank_gone,
    "nothing is a number": no_number,
    "no images": steps(put(rows=always([]), labels=always([]), weights=always([]))),
    "no gradients": steps(put(local=always({}), applied=always({}), norms=always({}))),
    "no weights seen": steps(put(seen=always({}), before=always({}), after=always({}))),
    "no rates": steps(put(rates=always([]))),
    "no record": no_texts,
    "nonsense in the record": nonsense,
    "no saved weights": weights(always(None)),
    "saved weights of nothing": weights(always(Weights((), {}))),
    "a failure": ends("failed", failure="Killed", exits={0: 1}),
    "a hang": ends("hung", exits={}),
}  # fmt: skip


@pytest.mark.parametrize("maimed", MAIMED.values(), ids=MAIMED)
@pytest.mark.parametrize("lab", sorted({one.lab for one in ALL}))
def test_whatever_is_lacking_no_law_fails_of_its_own(lab, maimed):
    (solution,) = [one for one in ALL if one.lab == lab and one.name == "the solution"]
    names = list(run_of(solution))
    for chosen in (names, names[:1], names[1:2]):
        result = altered(lab, each(maimed, *chosen))
        assert not [miss.verdict.symptom for miss in result.misses if CRASH in miss.verdict.symptom]
