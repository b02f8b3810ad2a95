"""Lab 03: make this script train on many processes with DistributedDataParallel.

    torchrun --standalone --nproc-per-node 1 labs/03_ddp.py --epochs 2

It works as it stands, on one process. Ten TODOs lead to a script that trains on as many processes as
torchrun starts, in the steps that one process would take with as large a batch. Take them by number,
not by position, and run the script after each: on two processes (--nproc-per-node 2) once TODO 7 is
written, and with --target-accuracy 0.85 once all are. The record of the run goes to --run-dir.
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
from utils.saver import Saver


def parse_args():
    flags = Flags(__doc__)
    flags.take("dataset", "data-dir", "run-dir", "train-images", "augment")
    flags.take("epochs", "batch-size", "base-lr", "momentum", "target-accuracy", "patience", "seed")
    flags.take("model", "width", "dropout", "precision", "device", "backend", "timeout")
    flags.take("resume", "checkpoint-every")
    return flags.parse_args(), flags.defaults()


def join_group(args):
    """Join the processes that torchrun has started; return rank, local rank, world size and this one's device."""
    # TODO 1 Learn who this process is. torchrun starts this file once for each rank and puts RANK,
    # LOCAL_RANK, WORLD_SIZE and LOCAL_WORLD_SIZE into the environment, as text: read the four numbers.
    # Look up: os.environ, int, "Environment Variables" in the documentation of torchrun
    rank, local_rank, world_size, local_world_size = 0, 0, 1, 1

    # TODO 2 Take a device of your own, then join the group. On a machine with several GPUs each process uses
    # the one of its local rank: hand both local numbers to choose_device, and make the GPU the current one.
    # Join with the backend of the device and --timeout, so that nobody waits for ever for a rank that died.
    # Look up: torch.cuda.set_device, torch.distributed.init_process_group, datetime.timedelta
    device, backend = devices.choose_device(args.device, args.backend)

    return rank, local_rank, world_size, device


def read_data(args, local_rank):
    """Return training and test images, prepared by one process of each machine."""
    # TODO 3 Prepare the data once on each machine: local rank 0 does it, the others wait until it has.
    # Otherwise all do the same work, or read what another has half written. A download may take longer than
    # --timeout, so let them wait for a key in torchrun's store, one for each machine (GROUP_RANK), for hours.
    # Look up: torch.distributed.TCPStore (at MASTER_ADDR and MASTER_PORT), its set and wait
    prepare(args.dataset, args.data_dir)

    train, test = load(args.dataset, args.data_dir, "train"), load(args.dataset, args.data_dir, "test")
    if args.train_images:
        train = train.first(args.train_images)
    return train, test


@torch.inference_mode()
def evaluate(model, test, device, rank, world_size):
    """Return loss and accuracy of ``model`` over all test images, the same on every rank."""
    # TODO 9 Validate exactly, all ranks together: each takes every world_size-th image; loss, correct answers
    # and images are summed over the ranks and divided once, as a mean of means is wrong for unequal shares. The
    # running statistics of BatchNorm differ by now, so first give all ranks those of rank 0, which are saved.
    # Look up: torch.distributed.all_reduce, torch.distributed.broadcast, Module.buffers
    model.eval()
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, images
    for images, labels in zip(test.images.split(500), test.labels.split(500), strict=True):
        images, labels = images.to(device), labels.to(device)
        logits = model(images)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        correct = (logits.argmax(dim=1) == labels).sum()
        sums += torch.stack([loss.double(), correct, correct.new_tensor(len(labels))])
    loss, correct, count = sums.tolist()
    return loss / count, correct / count


