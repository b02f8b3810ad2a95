"""Train one network on many processes, with nothing but send and receive between them.

    torchrun --standalone --nproc-per-node 2 solutions/02_from_scratch.py --target-accuracy 0.85

Every process computes the gradient of its share of each global batch; a ring all-reduce adds the
gradients up, weighted by the shares; all take the same step. --worker-load 1,0.5 gives the second process
half as many images as the first. The record of the run goes to --run-dir.
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
    # step 1: divide the batch
    # Rounded down, the shares lack a few images: the first ranks take one more each, unless they are left out.
    shares = [int(global_batch * load / sum(loads)) for load in loads]
    working = [rank for rank, load in enumerate(loads) if load > 0]
    for rank in working[: global_batch - sum(shares)]:
        shares[rank] += 1
    return shares


# step 4: ring all-reduce
def ring_all_reduce(flat, rank, world_size):
    """Replace the 1-d tensor ``flat`` by the sum over all ranks, on every rank."""
    chunks = flat.tensor_split(world_size)
    right, left = (rank + 1) % world_size, (rank - 1) % world_size

    def pass_on(outgoing, incoming):
        # Both at once: if all ranks first sent and then received, each could wait for the other.
        send = dist.P2POp(dist.isend, outgoing, right)
        receive = dist.P2POp(dist.irecv, incoming, left)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()

    for step in range(world_size - 1):  # reduce-scatter: each chunk grows on its way round
        target = chunks[(rank - step - 1) % world_size]
        arrived = torch.empty_like(target)
        pass_on(chunks[(rank - step) % world_size], arrived)
        target += arrived
    for step in range(world_size - 1):  # all-gather: the finished chunks go round once more
        pass_on(chunks[(rank - step + 1) % world_size], chunks[(rank - step) % world_size])


def average_gradients(model, own, total, rank, world_size):
    """Give every parameter the gradient of the mean loss over ``total`` images, ``own`` of which are this rank's."""
    # step 5: weigh and average the gradients
    # Each rank's gradient is the mean over its own images, so it counts in proportion to how many those are.
    # One flat tensor, because every message costs time of its own, however short.
    parameters = list(model.parameters())
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    flat = torch.cat([gradient.flatten() for gradient in gradients]) * (own / total)
    ring_all_reduce(flat, rank, world_size)
    for parameter, part in zip(parameters, flat.split([one.numel() for one in parameters]), strict=True):
        parameter.grad = part.view_as(parameter)


@torch.no_grad()
def combine_statistics(model, own, total):
    """Give all ranks one running mean and variance for every BatchNorm, put together from those of the ranks."""
    # step 6: BatchNorm's running statistics
    # A mean of variances is too small: it leaves out how far the ranks' means lie apart. (Running means have averaged
    # part of that away already: the combined mean is exact, the variance only close where shares are large.)
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            mean = layer.running_mean * (own / total)
            dist.all_reduce(mean)
            variance = (layer.running_var + (layer.running_mean - mean) ** 2) * (own / total)
            dist.all_reduce(variance)
            layer.running_mean.copy_(mean)
            layer.running_var.copy_(variance)


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
    # step 3: the same start
    # The ranks will take the same steps; they stay together only if they also start together.
    for tensor in [*model.parameters(), *model.buffers()]:
        dist.broadcast(tensor.detach(), src=0)

    optimizer = torch.optim.SGD(model.parameters(), lr=args.base_lr, momentum=args.momentum)
    augmenting = torch.Generator(device).manual_seed(args.seed + rank)

    record = None
    if rank == 0:
        run_dir = args.run_dir or runs.run_folder(__file__, vars(args), defaults, world_size)
        record = runs.Record(run_dir, vars(args), world_size=world_size, effective_batch=args.global_batch_size)

    # step 2: my part of the batch
    start = sum(shares[:rank])
    mine = slice(start, start + shares[rank])

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
