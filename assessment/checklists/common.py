"""What the checklists share: the usual trials, the order of causes, and what every lab from 03 on must keep."""

from assessment import by_hand, clocks, judging, laws, profiles, rates, records, shares, watched
from assessment import statistics_of_ranks as statistics
from assessment.checklist import Item, Lab
from assessment.starters.difference import steps

DOCS = "pytorch.org/docs/stable"
TWO, THREE, COLD = "two processes", "three processes", "nothing prepared"

# From cause to consequence: the first broken law is the one to look at.
# A rate at which accuracies go up and down, and the same run stopped by a target between them.
UNSTEADY = {"base_lr": "0.4"}
STOPPED = UNSTEADY | {"target_accuracy": records.telling_target, "patience": "2"}
ORDER = (
    laws.knows_its_rank, laws.joins, records.one_rank_writes, records.prepares_once, laws.survives, laws.meets,
    by_hand.divides_by_load, by_hand.takes_its_part, laws.starts_alike, judging.trains_in_training_mode,
    laws.trains_all_layers, statistics.is_used,
    statistics.takes_statistics_of_all, statistics.sends_gradients_through, statistics.keeps_running_statistics,
    by_hand.goes_round_the_ring, laws.averages, laws.steps_alike, laws.stays_in_lockstep,
    shares.shares_are_disjoint, shares.shares_are_the_data, shares.labels_fit, shares.settings_are_obeyed,
    shares.orders_change, shares.obeys_the_seed, clocks.computes_as_asked, rates.ignores_the_processes,
    rates.knows_the_factor,
    rates.follows_the_batch, rates.remembers, rates.schedule_moves, rates.rates_follow_the_plan,
    rates.chooses_the_optimizer, rates.divides_by_the_layers_size, rates.takes_novograd_steps,
    statistics.combines_running_statistics, judging.judges_test_images, judging.evaluates_in_evaluation_mode,
    judging.judges_alike, judging.saves_the_network, judging.reports_the_truth, watched.is_the_same_unwatched,
    records.stops_together,
    records.one_rank_prints, records.states_the_effective_batch, clocks.times_training, records.records_epochs,
    records.times_the_slowest_rank, profiles.measures_a_step, profiles.measures_waiting,
    profiles.measures_communication, profiles.counts_the_cost,
)  # fmt: skip


def everywhere(*wanted):
    """Return ``wanted`` laws for the trials with two and with three processes."""
    return tuple((name, law) for law in wanted for name in (TWO, THREE))


KEPT = Item(
    0,
    "what the earlier chapters built",
    everywhere(
        laws.joins, laws.starts_alike, judging.trains_in_training_mode, laws.trains_all_layers, laws.averages,
        laws.steps_alike, laws.stays_in_lockstep,
        shares.shares_are_disjoint, shares.shares_are_the_data, shares.labels_fit, shares.settings_are_obeyed,
        shares.orders_change, judging.evaluates_in_evaluation_mode, judging.judges_test_images, judging.judges_alike,
        judging.saves_the_network, judging.reports_the_truth, records.one_rank_prints, records.one_rank_writes,
        records.records_epochs,
    ),
    "the script that this lab began with did this rightly; a change of yours has broken it",
    "compare with the starter: reset gives it back, and keeps yours beside it",
)  # fmt: skip


def lab(name, plans, steps_laws, kept=KEPT, **options):
    """Return the ``Lab`` of the script ``name``: its steps with laws and hints by number, after what was ``kept``."""
    own = (Item(step.number, step.title, *steps_laws[step.number]) for step in steps(name))
    return Lab(name, plans, (*filter(None, [kept]), *own), **options)
