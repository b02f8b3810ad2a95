"""Train on colour images with many processes and a large batch, to the assignment's target accuracy.

    torchrun --standalone --nproc-per-node 2 solutions/assessment.py

Defaults are the assignment's (assessment/config.json). What lets a large batch reach the target: the rate
follows the batch, it warms up, the optimizer has momentum, and the rate goes down towards the end.
"""

import math
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

if sys.path[0] == os.path.dirname(os.path.abspath(__file__)):
    del sys.path[0]  # in that folder this file has the package's name

from assessment import assignment, finish, report
from utils import devices, models
from utils.arguments import Flags
from utils.data import load, prepare, whole_batch
from utils.data.augment import augment
from utils.errors import UserError, one_line_errors


def parse_args():
    task = assignment()
    flags = Flags(__doc__).take("data-dir", "precision", "device", "dropout", "seed")
    flags.take("dataset", default=task.dataset, help="digits-rgb, cifar10 or folder:PATH")
    flags.take("run-dir", default="runs/assessment", help="where the record goes")
    flags.take("epochs", default=task.epochs)
    flags.take("batch-size", default=task.batch_size)
    flags.take("target-accuracy")
    flags.take("patience", default=task.patience)
    flags.take("base-lr", default=0.025, help="learning rate for 32 images")
    flags.take("momentum")
    flags.take("warmup-epochs", default=2.0)
    flags.take("augment", default="colour")
    return flags.parse_args(), task


@torch.inference_mode()
def evaluate(model, test, device, rank, world_size):
    """Return loss and accuracy of ``model`` over all test images, the same on every rank."""
    # Running statistics differ from rank to rank, so all judge with those of rank 0, the ones that are saved.
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # loss, correct
    own_images, own_labels = test.images[rank::world_size], test.labels[rank::world_size]
    for images, labels in zip(own_images.split(500), own_labels.split(500), strict=True):
        images, labels = images.to(device), labels.to(device)
        logits = model(images)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        sums += torch.stack([loss.double(), (logits.argmax(dim=1) == labels).sum()])
    dist.all_reduce(sums)
    loss, correct = (sums / len(test)).tolist()
    return loss, correct


def main():
    args, task = parse_args()

    if "RANK" not in os.environ:
        raise UserError(f"start this script with torchrun: torchrun --standalone --nproc-per-node 2 {__file__}")
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    world_size, local_world_size = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    device, backend = devices.choose_device(args.device, local_rank=local_rank, local_world_size=local_world_size)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    gpu = device if backend == "nccl" else None
    dist.init_process_group(backend, timeout=timedelta(seconds=60), device_id=gpu)

    # One process of each machine prepares; the others wait in torchrun's store, with patience for a download.
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timeout=timedelta(hours=2))
    prepared = f"prepared on node {os.environ['GROUP_RANK']}"
    if local_rank == 0:
        prepare(args.dataset, args.data_dir)
        store.set(prepared, "yes")
    store.wait([prepared])
    bfloat16 = devices.use_bfloat16(args.precision, device)
    train, test = load(args.dataset, args.data_dir, "train"), load(args.dataset, args.data_dir, "test")

    sampler = DistributedSampler(train, world_size, rank, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(train, args.batch_size, sampler=sampler, drop_last=True, collate_fn=whole_batch)
    if len(loader) == 0:
        raise UserError(f"--batch-size {args.batch_size} is more than a process has images: choose a smaller one")

    torch.manual_seed(args.seed)
    channels, classes = train.images.shape[1], len(train.classes)
    model = models.build(task.model, channels, classes, dropout=args.dropout).to(device)
    parallel = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    torch.manual_seed(args.seed + rank)  # dropout and augmentation differ from share to share
    augmenting = torch.Generator(device).manual_seed(args.seed + rank)

    factor = world_size * args.batch_size / 32
    warmup_steps, steps = args.warmup_epochs * len(loader), args.epochs * len(loader)

    def schedule(step):
        """Return the part of the full rate for a step: up from 1 / factor to 1, then along a cosine towards 0."""
        if step < warmup_steps:
            cold = 1 / max(1.0, factor)
            return cold + (1 - cold) * step / warmup_steps
        done = (step - warmup_steps) / max(1, steps - warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    rate, decay = args.base_lr * factor, 5e-4
    optimizer = torch.optim.SGD(parallel.parameters(), lr=rate, momentum=args.momentum, weight_decay=decay)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)

    training_time, epochs_at_target = 0.0, 0
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        parallel.train()
        sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, images
        dist.barrier()  # rank 0 was busy with the record: let all start the clock together
        start = time.perf_counter()
        for images, labels in loader:
            images, labels = augment(images.to(device), args.augment, augmenting), labels.to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                logits = parallel(images)
                loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.step()
            correct = (logits.argmax(dim=1) == labels).sum()
            sums += torch.stack([loss.detach().double() * len(labels), correct, correct.new_tensor(len(labels))])

        if device.type == "cuda":
            torch.cuda.synchronize()  # the GPU works behind the program's back
        seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64, device=device)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        dist.all_reduce(sums)
        epoch_time = seconds.item()
        loss_sum, correct, count = sums.tolist()
        training_time += epoch_time
        val_loss, val_accuracy = evaluate(model, test, device, rank, world_size)
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
            report(args, model, **row)
        # Every rank holds the reduced accuracy, so every rank decides alike.
        at_target = args.target_accuracy is not None and val_accuracy >= args.target_accuracy
        epochs_at_target = epochs_at_target + 1 if at_target else 0
        if epochs_at_target == args.patience:
            break
    finish()


if __name__ == "__main__":
    with one_line_errors():
        main()
