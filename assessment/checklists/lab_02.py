"""Lab 02: data parallelism by hand."""

from assessment.checklists.common import DOCS, THREE, TWO, everywhere, lab
from assessment.checklists.lab import Item
from assessment.laws import batchnorm, by_hand, group, images, lockstep, records, validation
from assessment.trials.plan import Plan

FUNCTIONS, IDLE = "functions called one by one", "a rank without images"
PLANS = (
    Plan(FUNCTIONS, 3, {"epochs": 1, "global_batch_size": 32}, probe="by hand"),
    Plan(TWO, 2, {"epochs": 2, "global_batch_size": 31, "seed": 0}, {"worker_load": "1,0.5"}, machines=2),
    Plan(THREE, 3, {"epochs": 3, "global_batch_size": 32, "seed": 8}),
    # What is left over of 33 images is for one that has work to do.
    Plan(IDLE, 3, {"epochs": 1, "global_batch_size": 33, "seed": 0}, {"worker_load": "0,1,1"}),
)
KEPT = Item(
    0,
    "what the starter had",
    everywhere(
        group.joins, validation.trains_in_training_mode, images.labels_fit, images.orders_change,
        validation.evaluates_in_evaluation_mode, validation.judges_test_images, validation.saves_the_network,
        records.one_rank_prints, records.one_rank_writes,
    ),
    "the script that this lab began with did this rightly; a change of yours has broken it",
    "compare with the starter: reset gives it back, and keeps yours beside it",
)  # fmt: skip
ITEMS = {
    1: (
        (
            (FUNCTIONS, by_hand.divides_batches),
            *everywhere(by_hand.divides_by_load),
            (IDLE, by_hand.divides_by_load),
        ),
        "a rank with half the load takes half the images, so that all are done at the same time; shares are whole"
        " numbers and add up to the batch",
        "int(global_batch * load / sum(loads)) each, then one more for the first ranks until none is left",
    ),
    2: (
        everywhere(by_hand.takes_its_part),
        "all ranks hold the same global batch; the images of the ranks before this one come first",
        "mine = slice(sum(shares[:rank]), sum(shares[: rank + 1]))",
    ),
    3: (
        everywhere(lockstep.starts_alike),
        f"every rank has drawn weights of its own; equal gradients keep only equal weights equal"
        f" ({DOCS}/distributed.html, broadcast)",
        "dist.broadcast(tensor.detach(), src=0) for each of model.parameters() and model.buffers()",
    ),
    4: (
        ((FUNCTIONS, by_hand.adds_up_round_the_ring), *everywhere(by_hand.goes_round_the_ring)),
        "each rank sends one chunk to the right and takes one from the left, world_size - 1 times to add, as often to"
        f" pass on ({DOCS}/distributed.html, batch_isend_irecv)",
        "dist.batch_isend_irecv([P2POp(isend, chunks[out], right), P2POp(irecv, buffer, left)]), then wait for all",
    ),
    5: (
        (
            *everywhere(lockstep.averages, lockstep.stays_in_lockstep, lockstep.trains_as_one_process),
            (IDLE, lockstep.stays_in_lockstep),
        ),
        "a rank's gradient is the mean over its own images; in the mean over all it weighs own / total",
        "flat = torch.cat(gradients) * own / total, through the ring, and back with split and view_as",
    ),
    6: (
        (
            *everywhere(batchnorm.combines_running_statistics, validation.judges_alike, validation.reports_the_truth),
            (IDLE, validation.judges_alike),
            (IDLE, validation.reports_the_truth),
        ),
        "the variance of all images is the mean of the variances plus the variance of the means",
        "mean = sum of f mean_r; variance = sum of f (variance_r + (mean_r - mean)^2), all-reduced",
    ),
}
LAB = lab("02_from_scratch", PLANS, ITEMS, kept=KEPT, pair_of_many={"worker_load": "1,0,0.8"})
