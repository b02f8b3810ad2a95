"""Train on many processes and survive: a run that is killed at any moment goes on to the same weights.

    torchrun --standalone --nproc-per-node 2 --max-restarts 3 solutions/12_when_things_break.py --resume

Every few seconds, and when it is told to stop, the run saves all that its next step depends on. Started again with
--resume it goes on there, in the middle of an epoch, and ends with the weights that it would have had, bit by bit.
The scripts of chapters 03 to 09 do this in utils/saver.py. The record of the run goes to --run-dir.
"""

import os
import shutil
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

from utils import devices, models, runs
from utils.arguments import Flags
from utils.checkpoints import random_states, restore_random_states
from utils.data import load, prepare, whole_batch
from utils.data.augment import augment
from utils.errors import UserError, one_line_errors


def parse_args():
    flags = Flags(__doc__)
    flags.take("dataset", "data-dir", "run-dir", "train-images", "augment")
    flags.take("epochs", "batch-size", "base-lr", "momentum", "target-accuracy", "patience", "seed")
    flags.take("model", "width", "dropout", "precision", "device", "backend", "timeout")
    flags.take("resume", "checkpoint-every")
    return flags.parse_args(), flags.defaults()


def join_group(args):
    """Join the processes that torchrun has started; return rank, local rank, world size and this one's device."""
    if "RANK" not in os.environ:
        raise UserError(f"start this script with torchrun: torchrun --standalone --nproc-per-node 2 {__file__}")
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    world_size, local_world_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device, backend = devices.choose_device(
        args.device, args.backend, local_rank=local_rank, local_world_size=local_world_size
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend, timeout=timedelta(seconds=args.timeout), device_id=device if backend == "nccl" else None
    )
    return rank, local_rank, world_size, device


def read_data(args, local_rank):
    """Return training and test images, prepared by one process of each machine."""
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(hours=2))
    # torchrun keeps its store when it starts the processes again: each start has a key of its own.
    start = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prepared = f"prepared on node {os.environ['GROUP_RANK']} in start {start}"
    if local_rank == 0:
        prepare(args.dataset, args.data_dir)
        store.set(prepared, "yes")
    store.wait([prepared])
    train, test = load(args.dataset, args.data_dir, "train"), load(args.dataset, args.data_dir, "test")
    if args.train_images:
        train = train.first(args.train_images)
    return train, test


@torch.inference_mode()
def evaluate(model, test, device, rank, world_size):
    """Return loss and accuracy of ``model`` over all test images, the same on every rank."""
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, images
    own_images, own_labels = test.images[rank::world_size], test.labels[rank::world_size]
    for images, labels in zip(own_images.split(500), own_labels.split(500), strict=True):
        images, labels = images.to(device), labels.to(device)
        logits = model(images)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        correct = (logits.argmax(dim=1) == labels).sum()
        sums += torch.stack([loss.double(), correct, correct.new_tensor(len(labels))])
    dist.all_reduce(sums)
    loss, correct, count = sums.tolist()
    return loss / count, correct / count


def everything(place, model, optimizer, sums, augmenting, record):
    """Return all that the next step depends on, on rank 0: tensors and plain values. Every rank must call it."""
    # step 1: all that the next step depends on
    # Weights alone are not enough: momentum is in the optimizer, and each rank has sums and random numbers of its own.
    own = {"sums": sums.cpu(), "random": random_states(augmenting)}
    ranks = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(own, ranks)
    if record is None:
        return None
    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return {"place": place, **parts, "ranks": ranks, "record": record.state()}


def save(folder, taken, state):
    """Write the checkpoint after ``taken`` steps to ``folder``, and keep the one before it."""
    # step 2: whole or not at all
    # A file gets its name once it is whole and on the disk, in one step: whoever is killed halfway leaves a part that
    # nobody reads. The one before it stays, should this one be damaged later.
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{taken:09}.pt"
    part = path.with_suffix(".part")
    torch.save(state, part)
    with open(part, "rb") as file:
        os.fsync(file.fileno())
    part.replace(path)
    for older in sorted(folder.glob("step-*.pt"))[:-2]:
        older.unlink()


def latest(folder):
    """Return the last checkpoint in ``folder`` that can be read, None where there is none."""
    # step 3: the last that can be read
    paths = sorted(folder.glob("step-*.pt"), reverse=True)
    for path in paths:
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # cut short, or no file of torch's any more
            print(f"{path} is damaged ({type(error).__name__}): going on from the checkpoint before it")
    if paths:
        raise UserError(f"no checkpoint in {folder} can be read: start anew, without --resume")
    return None


