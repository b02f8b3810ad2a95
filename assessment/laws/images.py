"""The laws of which images are trained on: each once an epoch, in another order, as the command line asks."""

import itertools

from assessment.laws.lockstep import differing
from assessment.laws.verdict import HOLDS, Verdict, broken, percent, unseen


def shares_are_disjoint(trial):
    """In an epoch no image is trained on by two ranks, or twice by one; padding by less than a world is passed.

    Images are known by their pixels or by where they were fetched. As many images twice as there are ranks or more
    is a mistake, fewer are told as padding. Not seen: images of which neither is known.
    """
    evidence = trial.evidence
    whole = [evidence.epochs(rank) for rank in range(evidence.world_size)]
    if not all(whole) or not all(step.rows for epochs in whole for epoch in epochs for step in epoch):
        return unseen("not every rank trained on images")
    for number, epochs in enumerate(zip(*whole, strict=False), start=1):
        rows = [[row for step in epoch for row in step.rows if row is not None] for epoch in epochs]
        for rank in range(1, len(rows)):
            for earlier in range(rank):
                shared = set(rows[rank]) & set(rows[earlier])
                if len(shared) >= evidence.world_size:
                    share = percent(len(shared), len(set(rows[rank])))
                    return broken(f"ranks {earlier} and {rank} saw {share} of the same images in epoch {number}")
        for rank, own in enumerate(rows):
            if len(own) - len(set(own)) >= evidence.world_size:
                twice = percent(len(own) - len(set(own)), len(own))
                return broken(f"{twice} of the images that rank {rank} saw in epoch {number} it saw again")
        together = [row for own in rows for row in own]
        again = len(together) - len(set(together))
        if again:
            return Verdict(True, f"{again} of the images of an epoch are trained on twice, to fill up the shares")
    return HOLDS


def shares_are_the_data(trial):
    """Together the ranks train on the whole training set, but for a remainder less than one global batch.

    May be left out: fewer than a global batch and one image a rank, in the first epoch. Not seen: whether it is
    always the same ones.
    """
    evidence, known = trial.evidence, len(trial.evidence.data.train)
    rows = [
        row for rank in range(evidence.world_size) for epoch in evidence.epochs(rank)[:1] for row in all_rows(epoch)
    ]
    if not rows:
        return unseen("no training image was seen")
    strangers = [row for row in rows if row is None]
    if strangers:
        share = percent(len(strangers), len(rows))
        return broken(f"{share} of the images trained on are not images of the training set")
    if not evidence.rounds:
        return unseen("not every rank trained")
    allowed = sum(len(step.rows) for step in evidence.rounds[0]) + evidence.world_size
    missed = known - len(set(rows))
    if missed >= allowed and trial.outcome.state != "finished":
        return unseen("the run ended within the first epoch")
    if missed >= allowed:
        return broken(f"all ranks together saw {len(set(rows))} of {known} training images in epoch 1")
    return HOLDS


def all_rows(epoch):
    return [row for step in epoch for row in step.rows]


def orders_change(trial):
    """Every epoch takes the images in another order.

    More than half of the images at the same places is the same order; by chance it is one in two hundred. Not seen:
    an order that comes back after three epochs.
    """
    for rank in range(trial.evidence.world_size):
        epochs = [all_rows(epoch) for epoch in trial.evidence.epochs(rank)]
        if len(epochs) < 2:
            return unseen("there was no second epoch")
        for number, (one, following) in enumerate(itertools.pairwise(epochs), start=2):
            same = sum(a == b for a, b in zip(one, following, strict=False))
            if same > len(one) / 2:
                return broken(
                    f"on rank {rank} {percent(same, len(one))} of the images of epoch {number} come at the same"
                    f" place as in epoch {number - 1}"
                )
    return HOLDS


def shares_change(trial):
    """The images are shared out anew in each epoch: who takes which is not settled once for all.

    Of what a rank took in one epoch, at most three quarters may come again in the next: by chance it is one in as
    many as there are ranks. Not seen: shares that come back after three epochs.
    """
    known = len(trial.evidence.data.train)
    for rank in range(trial.evidence.world_size):
        epochs = [set(all_rows(epoch)) - {None} for epoch in trial.evidence.epochs(rank)]
        if len(epochs) < 2:
            return unseen("there was no second epoch")
        for number, (one, following) in enumerate(itertools.pairwise(epochs), start=2):
            same = len(one & following)
            if len(one) < 0.7 * known and same > 0.75 * len(following):  # else it takes them all, in whatever order
                share = percent(same, len(following))
                return broken(
                    f"{share} of the images that rank {rank} takes in epoch {number} it took in epoch {number - 1}:"
                    " each rank shuffles a share of its own that never changes"
                )
    return HOLDS


