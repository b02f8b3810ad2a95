"""The assignment: make this script train on many processes, and reach the target accuracy with a large batch.

    torchrun --standalone --nproc-per-node 1 assessment/train.py --epochs 1

It works as it stands, on one process. assessment/README.md says what the script that you hand in must do,
and how it is graded. Change whatever you like; the flags below stay, and so does what report() keeps.
"""

import time

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

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
    flags.take("base-lr", help="learning rate; 0.05 suits 32 images a step")
    flags.take("augment", default="colour")
    return flags.parse_args(), task


@torch.inference_mode()
def evaluate(model, test, device):
    """Return loss and accuracy of ``model`` over all test images."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=device)  # loss, correct
    for images, labels in zip(test.images.split(500), test.labels.split(500), strict=True):
        images, labels = images.to(device), labels.to(device)
        logits = model(images)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        sums += torch.stack([loss.double(), (logits.argmax(dim=1) == labels).sum()])
    loss, correct = (sums / len(test)).tolist()
    return loss, correct


def main():
    args, task = parse_args()

    device, backend = devices.choose_device(args.device)
    prepare(args.dataset, args.data_dir)
    bfloat16 = devices.use_bfloat16(args.precision, device)
    train, test = load(args.dataset, args.data_dir, "train"), load(args.dataset, args.data_dir, "test")

    shuffling = torch.Generator().manual_seed(args.seed)
    loader = DataLoader(
        train, args.batch_size, shuffle=True, generator=shuffling, drop_last=True, collate_fn=whole_batch
    )
    if len(loader) == 0:
        raise UserError(f"--batch-size {args.batch_size} is more than a process has images: choose a smaller one")

    torch.manual_seed(args.seed)
    channels, classes = train.images.shape[1], len(train.classes)
    model = models.build(task.model, channels, classes, dropout=args.dropout).to(device)
    augmenting = torch.Generator(device).manual_seed(args.seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.base_lr)

    training_time, epochs_at_target = 0.0, 0
    for epoch in range(1, args.epochs + 1):
        model.train()
        sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, correct, images
        start = time.perf_counter()
        for images, labels in loader:
            images, labels = augment(images.to(device), args.augment, augmenting), labels.to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
                logits = model(images)
                loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct = (logits.argmax(dim=1) == labels).sum()
            sums += torch.stack([loss.detach().double() * len(labels), correct, correct.new_tensor(len(labels))])

        if device.type == "cuda":
            torch.cuda.synchronize()  # the GPU works behind the program's back
        epoch_time = time.perf_counter() - start
        loss_sum, correct, count = sums.tolist()
        training_time += epoch_time
        val_loss, val_accuracy = evaluate(model, test, device)
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
        report(args, model, **row)
        at_target = args.target_accuracy is not None and val_accuracy >= args.target_accuracy
        epochs_at_target = epochs_at_target + 1 if at_target else 0
        if epochs_at_target == args.patience:
            break
    finish()


if __name__ == "__main__":
    with one_line_errors():
        main()
# From solutions/assessment.py, unchanged while this number fits: 762e82134870
