"""Lab 08: warm the learning rate up.

    torchrun --standalone --nproc-per-node 2 labs/08_warmup.py --batch-size 256 --lr-scaling linear --epochs 3

This is the finished script of chapter 07; momentum is PyTorch's. Two TODOs let the rate climb to its full size;
once they are done, add --warmup-epochs 1.5. The record of the run goes to --run-dir.
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from tqdm import tqdm

from utils import devices, models, runs
from utils.arguments import Flags
from utils.data import load, prepare, whole_batch
from utils.data.augment import augment
from utils.errors import UserError, one_line_errors
from utils.parallel.sync_batchnorm import convert_sync_batchnorm
from utils.saver import Saver


def parse_args():
    flags = Flags(__doc__)
    flags.take("dataset", "data-dir", "run-dir", "train-images", "augment")
    flags.take("epochs", "batch-size", "base-lr", "reference-batch", "lr-scaling", "warmup-epochs", "lr-decay")
    flags.take("momentum", "target-accuracy", "patience", "seed")
    flags.take("model", "width", "dropout", "sync-batchnorm", "precision", "device", "backend", "timeout")
    flags.take("resume", "checkpoint-every")
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


def warmed(step, warmup_steps, factor):
    """Return the part of the full rate that ``step`` gets."""
    # TODO 1 Return it for a step counted from 0: 1 / factor at first, 1 from warmup_steps on, evenly climbing
    # between. Without warm-up (0 steps), or with a factor below 1, it is 1 at once.
    # Look up: section 2.2 of Goyal et al. 2017
    return 1.0


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
    effective_batch = world_size * args.batch_size
    # What counts is how many images a step averages over, not how many processes hold them.
    factor = effective_batch / args.reference_batch
    rate = args.base_lr * {"none": 1, "sqrt": factor**0.5, "linear": factor}[args.lr_scaling]
    optimizer = torch.optim.SGD(parallel.parameters(), lr=rate, momentum=args.momentum)

    warmup_steps = args.warmup_epochs * len(loader)

    # TODO 2 The schedule knows the decay only: multiply it by what warmed says, given the two numbers above.
    # Look up: torch.optim.lr_scheduler.LambdaLR
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + args.lr_decay * step))

    augmenting = torch.Generator(device).manual_seed(args.seed + rank)

    # With --resume a run that was killed goes on where it was saved last, to the same weights (chapter 12).
    run_dir = args.run_dir or runs.run_folder(__file__, vars(args), defaults, world_size)
    parts, draws = {"model": parallel, "optimizer": optimizer, "schedule": schedule}, [augmenting, loader.generator]
    saver = Saver(run_dir, parts, draws, args, effective_batch)

    record = None
    if rank == 0:
        sizes = {"world_size": world_size, "effective_batch": effective_batch}
        record = runs.Record(run_dir, vars(args), **sizes, goes_on_from=saver.record)

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
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                logits = parallel(images)
                loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            correct = (logits.argmax(dim=1) == labels).sum()
            sums += torch.stack([loss.detach().double() * len(labels), correct, correct.new_tensor(len(labels))])

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

    # A device that waits is paid for, too. (So are start and validation, which come on top.)
    device_seconds = world_size * training_time
    if rank == 0:
        record.summary["device_seconds"] = device_seconds
        print(f"{world_size} x {training_time:.1f} s of training")
    runs.finish(record)


if __name__ == "__main__":
    with one_line_errors():
        main()
# From solutions/08_warmup.py, unchanged while this number fits: 75c5aef7e335
