"""The assignment: a data-parallel script of the learner's own, and what each part of it is worth."""

from assessment.checklists.common import (
    AGAIN,
    COLD,
    COLD_AGAIN,
    COLD_START,
    DOCS,
    STOPPED,
    THREE,
    TWO,
    everywhere,
    on_two_machines,
)
from assessment.checklists.lab import Item, Lab
from assessment.laws import group, images, lockstep, properties, rates, records, stopping, timing, unwatched, validation
from assessment.task import assignment
from assessment.trials.plan import Plan
from assessment.trials.trial import CALM

FREE, STOPS, UNWATCHED = "up and down", "stops early", "nobody watches"
FIRST = {"epochs": 2, "batch_size": 16, "seed": 0}
PLANS = (
    Plan(TWO, 2, FIRST),
    Plan(THREE, 3, {"epochs": 3, "batch_size": 11, "seed": 8}, delays={"evaluation:0": 0.3}, reference=TWO),
    COLD_START,
    COLD_AGAIN,
    Plan(UNWATCHED, 2, FIRST, reference=TWO, is_watched=False),
    Plan(FREE, 2, {"epochs": 8, "batch_size": 16, "seed": 7}, is_calm=True),
    Plan(STOPS, 2, {"epochs": 8, "batch_size": 16, "seed": 7}, STOPPED, reference=FREE, is_calm=True),
)

ITEMS = (
    Item(
        1,
        "all processes form one group",
        (
            *everywhere(group.knows_its_rank, group.joins, group.waits_for_what_it_starts),
            (COLD, records.prepares_once),
            (AGAIN, records.prepares_once),
        ),
        "torchrun starts the file once for each rank; all join one group, and one process of each machine prepares"
        f" the data while the others wait ({DOCS}/distributed.html)",
        "dist.init_process_group(...), prepare(...) on local rank 0, dist.barrier() on every rank",
        points=10,
    ),
    Item(
        2,
        "every image once an epoch, shared out anew in each",
        (
            *everywhere(
                images.shares_are_disjoint, images.shares_are_the_data, images.labels_fit, images.settings_are_obeyed,
                images.orders_change, images.shares_change,
            ),
            (THREE, images.obeys_the_seed),
            (STOPS, images.obeys_the_seed),
            *on_two_machines(images.shares_are_disjoint, images.shares_are_the_data),
        ),
        f"a sampler shuffles alike on all ranks and deals the images out ({DOCS}/data.html, DistributedSampler)",
        "DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True)",
        points=15,
        own={
            images.orders_change: (
                "a sampler shuffles by its seed and the epoch, and learns of the epoch only when it is told"
                f" ({DOCS}/data.html, DistributedSampler.set_epoch)",
                "sampler.set_epoch(epoch) before each epoch",
            ),
            images.obeys_the_seed: (
                "--seed decides in which order the images come",
                "DistributedSampler(..., seed=args.seed), torch.manual_seed(args.seed)",
            ),
        },
    ),
    Item(
        3,
        "one mean gradient, one network",
        (
            *everywhere(
                lockstep.starts_alike, validation.trains_in_training_mode, lockstep.trains_all_layers,
                lockstep.averages, lockstep.steps_alike, lockstep.stays_in_lockstep,
            ),
            (TWO, rates.ignores_the_processes),
            *on_two_machines(lockstep.averages, lockstep.stays_in_lockstep),
            (TWO, lockstep.trains_as_one_process),
            (THREE, properties.learns),
        ),
        "equal weights and equal gradients keep the ranks equal"
        f" ({DOCS}/generated/torch.nn.parallel.DistributedDataParallel.html)",
        "parallel = DistributedDataParallel(model), called in the loop instead of model",
        points=20,
    ),
    Item(
        4,
        "exact validation",
        everywhere(
            validation.reports_the_truth, validation.evaluates_in_evaluation_mode, validation.judges_test_images,
            validation.judges_alike, properties.reports_validation_as_one_process,
        ),
        "sums over all test images, divided once, are exact for shares of any size; a mean of the ranks' means is not"
        f" ({DOCS}/distributed.html, all_reduce)",
        "own images test.images[rank::world_size]; dist.all_reduce(sums)",
        points=15,
        own={
            validation.judges_alike: (
                "BatchNorm's running statistics differ from rank to rank; one rank's are saved, so all judge with those"
                f" ({DOCS}/distributed.html, broadcast)",
                "for buffer in model.buffers(): dist.broadcast(buffer, src=0), before the test images",
            ),
            validation.evaluates_in_evaluation_mode: (
                "dropout and BatchNorm do something else while the network learns",
                "model.eval() before the test images, train() before the training images",
            ),
        },
    ),
    Item(
        5,
        "one rank prints and writes the bare network",
        (
            *everywhere(
                records.one_rank_prints, records.one_rank_writes, validation.saves_the_network, records.records_epochs,
                records.counts_correct_answers, properties.reports_training_as_one_process,
            ),
            (THREE, timing.times_training),
            *on_two_machines(records.one_rank_prints, records.one_rank_writes, timing.goes_by_one_clock),
        ),
        "all ranks run every line; what may happen only once stands behind a condition on the rank",
        "if rank == 0: report(args, model, ...)",
        points=5,
        own={
            records.records_epochs: (
                "the record is about all ranks: loss, correct answers and images/s count the images of all, over the"
                " time of the slowest rank",
                "dist.all_reduce(sums); dist.all_reduce(seconds, op=dist.ReduceOp.MAX)",
            ),
            validation.saves_the_network: (
                "the wrapper holds the network as .module; what is saved is the network itself, after the last step",
                "report(args, model, ...) with model as it was before it was wrapped",
            ),
        },
    ),
    Item(
        6,
        "all ranks stop together, at the target",
        ((STOPS, stopping.stops_together),),
        "a rank that leaves the loop alone lets the others wait for it: decide by a number that is the same on all",
        "decide by the accuracy that every rank holds after all_reduce",
        points=5,
    ),
    Item(
        7,
        "the same when nobody watches, and whatever an earlier run has left",
        ((UNWATCHED, unwatched.is_the_same_unwatched), (AGAIN, unwatched.is_the_same_again)),
        "the run was repeated without the recorder, with the same settings and seed: it must give the same weights",
        "torch.manual_seed(args.seed) before the network is built, and nothing that depends on who watches",
        points=5,
        own={
            unwatched.is_the_same_again: (
                "who runs a script twice with one seed expects the same twice: all that it draws follows the seed, and"
                " a run goes on from another only where it is asked",
                "generators by manual_seed(args.seed + rank); models.build(...), and model.pt written without reading",
            ),
        },
    ),
)  # fmt: skip

OPTIONAL = frozenset(CALM) | {"target_accuracy", "patience"}
BEGINNING = "assessment/README.md says what the script must do; begin with the group of all processes."
BEYOND = (
    "Not checked here: whether it learns enough. Train it as the assignment asks; the last lines say whether it reached"
    " the target, and in time:\n.venv/bin/torchrun --standalone --nproc-per-node 2 assessment/train.py"
)
LAB = Lab(
    "assessment",
    PLANS,
    ITEMS,
    optional=OPTIONAL,
    dataset=assignment().dataset,
    beginning=BEGINNING,
    beyond=BEYOND,
    numbers_todos=False,
)