def labels_fit(trial):
    """Every image is trained on with its own label.

    Labels are read off what the loss sends back to the logits; a tenth may be wrong, as rounding makes them be late
    in training. Not seen: labels of a loss of another kind (squared errors, mixed labels); ``learns`` judges those.
    """
    known = trial.evidence.data.train.labels.tolist()
    pairs = [
        pair
        for rank in trial.evidence.ranks
        for step in rank.steps
        for pair in zip(step.rows, step.labels, strict=False)
    ]
    pairs = [(row, label) for row, label in pairs if row is not None]
    if not pairs and any(rank.steps for rank in trial.evidence.ranks):
        return Verdict(True, "the labels were not judged: they cannot be read off a loss of this kind")
    if not pairs:
        return unseen("no labels were seen")
    wrong = sum(known[row] != label for row, label in pairs)
    return (
        HOLDS if wrong < 0.1 * len(pairs) else broken(f"{percent(wrong, len(pairs))} of the images got another label")
    )


def settings_are_obeyed(trial):
    """The batch, the epochs and the images are those that the command line asks for.

    The largest batch of a rank must be the one asked for, exactly; the epochs are counted by images, within 0.6 of
    one. Not seen: which images make a batch.
    """
    evidence = trial.evidence
    wanted, epochs = evidence.settings.get("batch_size"), evidence.settings["epochs"]
    for rank in evidence.ranks:
        if not rank.steps:
            return unseen("not every rank trained")
        size = max(len(step.rows) or len(step.labels) for step in rank.steps)
        if wanted and size != wanted:
            return broken(
                f"--batch-size {wanted} gives each process that many images a step; rank {rank.number} took {size}"
            )
    seen = sum(len(step.rows) for rank in evidence.ranks for step in rank.steps)
    rounds = seen / len(evidence.data.train)
    if rounds < epochs and trial.outcome.state != "finished":
        return unseen("the run ended before its last epoch")
    if not epochs - 0.6 < rounds < epochs + 0.6:
        return broken(f"--epochs {epochs}, but every training image was seen about {rounds:.1f} times")
    return HOLDS


def obeys_the_seed(trial):
    """Another ``--seed`` gives other weights, another order and other random numbers; the same one gives the same.

    The first weights must differ in some sketch by more than 1e-4, and the first batches in 40 % of their images. Of
    random numbers, the state of torch's generator of the CPU at the first training pass is compared. Not seen: what
    is drawn from other generators.
    """
    ours, other = trial.evidence, trial.reference.evidence
    if not ours.rounds or not other.rounds:
        return unseen("not every rank trained")
    drawn = [pair for pair in zip(generators(ours), generators(other), strict=False) if None not in pair]
    if ours.settings["seed"] == other.settings["seed"]:
        if any(one != again for one, again in drawn):
            seed = f"--seed {ours.settings['seed']}"
            return broken(f"with {seed} twice, the network draws other random numbers while it trains (dropout, say)")
        return HOLDS
    seeds = f"--seed {ours.settings['seed']} and --seed {other.settings['seed']}"
    seen, elsewhere = ours.rounds[0][0].seen, other.rounds[0][0].seen
    if seen and seen.keys() == elsewhere.keys() and not differing([seen, elsewhere]):
        return broken(f"with {seeds} the network begins with the same weights")
    first, second = ({row for step in run.rounds[0] for row in step.rows} for run in (ours, other))
    if len(first & second) > 0.6 * min(len(first), len(second)):
        return broken(f"with {seeds} the first step takes the same images")
    if drawn and all(one == again for one, again in drawn):
        return broken(f"with {seeds} a rank draws the same random numbers while it trains (dropout, say)")
    return HOLDS


def generators(evidence):
    """Return the state of each rank's generator at its first training pass, as a number."""
    first = [next((one for one in rank.named("forward") if one["teaches"]), {}) for rank in evidence.ranks]
    return [one.get("generator") for one in first]
