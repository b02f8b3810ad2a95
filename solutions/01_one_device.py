"""Train a network on one device, to a target accuracy.

    python solutions/01_one_device.py --dataset fashion-mnist --target-accuracy 0.85

The story of one run: arguments, device, images, network, then epochs of training and validation until
the validation accuracy has been at the target for --patience epochs in a row. The record of the run
goes to --run-dir.
"""

import time

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader
from tqdm import tqdm

from utils import devices, models, runs
from utils.arguments import Flags
from utils.data import load, prepare, whole_batch
from utils.data.augment import augment
from utils.errors import UserError, one_line_errors


def parse_args():
    flags = Flags(__doc__)
    flags.take("dataset", "data-dir", "run-dir", "train-images", "augment")
    flags.take("epochs", "batch-size", "base-lr", "momentum", "target-accuracy", "patience", "seed")
    flags.take("model", "width", "dropout", "precision", "device")
    return flags.parse_args(), flags.defaults()


@torch.inference_mode()
def evaluate(model, test, device):
    """Return loss and accuracy of ``model`` over all test images."""
    # step 3: exact validation
    # In evaluation mode BatchNorm uses its running statistics and dropout is off. Sums are divided once,
    # at the end, because the last batch is smaller than the others.
    model.eval()
    loss, correct = 0.0, 0
    for images, labels in zip(test.images.split(500), test.labels.split(500), strict=True):
        images, labels = images.to(device), labels.to(device)
        logits = model(images)
        loss += F.cross_entropy(logits, labels, reduction="sum").item()
        correct += (logits.argmax(dim=1) == labels).sum().item()
    return loss / len(test), correct / len(test)


def main():
    args, defaults = parse_args()

    device, _ = devices.choose_device(args.device)
    # step 1: precision
    # Half the bytes for each number, and on a processor with instructions for it also less time.
    bfloat16 = devices.use_bfloat16(args.precision, device)

    prepare(args.dataset, args.data_dir)
    train, test = load(args.dataset, args.data_dir, "train"), load(args.dataset, args.data_dir, "test")
    if args.train_images:
        train = train.first(args.train_images)

    shuffling = torch.Generator().manual_seed(args.seed)
    loader = DataLoader(
        train, args.batch_size, shuffle=True, generator=shuffling, drop_last=True, collate_fn=whole_batch
    )
    if len(loader) == 0:
        raise UserError(f"--batch-size {args.batch_size} is more than there are images: choose a smaller one")

    torch.manual_seed(args.seed)
    channels, classes = train.images.shape[1], len(train.classes)
    model = models.build(args.model, channels, classes, width=args.width, dropout=args.dropout).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.base_lr, momentum=args.momentum)
    augmenting = torch.Generator(device).manual_seed(args.seed)

    run_dir = args.run_dir or runs.run_folder(__file__, vars(args), defaults, world_size=1)
    record = runs.Record(run_dir, vars(args), world_size=1, effective_batch=args.batch_size)

    training_time, epochs_at_target = 0.0, 0
    for epoch in range(1, args.epochs + 1):
        model.train()
        sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, images
        # step 2: the clock
        start = time.perf_counter()

        for images, labels in tqdm(loader, f"epoch {epoch}", leave=False, disable=None):
            images, labels = augment(images.to(device), args.augment, augmenting), labels.to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                logits = model(images)
                loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct = (logits.argmax(dim=1) == labels).sum()
            sums += torch.stack([loss.detach().double() * len(labels), correct, correct.new_tensor(len(labels))])
        loss_sum, correct, count = sums.tolist()  # waits for the device
        # step 2: the clock
        epoch_time = time.perf_counter() - start

        training_time += epoch_time

        val_loss, val_accuracy = evaluate(model, test, device)

        # step 4: early stopping
        # One epoch at the target may be luck; --patience of them in a row are less so.
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
        if done:
            break

    runs.finish(record)


if __name__ == "__main__":
    with one_line_errors():
        main()
