"""What the checklists share: the usual trials, the order of causes, and what every lab from 03 on must keep."""

from dataclasses import replace

from assessment.checklists.lab import Item, Lab
from assessment.laws import (
    accumulation,
    batchnorm,
    by_hand,
    group,
    images,
    lockstep,
    optimizers,
    properties,
    rates,
    records,
    stopping,
    survival,
    timing,
    unwatched,
    validation,
)
from assessment.starters.difference import steps
from assessment.trials.data import TRAIN
from assessment.trials.plan import OWN, Plan
from assessment.trials.trial import CALM

DOCS = "pytorch.org/docs/stable"
TWO, THREE, COLD, AGAIN = "two processes", "three processes", "nothing prepared", "where an earlier run was"
KILLED, RESUMED = "killed in its second epoch", "started again with --resume"

# Two machines with two processes each, on both of which the process that prepares the data is slow.
COLD_START = Plan(
    COLD,
    4,
    {"epochs": 1, "batch_size": 8, "seed": 3},
    # Reached at once, and not in two epochs. Images are changed as the script does it when nobody says otherwise.
    {"target_accuracy": "0.01", "patience": "2", "augment": OWN},
    is_cold=True,
    machines=2,
    delays={"writing once:0": 1.5, "writing once:2": 1.5},
    is_calm=True,
)
# The same once more, in the folders that the first has left; in the place of its data are some that are out of date.
COLD_AGAIN = replace(COLD_START, name=AGAIN, reference=COLD, after=COLD)
# A run whose accuracies go up and down is run again, and stopped by a target between them.
STOPPED = {"target_accuracy": stopping.telling_target, "patience": "2"}
# From cause to consequence: the first broken law is the one to look at.
ORDER = (
    group.knows_its_rank, group.joins, records.one_rank_writes, records.prepares_once,
    survival.saves_no_spoilt_step, group.survives,
    group.meets, group.waits_for_what_it_starts,
    by_hand.divides_batches, by_hand.divides_by_load, by_hand.takes_its_part, lockstep.starts_alike,
    validation.trains_in_training_mode,
    lockstep.trains_all_layers, batchnorm.is_used,
    batchnorm.takes_statistics_of_all, batchnorm.computes_in_float32,
    batchnorm.sends_gradients_through, batchnorm.keeps_running_statistics,
    by_hand.adds_up_round_the_ring, by_hand.goes_round_the_ring, accumulation.takes_micro_batches,
    accumulation.weighs_images_alike,
    lockstep.averages, lockstep.steps_alike, lockstep.stays_in_lockstep, lockstep.draws_apart,
    images.shares_are_disjoint, images.shares_are_the_data, images.labels_fit, images.settings_are_obeyed,
    records.waits_with_patience,
    images.orders_change, images.shares_change, images.obeys_the_seed, timing.computes_as_asked,
    rates.ignores_the_processes, rates.knows_the_factor,
    rates.follows_the_batch, optimizers.remembers, rates.climbs, rates.schedule_moves, rates.rates_follow_the_plan,
    optimizers.chooses_the_optimizer, optimizers.divides_by_the_layers_size, optimizers.takes_novograd_steps,
    batchnorm.combines_running_statistics, validation.judges_test_images, validation.evaluates_in_evaluation_mode,
    validation.judges_alike, validation.saves_the_network, validation.reports_the_truth,
    unwatched.is_the_same_unwatched, unwatched.is_the_same_again, unwatched.is_the_same_gone_on,
    unwatched.keeps_the_rate, unwatched.remembers_when_it_goes_on, lockstep.trains_as_one_process,
    stopping.stops_together, stopping.says_what_it_reached,
    records.one_rank_prints, records.states_the_effective_batch, timing.times_training, records.records_epochs,
    records.counts_correct_answers, properties.reports_training_as_one_process,
    properties.reports_validation_as_one_process, properties.learns,
    records.times_the_slowest_rank, timing.goes_by_one_clock, timing.measures_a_step, timing.measures_waiting,
    timing.measures_communication, timing.counts_the_cost,
    accumulation.communicates_once,
    survival.saves_together, survival.saves, survival.stops_after_the_same_step, survival.goes_on,
    survival.restores_the_weights,
    survival.goes_on_with_the_next_images, survival.draws_on, survival.restores_the_optimizer,
    survival.ends_as_if_undisturbed, survival.names_the_culprit,
)  # fmt: skip