def main():
    args, defaults = parse_args()
    rank, local_rank, world_size, device = join_group(args)
    train, test = read_data(args, local_rank)
    bfloat16 = devices.use_bfloat16(args.precision, device)

    # TODO 4 Give each rank its share: all ranks shuffle alike, rank r takes every world_size-th image from r
    # on. The sampler replaces the loader's shuffle and generator. Let both drop the remainder, so that no image
    # is repeated. Look up: torch.utils.data.distributed.DistributedSampler, the argument sampler of DataLoader
    shuffling = torch.Generator().manual_seed(args.seed)
    loader = DataLoader(
        train, args.batch_size, shuffle=True, generator=shuffling, drop_last=True, collate_fn=whole_batch
    )

    if len(loader) == 0:
        raise UserError(f"--batch-size {args.batch_size} is more than a process has images: choose a smaller one")

    torch.manual_seed(args.seed)
    channels, classes = train.images.shape[1], len(train.classes)
    model = models.build(args.model, channels, classes, width=args.width, dropout=args.dropout).to(device)

    # TODO 6 Wrap the network, so that all ranks start with the same weights and backward averages their
    # gradients; keep `model`, the bare network, for validation and for saving. Then seed each rank
    # differently, for dropout. Look up: torch.nn.parallel.DistributedDataParallel (device_ids on a GPU)
    parallel = model

    optimizer = torch.optim.SGD(parallel.parameters(), lr=args.base_lr, momentum=args.momentum)
    augmenting = torch.Generator(device).manual_seed(args.seed + rank)

    # With --resume a run that was killed goes on where it was saved last, to the same weights (chapter 12).
    run_dir = args.run_dir or runs.run_folder(__file__, vars(args), defaults, world_size)
    parts, draws = {"model": parallel, "optimizer": optimizer}, [augmenting, loader.generator]
    saver = Saver(run_dir, parts, draws, args, effective_batch=world_size * args.batch_size)

    # TODO 7 Let only rank 0 make the record (None on the others), write and print, here and after each epoch,
    # and show the bar: two processes that write one file damage it. The effective batch is that of all ranks
    # together. All ranks still call runs.finish. Look up: the argument disable of tqdm
    sizes = {"world_size": world_size, "effective_batch": args.batch_size}
    record = runs.Record(run_dir, vars(args), **sizes, goes_on_from=saver.record)

    training_time, epochs_at_target = saver.so_far(args.target_accuracy)
    for epoch in range(saver.epoch, args.epochs + 1):
        # TODO 5 Tell the sampler which epoch this is: it shuffles by seed + epoch, so without this call
        # every epoch has the same order. Look up: DistributedSampler.set_epoch

        parallel.train()
        sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, images

        start = time.perf_counter() - saver.elapsed
        steps = tqdm(loader, f"epoch {epoch}", leave=False, disable=None)

        for images, labels in saver.steps(steps, sums, record):
            images, labels = augment(images.to(device), args.augment, augmenting), labels.to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                logits = parallel(images)
                loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct = (logits.argmax(dim=1) == labels).sum()
            sums += torch.stack([loss.detach().double() * len(labels), correct, correct.new_tensor(len(labels))])

        # TODO 8 Count for all ranks: the epoch takes as long as its slowest rank; loss, correct answers and images
        # are sums. Read the clock before you reduce anything, on a GPU once it has done its work, and reduce tensors
        # that lie on `device`. Look up: torch.distributed.all_reduce, ReduceOp.MAX, torch.cuda.synchronize
        loss_sum, correct, count = sums.tolist()
        epoch_time = time.perf_counter() - start

        training_time += epoch_time

        val_loss, val_accuracy = evaluate(model, test, device, rank, world_size)

        # TODO 10 Make sure that all ranks stop in the same epoch: one that leaves the loop alone lets the
        # others wait for it. Which number must be the same on all ranks for that? After TODO 9 it is: say
        # why, then replace this comment by the reason. Look up: your own evaluate()
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
        record.epoch(model, target_reached=done, **row)
        print(
            f"epoch {epoch}: {epoch_time:.1f} s, {row['images_per_s']:,.0f} images/s,"
            f" train loss {row['train_loss']:.3f}, val accuracy {val_accuracy:.4f}"
        )

        saver.end_epoch(record, is_last=done or epoch == args.epochs)
        if done:
            break

    runs.finish(record)


if __name__ == "__main__":
    with one_line_errors():
        main()
# From solutions/03_ddp.py, unchanged while this number fits: 3d8ae6141d4c
