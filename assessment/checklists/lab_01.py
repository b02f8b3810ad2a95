"""Lab 01: one device that measures what it does."""

from assessment.checklists.common import STOPPED, lab
from assessment.checklists.lab import Item
from assessment.laws import images, lockstep, stopping, timing, validation
from assessment.trials.plan import Plan

FULL, HALF, FREE, STOPS = "float32", "bfloat16", "up and down", "stops early"
PLANS = (
    Plan(FULL, 1, {"epochs": 2, "batch_size": 32, "seed": 0}, delays={"evaluation:0": 0.3}),
    Plan(HALF, 1, {"epochs": 1, "batch_size": 25, "seed": 8}, {"precision": "bfloat16"}),
    Plan(FREE, 1, {"epochs": 8, "batch_size": 32, "seed": 5}, is_calm=True),
    Plan(STOPS, 1, {"epochs": 8, "batch_size": 32, "seed": 5}, STOPPED, reference=FREE, is_calm=True),
)
STARTED = (
    images.shares_are_disjoint,
    images.labels_fit,
    images.settings_are_obeyed,
    validation.trains_in_training_mode,
    lockstep.averages,
    validation.judges_test_images,
    validation.saves_the_network,
)
KEPT = Item(
    0,
    "what the starter had",
    (
        *((name, law) for name in (FULL, HALF) for law in STARTED),
        (FULL, images.orders_change),
    ),
    "the script that this lab began with did this rightly; a change of yours has broken it",
    "compare with the starter: reset gives it back, and keeps yours beside it",
)
ITEMS = {
    1: (
        ((FULL, timing.computes_as_asked), (HALF, timing.computes_as_asked)),
        "autocast computes in bfloat16 where --precision asks for it, or for auto where it pays (torch.autocast)",
        "bfloat16 = devices.use_bfloat16(args.precision, device)",
    ),
    2: (
        ((FULL, timing.times_training),),
        "the clock starts before the first batch and stops before validation, once the device has done its work"
        " (time.perf_counter)",
        "start = time.perf_counter() before the loop, epoch_time = time.perf_counter() - start behind sums.tolist()",
    ),
    3: (
        tuple(
            (name, law)
            for law in (validation.reports_the_truth, validation.evaluates_in_evaluation_mode)
            for name in (FULL, HALF)
        ),
        "every test image counts once: sums over batches, divided at the end, in evaluation mode (Module.eval)",
        'model.eval(), then F.cross_entropy(..., reduction="sum") over test.images.split(500), divided by len(test)',
    ),
    4: (
        ((STOPS, stopping.stops_together),),
        "one epoch at the target may be luck: count the epochs in a row",
        "epochs_at_target = epochs_at_target + 1 if at_target else 0; done = epochs_at_target == args.patience",
    ),
}
LAB = lab("01_one_device", PLANS, ITEMS, kept=KEPT)
