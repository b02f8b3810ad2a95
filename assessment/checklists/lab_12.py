"""Lab 12: a run that survives, and goes on to the same weights."""

import random

from assessment.checklists.common import DOCS, KEPT, TWO, lab
from assessment.checklists.lab import Item
from assessment.laws import survival
from assessment.trials.plan import Plan
from assessment.trials.trial import CALM

WHOLE, KILLED, GOES_ON, DAMAGED = "undisturbed", "killed", "goes on", "the last checkpoint is damaged"
STOPPED, STOPPED_GOES_ON = "told to stop", "goes on after a stop"
NO_NUMBER, FROM_BEFORE = "a loss that is no number", "goes on from before it"
RANKS, STEPS, EPOCHS = 3, 6, 3  # of the undisturbed run: ranks, and steps in each of its epochs
SETTINGS = {"epochs": EPOCHS, "batch_size": 11, "seed": 8}
SHORT = {"epochs": 1, "batch_size": 16, "seed": 0}
DRAWS = {"augment": "affine", "dropout": "0.2"}  # random numbers of both kinds
AT_EVERY_STEP, NEVER, RESUME = {"checkpoint_every": "0"}, {"checkpoint_every": "3600"}, {"resume": None}


def a_kill():
    """Draw who is killed, and in which step: late in the last epoch, so that to begin it anew would show.

    By then there were a tenth checkpoint and more, which a sort by text takes for older than the ninth.
    """
    return {f"step {EPOCHS * STEPS - random.choice((1, 2))}:{random.randrange(RANKS)}": "SIGKILL"}


def a_stop():
    """Draw who is told to stop in an epoch's last step; the others are told in the next."""
    first = random.randrange(RANKS)
    return {f"step {2 * STEPS + (rank != first)}:{rank}": "SIGTERM" for rank in range(RANKS)}


PLANS = (
    Plan(TWO, 2, {"epochs": 2, "batch_size": 16, "seed": 0}),
    Plan(WHOLE, RANKS, SETTINGS, DRAWS | NEVER),
    Plan(KILLED, RANKS, SETTINGS, DRAWS | AT_EVERY_STEP, delays=a_kill),
    Plan(GOES_ON, RANKS, SETTINGS, DRAWS | NEVER | RESUME, reference=WHOLE, after=KILLED),
    Plan(DAMAGED, RANKS, SETTINGS, DRAWS | NEVER | RESUME, reference=WHOLE, after=KILLED, is_damaged=True),
    Plan(STOPPED, RANKS, SETTINGS, DRAWS | NEVER, delays=a_stop, reference=WHOLE),
    Plan(STOPPED_GOES_ON, RANKS, SETTINGS, DRAWS | NEVER | RESUME, reference=WHOLE, after=STOPPED),
    Plan(NO_NUMBER, 2, SHORT, AT_EVERY_STEP, delays={"logits 3:1": "no number"}),
    Plan(FROM_BEFORE, 2, SHORT, NEVER | RESUME, after=NO_NUMBER),
)
ITEMS = {
    1: (
        ((KILLED, survival.saves_together), (GOES_ON, survival.restores_the_optimizer)),
        "the next step depends on the weights, on what the optimizer remembers, on where the epoch is, on the sums so"
        " far and on random numbers of every rank: one that is missing, and the run ends elsewhere",
        "dist.gather_object({sums, random_states(augmenting)}, ...) on every rank; model.state_dict() and"
        " optimizer.state_dict() on rank 0",
    ),
    2: (
        ((KILLED, survival.saves), (DAMAGED, survival.goes_on)),
        "a file that is being written when the power goes is half a file: write beside it, give it its name when it is"
        " whole, and keep the one before. The last two are those of the highest numbers: as texts, 10 comes before 9",
        "torch.save(state, part); os.fsync of it; part.replace(path); then unlink all but the last two by number",
    ),
    3: (
        ((DAMAGED, survival.goes_on), (DAMAGED, survival.ends_as_if_undisturbed)),
        "a checkpoint that cannot be read is no reason to begin anew: there is one before it",
        "for path in the latest first: try: return torch.load(path, weights_only=True)",
    ),
    4: (
        ((GOES_ON, survival.goes_on), (GOES_ON, survival.restores_the_weights)),
        "one rank reads and tells the others, so that all go on from the same checkpoint"
        f" ({DOCS}/distributed.html, broadcast_object_list)",
        "dist.broadcast_object_list(box, src=0); model.load_state_dict(...), optimizer.load_state_dict(...)",
    ),
    5: (
        (
            (GOES_ON, survival.goes_on_with_the_next_images),
            (GOES_ON, survival.draws_on),
            (GOES_ON, survival.ends_as_if_undisturbed),
            (STOPPED_GOES_ON, survival.ends_as_if_undisturbed),
        ),
        "the epoch's order is drawn anew, the same; what was learned from is passed over, and then each rank draws on"
        " with its own random states and adds to its own sums",
        "for _ in range(place['step']): next(batches), then sums.copy_(...) and restore_random_states(...) with what"
        " this rank had given to gather_object",
    ),
    6: (
        ((STOPPED, survival.stops_after_the_same_step),),
        "a signal comes in the middle of a step, where nothing can be saved: note it, and look behind the step"
        " (docs.python.org/3/library/signal.html)",
        "signal.signal(number, lambda number, _frame: signals.append(number)) for SIGTERM and SIGINT",
    ),
    7: (
        ((STOPPED, survival.stops_after_the_same_step), (STOPPED_GOES_ON, survival.goes_on)),
        "a rank that saves or leaves alone lets the others wait: what one rank knows, all must know before anyone acts"
        f" ({DOCS}/distributed.html, all_reduce)",
        "told[0] = is it time, told[1] = bool(signals), told[2 + rank] = not loss.isfinite(); dist.all_reduce(told)",
    ),
    8: (
        ((NO_NUMBER, survival.names_the_culprit), (FROM_BEFORE, survival.saves_no_spoilt_step)),
        "behind the average all ranks hold the same wrong weights; only before it can be seen whose loss it was. A"
        " checkpoint of them would be the last, and all that came of it lost",
        "raise UserError with the ranks whose number in told is not 0",
    ),
}
KEPT_BY_TWO = Item(KEPT.number, KEPT.title, tuple(one for one in KEPT.laws if one[0] == TWO), KEPT.idea, KEPT.call)
LAB = lab("12_when_things_break", PLANS, ITEMS, kept=KEPT_BY_TWO, optional=frozenset(CALM))