def on_two_machines(*wanted):
    """Return ``wanted`` laws for the trial on two machines."""
    return tuple((COLD, law) for law in wanted)


def everywhere(*wanted):
    """Return ``wanted`` laws for the trials with two and with three processes."""
    return tuple((name, law) for law in wanted for name in (TWO, THREE))


GOES_ON = ((RESUMED, unwatched.is_the_same_gone_on),)
KEPT_STATE = {
    unwatched.is_the_same_gone_on: (
        "a run goes on where it was saved: Saver knows in which epoch and behind which step that was, and passes over"
        " the batches that were learned from; their order must be that of the epoch, however often the run was started",
        "sampler.set_epoch(epoch), with epoch from saver.epoch on",
    )
}
# What an optimizer or a schedule of the learner's own must keep.
REMEMBERS = ((RESUMED, unwatched.remembers_when_it_goes_on),)
MEMORY = {
    unwatched.remembers_when_it_goes_on: (
        "a run that goes on has what was saved and nothing else: what state_dict returns, which of an optimizer is its"
        " state and its groups (torch.optim.Optimizer.state_dict)",
        'self.state[weight]["velocity"] for what belongs to a weight; Saver is given optimizer and schedule',
    ),
    unwatched.keeps_the_rate: (
        "a checkpoint holds the optimizer with its rate: who works out the rate anew must not do so with one that has"
        " been worked out already (torch.optim.Optimizer.load_state_dict)",
        "the optimizer is made with the rate, before Saver reads the checkpoint",
    ),
}
KEPT = Item(
    0,
    "what the earlier chapters built",
    everywhere(
        group.joins, group.waits_for_what_it_starts, lockstep.starts_alike, validation.trains_in_training_mode,
        lockstep.trains_all_layers, lockstep.averages,
        lockstep.steps_alike, lockstep.stays_in_lockstep, lockstep.trains_as_one_process,
        images.shares_are_disjoint, images.shares_are_the_data, images.labels_fit, images.settings_are_obeyed,
        images.orders_change, images.shares_change, validation.evaluates_in_evaluation_mode,
        validation.judges_test_images, validation.judges_alike,
        validation.saves_the_network, validation.reports_the_truth, records.one_rank_prints, records.one_rank_writes,
        records.records_epochs, records.counts_correct_answers, rates.ignores_the_processes,
        properties.reports_training_as_one_process, properties.reports_validation_as_one_process,
    ) + GOES_ON,
    "the script that this lab began with did this rightly; a change of yours has broken it",
    "compare with the starter: reset gives it back, and keeps yours beside it",
    own=KEPT_STATE,
)  # fmt: skip


def lab(name, plans, steps_laws, kept=KEPT, optional=frozenset(CALM), **options):
    """Return the ``Lab`` of the script ``name``: its steps with laws and hints by number, after what was ``kept``.

    Where that has a law of a run that goes on, the trials for it are added.
    """
    own = (Item(step.number, step.title, *steps_laws[step.number], own=MEMORY) for step in steps(name))
    if any(trial == RESUMED for trial, _ in kept.laws):
        plans = (*plans, *killed_and_resumed(next(plan for plan in plans if plan.name == TWO)))
        optional |= {"resume", "checkpoint_every"}
    return Lab(name, plans, (kept, *own), optional=optional, **options)


def killed_and_resumed(plan):
    """Return two more trials: ``plan`` with one of its ranks killed in the second epoch, then gone on with."""
    an_epoch = TRAIN // (plan.processes * plan.settings["batch_size"])
    kill = {f"step {an_epoch + max(2, an_epoch // 2)}:1": "SIGKILL"}
    every_step, resume = plan.flags | {"checkpoint_every": "0"}, plan.flags | {"resume": None}
    return (
        replace(plan, name=KILLED, flags=every_step, delays=kill, reference=None),
        replace(plan, name=RESUMED, flags=resume, delays={}, reference=plan.name, after=KILLED),
    )
