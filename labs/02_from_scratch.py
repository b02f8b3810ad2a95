"""Lab 02: make the processes of this script train one network together, with send and receive alone.

    torchrun --standalone --nproc-per-node 1 labs/02_from_scratch.py --epochs 2

It works as it stands, on one process. On two (--nproc-per-node 2) each would train a network of its own on
all images. Six TODOs make them one; take them by number, and run the script on two processes after each.
When all are done, --worker-load 1,0.5 gives the second process half as many images as the first. The
record of the run goes to --run-dir.
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm

from utils import devices, models, runs
from utils.arguments import Flags, at_least
from utils.data import load, prepare, whole_batch
from utils.data.augment import augment
from utils.errors import UserError, one_line_errors


def parse_args():
    flags = Flags(__doc__)
    flags.take("dataset", "data-dir", "run-dir", "train-images", "augment")
    flags.take("epochs", "base-lr", "momentum", "target-accuracy", "patience", "seed")
    flags.take("model", "width", "dropout", "precision", "device", "backend", "timeout")
    flags.add_argument(
        "--global-batch-size", type=at_least(1), default=64, help="images a step, of all processes together"
    )
    flags.add_argument(
        "--worker-load", help="how much each process takes, such as 1,0.5; 0 leaves one out (default: all alike)"
    )
    return flags.parse_args(), flags.defaults()


def read_loads(text, world_size):
    """Return a load for each rank from ``--worker-load``."""
    try:
        loads = [float(part) for part in text.split(",")] if text else [1.0] * world_size
    except ValueError:
        raise UserError(f"--worker-load {text}: give numbers, such as 1,0.5") from None
    if len(loads) != world_size or min(loads) < 0 or not 0 < sum(loads) < float("inf"):
        raise UserError(f"--worker-load {text}: give {world_size} numbers, one a process, none negative, not all 0")
    return loads


def divide(global_batch, loads):
    """Return how many of ``global_batch`` images each rank takes: whole numbers in proportion to ``loads``."""
    # TODO 1 Divide the batch in proportion to the loads. Shares are whole numbers that add up to the batch:
    # round down, then give the first ranks one image more each until none is left over. A rank with load 0
    # takes none. Look up: int, sum, section 6 of the notebook
    return [global_batch] * len(loads)


def ring_all_reduce(flat, rank, world_size):
    """Replace the 1-d tensor ``flat`` by the sum over all ranks, on every rank."""
    # TODO 4 Cut flat into a chunk a rank. In each of world_size - 1 steps send one chunk to the right, and add the
    # one that comes from the left to yours: every rank ends with one finished chunk. In as many steps pass those on.
    # The notebook's figure shows which when. Chunks are views: change them in place.
    # Look up: Tensor.tensor_split, torch.distributed.batch_isend_irecv, P2POp


def average_gradients(model, own, total, rank, world_size):
    """Give every parameter the gradient of the mean loss over ``total`` images, ``own`` of which are this rank's."""
    # TODO 5 Put all gradients behind each other in one flat tensor, times own / total; add them up over the ranks
    # with your ring, and give each parameter its part. Why own / total, not 1 / world_size? Where a rank has no
    # images, its gradients are None: they count as zero. Look up: torch.cat, Tensor.split, Tensor.view_as


@torch.no_grad()
def combine_statistics(model, own, total):
    """Give all ranks one running mean and variance for every BatchNorm, put together from those of the ranks."""
    # TODO 6 BatchNorm on each rank has seen other images. With f = own / total of each rank, give every layer on
    # all ranks mean = sum of f mean_r and variance = sum of f (variance_r + (mean_r - mean)^2), in running_mean and
    # running_var. Why is the mean of the variances too small? Look up: Module.modules, torch.distributed.all_reduce


@torch.inference_mode()
def evaluate(model, test, device, rank, world_size):
    """Return loss and accuracy over all test images, the same on every rank (chapter 03 looks into it)."""
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


