"""Train one network on many processes, and say what it costs and where the time goes.

    torchrun --standalone --nproc-per-node 2 solutions/05_batch_size.py --model resnet18 --width 0.25 \\
        --batch-size 256 --base-lr 0.2 --epochs 3 --profile-steps 5

This is the script of chapter 04, with gradient accumulation (--micro-batch-size) for batches that a device does not
hold, and a profile after training: how long a step computes, waits for the slowest rank and communicates. The record
of the run, with profile and cost, goes to --run-dir.
"""

import os
import time
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

from utils import devices, models, runs
from utils.arguments import Flags, at_least
from utils.data import load, prepare, whole_batch
from utils.data.augment import augment
from utils.errors import UserError, one_line_errors
from utils.parallel.sync_batchnorm import convert_sync_batchnorm
from utils.saver import Saver


def parse_args():
    flags = Flags(__doc__)
    flags.take("dataset", "data-dir", "run-dir", "train-images", "augment")
    flags.take("epochs", "batch-size", "base-lr", "momentum", "target-accuracy", "patience", "seed")
    flags.take("model", "width", "dropout", "sync-batchnorm", "precision", "device", "backend", "timeout")
    flags.take("resume", "checkpoint-every")
    flags.add_argument(
        "--micro-batch-size", type=at_least(1), help="images at once in each process (default: all of its batch)"
    )
    flags.add_argument("--profile-steps", type=at_least(0), default=0, help="after training, time so many steps twice")
    return flags.parse_args(), flags.defaults()