def main():
    args, defaults = parse_args()
    rank, local_rank, world_size, device = join_group(args)
    train, test = read_data(args, local_rank)
    bfloat16 = devices.use_bfloat16(args.precision, device)

    sampler = DistributedSampler(train, world_size, rank, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True, collate_fn=whole_batch)
    if len(loader) == 0:
        raise UserError(f"--batch-size {args.batch_size} is more than a process has images: choose a smaller one")

    torch.manual_seed(args.seed)
    channels, classes = train.images.shape[1], len(train.classes)
    model = models.build(args.model, channels, classes, width=args.width, dropout=args.dropout).to(device)
    parallel = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    # The wrapper puts its messages in order behind its first backward. Let that be a pass that teaches nothing, so that
    # a run that goes on adds up in the same order: the last digit of a sum depends on it.
    parallel.eval()(torch.zeros_like(train.images[:2]).to(device)).sum().backward()
    parallel.zero_grad()
    torch.manual_seed(args.seed + rank)  # dropout and augmentation differ from share to share
    optimizer = torch.optim.SGD(parallel.parameters(), lr=args.base_lr, momentum=args.momentum)
    augmenting = torch.Generator(device).manual_seed(args.seed + rank)

    run_dir = Path(args.run_dir or runs.run_folder(__file__, vars(args), defaults, world_size))
    folder = run_dir / "checkpoints"
    if rank == 0 and not args.resume:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that nobody wants to go on with

    place = {"epoch": 1, "step": 0, "taken": 0, "epochs_at_target": 0, "training_time": 0.0, "elapsed": 0.0}
    saved = None
    # step 4: go on from there
    # One rank reads and tells the others: no two go on from different checkpoints, and no machine needs another's disk.
    box = [latest(folder) if rank == 0 and args.resume else None]
    dist.broadcast_object_list(box, src=0)
    saved = box[0]
    if saved:
        if len(saved["ranks"]) != world_size:
            raise UserError(f"the run in {run_dir} has {len(saved['ranks'])} processes: start as many to go on")
        place = saved["place"]
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])

    record = None
    if rank == 0:
        sizes = {"world_size": world_size, "effective_batch": world_size * args.batch_size}
        record = runs.Record(run_dir, vars(args), **sizes, goes_on_from=saved and saved["record"])

    signals = []
    # step 6: stop after a step, and saved
    # Nothing can be saved within a step, so a signal is only noted. It stands behind the record, which ends at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: signals.append(number))

    last_save = time.monotonic()
    for epoch in range(place["epoch"], args.epochs + 1):
        sampler.set_epoch(epoch)
        parallel.train()
        sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, images
        batches = iter(loader)

        # step 5: past what is done
        # From the batches of before nothing more is to be learned. Then draw on where each rank was.
        if saved:
            own, saved = saved["ranks"][rank], None
            for _ in range(place["step"]):
                next(batches)
            sums.copy_(own["sums"])
            restore_random_states(own["random"], augmenting)

        dist.barrier()  # rank 0 was busy with the record: let all start the clock together
        start = time.perf_counter() - place["elapsed"]
        for images, labels in tqdm(batches, f"epoch {epoch}", leave=False, disable=None if rank == 0 else True):
            images, labels = augment(images.to(device), args.augment, augmenting), labels.to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                logits = parallel(images)
                loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct = (logits.argmax(dim=1) == labels).sum()
            sums += torch.stack([loss.detach().double() * len(labels), correct, correct.new_tensor(len(labels))])
            place |= {"step": place["step"] + 1, "taken": place["taken"] + 1}

            # step 7: after the same step on all ranks
            # One clock decides when to save, and a signal may reach a single rank: what one knows, all must know before
            # anyone acts. One small message a step carries all of it.
            told = torch.zeros(2 + world_size, device=device)  # save, stop, and of each rank whether its loss is lost
            told[0] = rank == 0 and time.monotonic() - last_save >= args.checkpoint_every
            told[1] = bool(signals)
            told[2 + rank] = not loss.isfinite()
            dist.all_reduce(told)
            is_due, is_stopped, *lost = told.tolist()

            # step 8: who brought it
            # The average has carried it to all ranks, so their weights no longer tell. It is not to be saved.
            culprits = [str(one) for one, is_lost in enumerate(lost) if is_lost]
            if culprits:
                raise UserError(
                    f"in step {place['step']} of epoch {epoch} the loss is no number on rank {', '.join(culprits)}:"
                    " look at its images and its machine, or lower the rate; --resume goes on from before"
                )

            if is_due or is_stopped:
                place["elapsed"] = time.perf_counter() - start
                state = everything(place, model, optimizer, sums, augmenting, record)
                if rank == 0:
                    save(folder, place["taken"], state)
                last_save = time.monotonic()
            if is_stopped:
                runs.finish(record, stopped_by=signal.SIGTERM)

        if device.type == "cuda":
            torch.cuda.synchronize()  # the GPU works behind the program's back; wait before reading the clock
        seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64, device=device)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        dist.all_reduce(sums)
        epoch_time = seconds.item()
        loss_sum, correct, count = sums.tolist()
        val_loss, val_accuracy = evaluate(model, test, device, rank, world_size)

        at_target = args.target_accuracy is not None and val_accuracy >= args.target_accuracy
        epochs_at_target = place["epochs_at_target"] + 1 if at_target else 0
        training_time = place["training_time"] + epoch_time
        place |= {"epoch": epoch + 1, "step": 0, "epochs_at_target": epochs_at_target}
        place |= {"training_time": training_time, "elapsed": 0.0}
        done = epochs_at_target == args.patience
        row = {
            "time_s": training_time,
            "epoch_time_s": epoch_time,
            "images_per_s": count / epoch_time,
            "lr": optimizer.param_groups[0]["lr"],
            "train_loss": loss_sum / count,
            "train_accuracy": correct / count,
            "val_loss": val_loss,
            "val_accuracy": val_accuracy,
        }
        if rank == 0:
            record.epoch(model, target_reached=done, **row)
            print(
                f"epoch {epoch}: {epoch_time:.1f} s, {row['images_per_s']:,.0f} images/s,"
                f" train loss {row['train_loss']:.3f}, val accuracy {val_accuracy:.4f}"
            )
        if done:
            break

    runs.finish(record)


if __name__ == "__main__":
    with one_line_errors():
        main()
