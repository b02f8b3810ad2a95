"""Lab 05: where the time of a step goes, what a run costs, and a batch in micro-batches."""

from assessment.checklists.common import THREE, TWO, lab
from assessment.laws import accumulation, images, lockstep, records, timing
from assessment.trials.plan import Plan

DIVIDED = "each batch in micro-batches"
PLANS = (
    Plan(
        TWO,
        2,
        {"epochs": 2, "batch_size": 48, "seed": 0},
        {"profile_steps": "4"},
        delays={"forward:1": timing.SLOW_S},
        machines=2,  # so that the processes of one machine are not all
    ),
    Plan(THREE, 3, {"epochs": 3, "batch_size": 11, "seed": 8}),
    # The last of a batch's micro-batches is smaller: 20, 20 and 8 images.
    Plan(DIVIDED, 2, {"epochs": 1, "batch_size": 48, "micro_batch_size": 20, "seed": 0}, reference=TWO),
)
NOTES = "pytorch.org/docs/stable/notes/ddp.html"
ITEMS = {
    1: (
        ((TWO, timing.measures_a_step),),
        "a step inside no_sync computes and sends nothing; one untimed step first, then all ranks start together"
        " (DistributedDataParallel.no_sync)",
        "with nullcontext() if communicating else parallel.no_sync(): forward and backward, `steps` times",
    ),
    2: (
        ((TWO, timing.measures_waiting),),
        "nobody ends a step before the slowest rank has computed: a rank waits for as long as it is faster"
        " (torch.distributed.all_reduce, ReduceOp.MAX)",
        "dist.all_reduce(slowest, op=dist.ReduceOp.MAX), then slowest.item() - own",
    ),
    3: (
        ((TWO, timing.measures_communication),),
        "what a step with communication takes beyond the slowest rank's computing; messages that travel while backward"
        f" computes cost nothing ({NOTES}, overlap)",
        "together = milliseconds(communicating=True), the slowest rank's, minus the slowest rank's own",
    ),
    4: (
        ((TWO, timing.counts_the_cost), (THREE, timing.counts_the_cost)),
        "a device that waits is paid for like one that computes: GPU-hours are hours times devices",
        "device_seconds = world_size * training_time",
    ),
    5: (
        tuple(
            (DIVIDED, law)
            for law in (
                accumulation.takes_micro_batches,
                accumulation.weighs_images_alike,
                lockstep.averages,
                images.settings_are_obeyed,
                accumulation.communicates_once,
                records.records_epochs,
            )
        ),
        "backward adds to the gradients that are there, so a batch may come in parts: each loss counts by its share of"
        " the batch's images, and the gradients are sent with the last part (DistributedDataParallel.no_sync)",
        "(loss * len(few) / len(labels)).backward() for each part, inside parallel.no_sync() but for the last; then one"
        " optimizer.step()",
    ),
}
LAB = lab("05_batch_size", PLANS, ITEMS, pair={"micro_batch_size": "4"})