def main():
    args, defaults = parse_args()

    if "RANK" not in os.environ:
        raise UserError(f"start this script with torchrun: torchrun --standalone --nproc-per-node 2 {__file__}")
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    world_size, local_world_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device, backend = devices.choose_device(
        args.device, args.backend, local_rank=local_rank, local_world_size=local_world_size
    )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    shares = divide(args.global_batch_size, read_loads(args.worker_load, world_size))
    dist.init_process_group(
        backend, timeout=timedelta(seconds=args.timeout), device_id=device if backend == "nccl" else None
    )
    bfloat16 = devices.use_bfloat16(args.precision, device)

    # The others wait in torchrun's store: preparing may take longer than --timeout.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(hours=2))
    prepared = f"prepared on node {os.environ['GROUP_RANK']}"
    if local_rank == 0:
        prepare(args.dataset, args.data_dir)
        store.set(prepared, "yes")
    store.wait([prepared])
    train, test = load(args.dataset, args.data_dir, "train"), load(args.dataset, args.data_dir, "test")
    if args.train_images:
        train = train.first(args.train_images)

    # All ranks shuffle alike, so all see the same global batches.
    shuffling = torch.Generator().manual_seed(args.seed)
    loader = DataLoader(
        train, args.global_batch_size, shuffle=True, generator=shuffling, drop_last=True, collate_fn=whole_batch
    )
    if len(loader) == 0:
        raise UserError(f"--global-batch-size {args.global_batch_size} is more than there are images: choose less")

    torch.manual_seed(args.seed + rank)  # every rank draws other weights, other dropout
    channels, classes = train.images.shape[1], len(train.classes)
    model = models.build(args.model, channels, classes, width=args.width, dropout=args.dropout).to(device)
    # TODO 3 Every rank has drawn weights of its own. Send those of rank 0 to all, and the buffers too.
    # Look up: torch.distributed.broadcast, Module.parameters, Module.buffers, Tensor.detach

    optimizer = torch.optim.SGD(model.parameters(), lr=args.base_lr, momentum=args.momentum)
    augmenting = torch.Generator(device).manual_seed(args.seed + rank)

    record = None
    if rank == 0:
        run_dir = args.run_dir or runs.run_folder(__file__, vars(args), defaults, world_size)
        record = runs.Record(run_dir, vars(args), world_size=world_size, effective_batch=args.global_batch_size)

    # TODO 2 Say which part of each global batch is yours: the images of the ranks before you come first.
    # Look up: slice, the list `shares` above
    mine = slice(0, args.global_batch_size)

    training_time, epochs_at_target = 0.0, 0
    for epoch in range(1, args.epochs + 1):
        model.train()
        sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, images
        dist.barrier()
        clock = time.perf_counter()
        for images, labels in tqdm(loader, f"epoch {epoch}", leave=False, disable=None if rank == 0 else True):
            images, labels = images[mine].to(device), labels[mine].to(device)
            optimizer.zero_grad()
            if len(images):
                images = augment(images, args.augment, augmenting)
                with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                    logits = model(images)
                    loss = F.cross_entropy(logits, labels)
                loss.backward()
                correct = (logits.argmax(dim=1) == labels).sum()
                sums += torch.stack([loss.detach().double() * len(labels), correct, correct.new_tensor(len(labels))])
            average_gradients(model, shares[rank], args.global_batch_size, rank, world_size)
            optimizer.step()
        combine_statistics(model, shares[rank], args.global_batch_size)

        if device.type == "cuda":
            torch.cuda.synchronize()  # the GPU works behind the program's back; wait before reading the clock
        seconds = torch.tensor(time.perf_counter() - clock, dtype=torch.float64, device=device)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        dist.all_reduce(sums)
        epoch_time = seconds.item()
        loss_sum, correct, count = sums.tolist()
        training_time += epoch_time

        val_loss, val_accuracy = evaluate(model, test, device, rank, world_size)
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
        if done:
            break

    runs.finish(record)


if __name__ == "__main__":
    with one_line_errors():
        main()
# From solutions/02_from_scratch.py, unchanged while this number fits: 2c7aef65d776
