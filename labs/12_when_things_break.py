"""Lab 12: make this script survive, so that a run that is killed at any moment goes on to the same weights.

    torchrun --standalone --nproc-per-node 2 labs/12_when_things_break.py --epochs 4 --checkpoint-every 1

This is the finished script of chapter 03, without what it does behind --resume. It trains as it stands; whoever kills
it begins anew. Eight TODOs change that; 6 stands before 5, where its lines belong. With --checkpoint-every 0 the script
saves behind every step from TODO 2 on, with other values once TODO 7 is done. To try it, kill it from another terminal
(pkill -9 -f 'python.*labs/12' ends every Python program with that in its command) and start it again with --resume
added. The record of the run goes to --run-dir.
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
    # TODO 1 Gather it on rank 0 and return it in a dictionary: place, the state_dict of model and optimizer, under
    # "record" what record.state() gives (main hands that on), and of every rank, in a list, its sums (on the CPU) and
    # random_states(augmenting). The other keys are yours to choose. On other ranks record is None.
    # Look up: torch.distributed.gather_object, state_dict, random_states in utils/checkpoints.py
    return None


def save(folder, taken, state):
    """Write the checkpoint after ``taken`` steps to ``folder``, and keep the one before it."""
    # TODO 2 Make the folder, write state to a file beside the one it will be, have it on the disk, then give it its
    # name, which has `taken` in it. Remove all but the last two (as texts, 10 comes before 9).
    # Look up: torch.save, os.fsync, pathlib.Path.replace


def latest(folder):
    """Return the last checkpoint in ``folder`` that can be read, None where there is none."""
    # TODO 3 Try the checkpoints from the last one back and return the first that can be read; say which cannot. Where
    # there are some and none can be read, raise UserError: to begin anew in silence would lose the run.
    # Look up: torch.load (map_location="cpu", weights_only=True), sorted
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
    # TODO 4 With --resume, rank 0 reads the latest checkpoint in folder, and all ranks get it as `saved`, None where
    # there is none. Refuse one that other than world_size ranks have left (UserError); take place from it, and load
    # model and optimizer.
    # Look up: torch.distributed.broadcast_object_list, load_state_dict

    record = None
    if rank == 0:
        sizes = {"world_size": world_size, "effective_batch": world_size * args.batch_size}
        record = runs.Record(run_dir, vars(args), **sizes, goes_on_from=saved and saved["record"])

    signals = []
    # TODO 6 Let SIGTERM and SIGINT do nothing but add their number to `signals`: what is in the middle of a step
    # cannot be saved. (On rank 0 the record has handlers of its own, which end at once; yours take their place.)
    # Look up: signal.signal

    last_save = time.monotonic()
    for epoch in range(place["epoch"], args.epochs + 1):
        sampler.set_epoch(epoch)
        parallel.train()
        sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, images
        batches = iter(loader)

        # TODO 5 In the first epoch after --resume (saved is not None), take as many batches as were done and drop them;
        # then set this rank's sums and random states to its own of then. Set saved to None, for the epochs that follow.
        # Look up: next, Tensor.copy_, restore_random_states in utils/checkpoints.py

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

            # TODO 7 Tell all ranks, in one message: whether, by rank 0's clock, --checkpoint-every seconds have passed
            # since last_save; whether a signal came to any rank; for each rank whether its loss is no number. `lost`
            # has a number for each rank, 0 where all is well. The line below is for --checkpoint-every 0 alone.
            # Look up: torch.distributed.all_reduce, Tensor.isfinite, Tensor.tolist
            is_due, is_stopped, lost = args.checkpoint_every == 0, False, []

            # TODO 8 Where `lost` says that a rank's loss is no number, raise UserError with the rank ("rank 1"), step
            # and epoch: on all ranks, before anything is saved. The step is spoilt, so that ends the run; who looks
            # before backward can leave a step out instead (section 4 of the notebook).
            # Look up: enumerate, UserError in utils/errors.py

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
# From solutions/12_when_things_break.py, unchanged while this number fits: b50914a9e635
