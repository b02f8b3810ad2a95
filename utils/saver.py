"""Save where a training run is, every so often and at SIGTERM, and go on from there to the same weights.

    saver = Saver(run_dir, {"model": parallel, "optimizer": optimizer}, [augmenting], args, effective_batch)
    training_time, epochs_at_target = saver.so_far(args.target_accuracy)
    record = runs.Record(..., goes_on_from=saver.record)             # on rank 0
    for epoch in range(saver.epoch, args.epochs + 1):
        for images, labels in saver.steps(loader, sums, record):     # a look at the clock behind every step
            ...
        record.epoch(...)
        saver.end_epoch(record, is_last=done or epoch == args.epochs)

Weights, optimizer, place in the data, random states of every rank and the rows of the record go into one file of
``checkpoints/`` in the run's folder (``utils/checkpoints.py``), written by rank 0.
"""

import csv
import signal
import time
from itertools import chain
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from utils import runs
from utils.checkpoints import Checkpoints, random_states, restore_random_states
from utils.errors import UserError, first_line

SHARE = 0.02  # of a run's time, at most, that goes into its checkpoints
KEPT_OF_RUN = {"effective_batch", "place", "ranks", "record"}
KEPT_OF_RANK = {"start", "random", "sums", "elapsed"}
NEVER = 2**31  # the epoch that comes next where none does
FRESH_DRAWS = 1_000_003  # a prime: seeds of ranks that go on in another number lie apart by multiples of it


class Saver:
    """Where a run is, on every rank: the epoch that comes next or goes on, and how many of its steps are done.

    ``parts`` maps names to what has a ``state_dict``: network, optimizer, schedule; of a wrapped network, the network
    within is saved. ``generators`` are those that the script draws from itself, or None. Of ``args`` it takes
    ``checkpoint_every``, ``resume`` and ``seed``. With ``resume`` it goes on from the last checkpoint in ``run_dir``,
    where there is one, on as many processes or on others. Raises ``UserError`` where the checkpoint is of another
    effective batch (the images of a step over all ranks): its place in the data would be another.
    """

    def __init__(self, run_dir, parts, generators, args, effective_batch):
        self._parts = {name: getattr(one, "module", one) for name, one in parts.items()}
        self._wrappers = [one for one in parts.values() if isinstance(one, DistributedDataParallel)]
        self._generators = [one for one in generators if one is not None]
        self._rank, self._world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self._effective_batch = effective_batch
        self._checkpoints, self._clock = Checkpoints(Path(run_dir) / "checkpoints"), Clock(args.checkpoint_every)
        self._stop, self._own, self._is_unsettled = None, None, False
        self.epoch, self.step, self.steps_taken, self.elapsed = 1, 0, 0, 0.0
        self.record = None  # what the record held, for it to go on from
        # One rank reads: no two can go on from different checkpoints, and no machine needs the disk of another.
        saved = self._given_by_rank_0(lambda: self._checkpoints.latest(is_whole)) if args.resume else None
        if saved:
            self._go_on(saved, args.seed)

    def _go_on(self, saved, seed):
        if saved["effective_batch"] != self._effective_batch:
            raise UserError(
                f"the run in {self._checkpoints.folder.parent} takes {saved['effective_batch']} images a step, this one"
                f" would take {self._effective_batch}: choose a --batch-size that gives as many, or another --run-dir"
            )
        try:
            for name, part in self._parts.items():
                part.load_state_dict(saved[name])
        except (KeyError, RuntimeError, ValueError) as error:
            raise UserError(
                f"the checkpoint in {self._checkpoints.folder.parent} is of another network or optimizer"
                f" ({first_line(error)}): go on with the script and the settings that it was made with"
            ) from error
        self._is_unsettled = True
        self.record = saved["record"]
        self.epoch, self.step, self.steps_taken = saved["place"]
        ranks = saved["ranks"]
        self.elapsed = max(one["elapsed"] for one in ranks)
        if len(ranks) == self._world_size:
            self._own = ranks[self._rank]
            return
        torch.manual_seed(seed + FRESH_DRAWS * self.steps_taken + self._rank)
        for one in self._generators:
            one.manual_seed(seed + FRESH_DRAWS * self.steps_taken + self._rank)
        is_first, sums = self._rank == 0, sum(one["sums"] for one in ranks)
        states = random_states(*self._generators)
        self._own = {"start": states, "random": states, "sums": sums if is_first else 0 * sums}
        if is_first:
            print(
                f"{self._world_size} processes go on where {len(ranks)} were: with the same images in each step, but"
                " other random numbers, and BatchNorm over shares of another size"
            )

    def so_far(self, target_accuracy=None):
        """Return the seconds of training so far, and how many epochs in a row have come to ``target_accuracy``."""
        rows = list(csv.DictReader([",".join(runs.COLUMNS), *self.record["rows"]])) if self.record else []
        below = [at for at, row in enumerate(rows, 1) if float(row["val_accuracy"]) < (target_accuracy or 0.0)]
        at_target = 0 if target_accuracy is None else len(rows) - max(below, default=0)
        return float(rows[-1]["time_s"]) if rows else 0.0, at_target

    def steps(self, batches, sums, record):
        """Yield the batches that are left of an epoch, and after each step save or stop where that is called for.

        ``sums`` is a tensor in which this rank adds up what an epoch reports, in place. ``record`` is rank 0's.
        Where a signal has come to any rank, all save and end after the same step, with the record's state ``stopped``.
        """
        if self._stop is None:
            self._stop = StopSignal()
            if self._rank == 0 and not self.steps_taken:
                self._checkpoints.remove()  # a run that was here before
        own, self._own = self._own, None
        if own:
            restore_random_states(own["start"], *self._generators)
        self._start, self._sums = random_states(*self._generators), sums
        batches = iter(batches)  # which draws the order, where no seed and number of the epoch decide it
        for _ in range(self.step):
            if next(batches, None) is None:
                raise UserError(
                    f"the run was saved behind step {self.step} of an epoch, which has fewer steps by now: go on with"
                    " the images that it began with, or start anew without --resume"
                )
        if self._is_unsettled:
            batches = self.settled(batches)
        if own:
            restore_random_states(own["random"], *self._generators)
            sums.copy_(own["sums"])
        self._began = time.perf_counter() - self.elapsed
        said = None
        for batch in batches:
            yield batch
            self.step, self.steps_taken = self.step + 1, self.steps_taken + 1
            self._act(said, record)
            said = self._said(sums.device)
        self._act(said, record)

    def settled(self, batches):
        """Have wrappers put their messages in order; return ``batches`` from its first one on.

        A wrapper does so behind its first backward pass (PyTorch Distributed, Li et al. 2020, section 4.2). Until then
        it sends the same gradients in other messages, and sums of three ranks or more depend in their last digit on
        where in a message a number stands.
        """
        first = next(batches, None)
        if first is None:  # the epoch is over but for its end: the next one has a batch
            return iter(())
        self._is_unsettled = False
        for wrapper in self._wrappers:
            device = next(wrapper.parameters()).device
            wrapper.eval()(first[0][:2].to(device)).sum().backward()  # the order hangs on no number of images
            wrapper.zero_grad()
            wrapper.train()
        return chain([first], batches)

    def end_epoch(self, record, is_last=False):
        """Note that an epoch is over and in the record; after the last one save that nothing is left to do."""
        self.epoch, self.step, self.elapsed = self.epoch + 1, 0, 0.0
        if is_last:
            self.epoch = NEVER
            self._save(record)

    def _said(self, device):
        """Begin to tell all ranks what this one has seen; that travels while the next step is computed."""
        told = torch.tensor([self._rank == 0 and self._clock.is_due, self._stop.has_come], dtype=torch.float32)
        told = told.to(device if device.type == "cuda" else "cpu")
        return told, dist.all_reduce(told, op=dist.ReduceOp.MAX, async_op=True) if dist.is_initialized() else None

    def _act(self, said, record):
        """Do what the ranks have agreed on: one clock decides, and a signal reaches them one after another."""
        if said is None:
            return
        told, agreement = said
        if agreement:
            agreement.wait()
        is_due, is_stopped = told.tolist()
        if is_due or is_stopped:
            self._save(record)
        if is_stopped:
            runs.finish(record, stopped_by=signal.SIGTERM)

    def _save(self, record):
        with self._clock:
            for part in self._parts.values():
                if hasattr(part, "consolidate_state_dict"):  # an optimizer whose state is shared out (ZeRO)
                    part.consolidate_state_dict(to=0)
            own = {
                "start": self._start,
                "random": random_states(*self._generators),
                "sums": self._sums.cpu(),
                "elapsed": time.perf_counter() - self._began,
            }
            ranks = [own]
            if dist.is_initialized():
                ranks = [None] * self._world_size if self._rank == 0 else None
                dist.gather_object(own, ranks)
            if self._rank == 0:
                place = {"place": (self.epoch, self.step, self.steps_taken), "effective_batch": self._effective_batch}
                parts = {name: one.state_dict() for name, one in self._parts.items()}
                rows = record and record.state()
                self._checkpoints.save(self.steps_taken, place | parts | {"ranks": ranks, "record": rows})

    def _given_by_rank_0(self, read):
        box = [read() if self._rank == 0 else None]
        if dist.is_initialized():
            dist.broadcast_object_list(box, src=0)
        return box[0]