def join_group(args):
    """Join the processes that torchrun has started; return rank, local rank, world size and this one's device."""
    # torchrun starts this file once for each rank and puts the numbers into the environment.
    if "RANK" not in os.environ:
        raise UserError(f"start this script with torchrun: torchrun --standalone --nproc-per-node 2 {__file__}")
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    world_size, local_world_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])

    # A process uses the GPU of its local rank; its global rank would name a GPU that another node has.
    device, backend = devices.choose_device(
        args.device, args.backend, local_rank=local_rank, local_world_size=local_world_size
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # A rank that dies makes the others fail after the timeout at the latest, so nothing waits for ever.
    dist.init_process_group(
        backend,
        timeout=timedelta(seconds=args.timeout),
        device_id=device if backend == "nccl" else None,
    )
    return rank, local_rank, world_size, device


def read_data(args, local_rank):
    """Return training and test images, prepared by one process of each machine."""
    # One process of each machine prepares, the others wait for it; then all read one file. They wait in torchrun's
    # store, key by key, because a download may take longer than --timeout.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(hours=2))
    prepared = f"prepared on node {os.environ['GROUP_RANK']}"
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
    # Each rank takes every world_size-th image: none is counted twice, whatever the number divides by.
    # Running statistics differ from rank to rank, so all judge with those of rank 0, the ones it saves.
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


def profile(parallel, images, labels, bfloat16, steps):
    """Return the milliseconds of a forward and backward pass that this rank computes, waits and communicates."""

    def milliseconds(communicating):
        # step 1: a step with and without communication
        # Outside no_sync, backward averages the gradients of all ranks; inside it, each rank works for itself.
        for step in range(steps + 1):
            if step == 1:  # the first, untimed, may still send buffers that an earlier step left behind
                dist.barrier()
                start = time.perf_counter()
            with nullcontext() if communicating else parallel.no_sync():
                with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
                    loss = F.cross_entropy(parallel(images), labels)
                loss.backward()
        if images.device.type == "cuda":
            torch.cuda.synchronize()
        return 1000 * (time.perf_counter() - start) / steps

    parallel.train()
    # step 2: computing and waiting
    # Alone each rank takes its own time. Together they take the slowest one's, so the faster ones wait.
    own = milliseconds(communicating=False)
    slowest = torch.tensor(own, dtype=torch.float64, device=images.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    waiting = slowest.item() - own

    # step 3: communicating
    # What runs while backward still computes costs nothing; this is the part that is left over.
    together = torch.tensor(milliseconds(communicating=True), dtype=torch.float64, device=images.device)
    dist.all_reduce(together, op=dist.ReduceOp.MAX)
    communicating = max(0.0, together.item() - slowest.item())  # below zero is noise

    return {"computing": own, "waiting": waiting, "communicating": communicating}


def main():
    args, defaults = parse_args()
    rank, local_rank, world_size, device = join_group(args)
    train, test = read_data(args, local_rank)
    bfloat16 = devices.use_bfloat16(args.precision, device)

    # Every rank shuffles alike and takes its share. Dropping the remainder (less than one global batch,
    # other images each epoch) keeps shares equal and disjoint; padding would repeat images instead.
    sampler = DistributedSampler(train, world_size, rank, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True, collate_fn=whole_batch)
    if len(loader) == 0:
        raise UserError(f"--batch-size {args.batch_size} is more than a process has images: choose a smaller one")

    torch.manual_seed(args.seed)
    channels, classes = train.images.shape[1], len(train.classes)
    model = models.build(args.model, channels, classes, width=args.width, dropout=args.dropout).to(device)
    if args.sync_batchnorm:
        model = convert_sync_batchnorm(model)  # on its device, before optimizer and wrapper hold the parameters

    # The wrapper gives all ranks rank 0's weights and, while backward runs, averages their gradients.
    parallel = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    torch.manual_seed(args.seed + rank)  # dropout and augmentation differ from share to share
    optimizer = torch.optim.SGD(parallel.parameters(), lr=args.base_lr, momentum=args.momentum)
    augmenting = torch.Generator(device).manual_seed(args.seed + rank)

    # With --resume a run that was killed goes on where it was saved last, to the same weights (chapter 12).
    run_dir = args.run_dir or runs.run_folder(__file__, vars(args), defaults, world_size)
    parts, draws = {"model": parallel, "optimizer": optimizer}, [augmenting, loader.generator]
    saver = Saver(run_dir, parts, draws, args, effective_batch=world_size * args.batch_size)

    record = None
    if rank == 0:
        effective_batch = world_size * args.batch_size
        sizes = {"world_size": world_size, "effective_batch": effective_batch}
        record = runs.Record(run_dir, vars(args), **sizes, goes_on_from=saver.record)

    micro_batch = args.micro_batch_size or args.batch_size
    training_time, epochs_at_target = saver.so_far(args.target_accuracy)
    for epoch in range(saver.epoch, args.epochs + 1):
        sampler.set_epoch(epoch)  # without it every epoch has the order of the first
        parallel.train()
        sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, images
        dist.barrier()  # rank 0 was busy with the record: let all start the clock together
        start = time.perf_counter() - saver.elapsed
        steps = tqdm(loader, f"epoch {epoch}", leave=False, disable=None if rank == 0 else True)
        for images, labels in saver.steps(steps, sums, record):
            images, labels = augment(images.to(device), args.augment, augmenting), labels.to(device)
            optimizer.zero_grad()
            # step 5: gradient accumulation
            # Gradients add up over the micro-batches, so each loss counts by its share of the images. Only the last
            # backward communicates. no_sync must hold the forward pass as well: there DDP prepares its messages.
            taken = 0
            for few, their in zip(images.split(micro_batch), labels.split(micro_batch), strict=True):
                taken += len(their)
                with nullcontext() if taken == len(labels) else parallel.no_sync():
                    with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                        logits = parallel(few)
                        loss = F.cross_entropy(logits, their)
                    (loss * len(their) / len(labels)).backward()
                correct = (logits.argmax(dim=1) == their).sum()
                sums += torch.stack([loss.detach().double() * len(their), correct, correct.new_tensor(len(their))])

            optimizer.step()

        if device.type == "cuda":
            torch.cuda.synchronize()  # the GPU works behind the program's back; wait before reading the clock
        seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64, device=device)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        dist.all_reduce(sums)
        epoch_time = seconds.item()
        loss_sum, correct, count = sums.tolist()
        training_time += epoch_time

        val_loss, val_accuracy = evaluate(model, test, device, rank, world_size)

        # Every rank holds the reduced accuracy, so every rank decides alike. Were it each one's own, one
        # would leave the loop while the others wait for it in their next all-reduce.
        at_target = args.target_accuracy is not None and val_accuracy >= args.target_accuracy
        epochs_at_target = epochs_at_target + 1 if at_target else 0
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
        saver.end_epoch(record, is_last=done or epoch == args.epochs)
        if done:
            break

    # step 4: what it cost
    # A device that waits is paid for, too. (So are start and validation, which come on top.)
    device_seconds = world_size * training_time

    if rank == 0:
        record.summary["device_seconds"] = device_seconds
        print(f"{world_size} x {training_time:.1f} s of training")
    if args.profile_steps:
        images, labels = (part[:micro_batch].to(device) for part in next(iter(loader)))
        step_ms = profile(parallel, images, labels, bfloat16, args.profile_steps)
        if rank == 0:
            record.summary["step_ms"] = step_ms
            print("a step on rank 0: " + ", ".join(f"{ms:.1f} ms {name}" for name, ms in step_ms.items()))
    runs.finish(record)


if __name__ == "__main__":
    with one_line_errors():
        main()
