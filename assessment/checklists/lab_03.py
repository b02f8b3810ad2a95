"""Lab 03: DistributedDataParallel, in ten steps."""

from assessment.checklists.common import (
    AGAIN,
    COLD,
    COLD_AGAIN,
    COLD_START,
    DOCS,
    GOES_ON,
    KEPT_STATE,
    STOPPED,
    THREE,
    TWO,
    everywhere,
    lab,
    on_two_machines,
)
from assessment.checklists.lab import Item
from assessment.laws import group, images, lockstep, properties, rates, records, stopping, timing, unwatched, validation
from assessment.trials.plan import Plan
from assessment.trials.trial import CALM

FREE, STOPS = "up and down", "stops early"
PLANS = (
    Plan(TWO, 2, {"epochs": 2, "batch_size": 16, "seed": 0}),
    Plan(
        THREE,
        3,
        {"epochs": 3, "batch_size": 11, "seed": 8},
        {"timeout": "45"},
        # All load slowly once: who waited for one that does would count that time as computing.
        delays={"step 6:1": 0.3, "step 12:1": 0.3, "evaluation:0": 0.3}
        | {f"loading 15 once:{rank}": 0.3 for rank in range(3)},
        reference=TWO,
    ),
    COLD_START,
    COLD_AGAIN,
    # Shares of the test set differ: by one rank's own accuracy the run would end long before the other's.
    Plan(FREE, 2, {"epochs": 8, "batch_size": 16, "seed": 5}, is_calm=True),
    Plan(STOPS, 2, {"epochs": 8, "batch_size": 16, "seed": 5}, STOPPED, reference=FREE, is_calm=True),
)
KEPT = Item(
    0,
    "what the starter had",
    (
        *everywhere(validation.trains_in_training_mode, lockstep.trains_all_layers),
        (THREE, rates.ignores_the_processes),
        (AGAIN, unwatched.is_the_same_again),
        *GOES_ON,
    ),
    "the script that this lab began with did this rightly; a change of yours has broken it",
    "compare with the starter: reset gives it back, and keeps yours beside it",
    own=KEPT_STATE,
)

ITEMS = {
    1: (
        everywhere(group.knows_its_rank),
        f"torchrun starts the file once for each rank and says which one it is only through the environment"
        f" ({DOCS}/elastic/run.html, Environment Variables)",
        'rank = int(os.environ["RANK"]), and LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE likewise',
    ),
    2: (
        everywhere(group.joins, group.waits_for_what_it_starts),
        f"processes find each other in a process group, and each must join it before any collective"
        f" ({DOCS}/distributed.html, Initialization)",
        "dist.init_process_group(backend, timeout=timedelta(seconds=args.timeout))",
    ),
    3: (
        ((COLD, records.prepares_once), (COLD, records.waits_with_patience), (AGAIN, records.prepares_once)),
        "one process of each machine prepares the data; the others must not go on before it is whole, so they wait"
        f" for a key that it sets in a store behind it ({DOCS}/distributed.html, TCPStore)",
        "if local_rank == 0: prepare(...), then store.set(key, ...); on every rank store.wait([key])",
    ),
    4: (
        (
            *everywhere(
                images.shares_are_disjoint, images.shares_are_the_data, images.labels_fit, images.settings_are_obeyed
            ),
            (THREE, images.obeys_the_seed),
            (STOPS, images.obeys_the_seed),
            *on_two_machines(images.shares_are_disjoint, images.shares_are_the_data),
        ),
        "each image belongs to one rank in an epoch; a sampler shuffles alike on all ranks and deals the images out"
        f" ({DOCS}/data.html, DistributedSampler)",
        "DistributedSampler(train, world_size, rank, shuffle=True, seed=args.seed, drop_last=True), handed to the"
        " DataLoader as sampler=",
    ),
    5: (
        everywhere(images.orders_change, images.shares_change),
        "the sampler shuffles by seed + epoch, and does not know the epoch by itself; a seed of torch's counts by its"
        " lowest 32 bits"
        f" ({DOCS}/data.html, DistributedSampler.set_epoch)",
        "sampler.set_epoch(epoch) at the head of each epoch",
    ),
    6: (
        (
            *everywhere(lockstep.starts_alike, lockstep.averages, lockstep.stays_in_lockstep, lockstep.steps_alike),
            *on_two_machines(lockstep.averages, lockstep.stays_in_lockstep),
            (TWO, lockstep.trains_as_one_process),
            (TWO, lockstep.draws_apart),
            (COLD, lockstep.draws_apart),
            (THREE, properties.learns),
        ),
        "equal weights and equal gradients keep the ranks equal: the wrapper sends rank 0's weights to all at the"
        f" start and averages gradients in backward ({DOCS}/generated/torch.nn.parallel.DistributedDataParallel.html)",
        "parallel = DistributedDataParallel(model), called in the loop instead of model",
    ),
    7: (
        (
            *everywhere(
                records.one_rank_prints,
                records.one_rank_writes,
                records.states_the_effective_batch,
                validation.saves_the_network,
            ),
            *on_two_machines(records.one_rank_prints, records.one_rank_writes),
        ),
        "all ranks run every line; what may happen only once stands behind a condition on the rank, collectives never;"
        " and what the record says is about all ranks together",
        "if rank == 0: around the record and the prints; the images of a step over all ranks are"
        " effective_batch=world_size * args.batch_size",
    ),
    8: (
        (
            *everywhere(
                records.records_epochs, records.counts_correct_answers, properties.reports_training_as_one_process
            ),
            (THREE, records.times_the_slowest_rank),
            *on_two_machines(timing.goes_by_one_clock),
        ),
        f"an epoch is over when its slowest rank is done, and every rank counted its own images only"
        f" ({DOCS}/distributed.html, all_reduce and ReduceOp)",
        "dist.all_reduce(seconds, op=dist.ReduceOp.MAX) and dist.all_reduce(sums)",
    ),
    9: (
        everywhere(
            validation.reports_the_truth,
            validation.evaluates_in_evaluation_mode,
            validation.judges_test_images,
            validation.judges_alike,
            properties.reports_validation_as_one_process,
        ),
        "sums over all test images, divided once, are exact for shares of any size; means of means and padded shares"
        f" are not. Running statistics differ between ranks until they are sent ({DOCS}/distributed.html, broadcast)",
        "own images test.images[rank::world_size]; dist.all_reduce(sums); dist.broadcast(buffer, src=0)",
    ),
    10: (
        (
            (STOPS, stopping.stops_together),
            (STOPS, stopping.says_what_it_reached),
            *on_two_machines(stopping.says_what_it_reached),
        ),
        "a rank that leaves the loop alone lets the others wait for it in their next collective: decide by a number"
        " that is the same on all ranks",
        "decide by the accuracy that evaluate returns after its all_reduce",
    ),
}

OPTIONAL = frozenset(CALM) | {"target_accuracy", "patience", "timeout"}
LAB = lab("03_ddp", PLANS, ITEMS, kept=KEPT, optional=OPTIONAL, record_step=7)