def is_whole(state):
    """Say whether ``state`` holds what every run goes on from; its network and optimizer are the script's to know."""
    if not state.keys() >= KEPT_OF_RUN:
        return False
    place, ranks = state["place"], state["ranks"]
    counts = (*place, state["effective_batch"]) if isinstance(place, tuple) and len(place) == 3 else ()
    if not counts or not all(type(one) is int for one in counts) or not isinstance(ranks, list) or not ranks:
        return False
    return all(isinstance(one, dict) and one.keys() >= KEPT_OF_RANK for one in ranks)


class Clock:
    """Says when another checkpoint is due: after ``every_s`` seconds, or later where one takes long.

    They take at most ``SHARE`` of the time: after one that took a second, the next is due no sooner than 50 s later.
    With ``every_s=0`` it is due after every step, whatever it takes.
    """

    def __init__(self, every_s):
        self.every_s = every_s
        self._last, self._cost = time.monotonic(), 0.0

    @property
    def is_due(self):
        return not self.every_s or time.monotonic() - self._last >= max(self.every_s, self._cost / SHARE)

    def __enter__(self):
        """Time a checkpoint."""
        self._began = time.monotonic()
        return self

    def __exit__(self, *_):
        self._last = time.monotonic()
        self._cost = self._last - self._began


class StopSignal:
    """Notes SIGTERM, which torchrun hands on to every rank, and Ctrl-C; the run then ends where it is ready to."""

    def __init__(self):
        self.has_come = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, _number, _frame):
        self.has_come = True
