"""Train one curve: what each process of ``train_curves`` does with the settings that it is handed.

python -m utils.train_curve        # a line of settings (JSON) in, a line for each epoch out
"""

import json
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

from utils import models
from utils.curves import Settings, has_diverged
from utils.data import load
from utils.devices import use_bfloat16
from utils.errors import UserError
from utils.parallel.virtual_ranks import convert_virtual_ranks


def train(settings):
    """Train one curve in this process and yield a point an epoch, then ``{"done": True, "diverged": …}``."""
    train_set = load(settings.dataset, settings.data_dir, "train").first(settings.train_images)
    train_set, test_set = (
        one.shrunk(settings.shrink) for one in (train_set, load(settings.dataset, settings.data_dir, "test"))
    )
    torch.manual_seed(settings.seed)
    channels, classes = train_set.images.shape[1], len(train_set.classes)
    model = models.build(settings.model, channels, classes, width=settings.width, dropout=settings.dropout)
    if settings.ranks > 1:
        model = convert_virtual_ranks(model, settings.ranks)
    optimizer = settings.build_optimizer(model.parameters())
    steps = len(train_set) // settings.batch_size
    if steps == 0:
        raise UserError(f"batch_size {settings.batch_size} is more than the {len(train_set)} training images")
    shuffling = torch.Generator().manual_seed(settings.seed)
    bfloat16 = use_bfloat16(settings.precision, "cpu")
    seconds, means = 0.0, []
    for epoch in range(1, settings.epochs + 1):
        model.train()
        start, losses = time.perf_counter(), []
        order = torch.randperm(len(train_set), generator=shuffling)
        for step, chosen in enumerate(order[: steps * settings.batch_size].split(settings.batch_size)):
            optimizer.param_groups[0]["lr"] = settings.rate_at((epoch - 1) * steps + step, steps)
            images, labels = train_set.__getitems__(chosen)
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                break
        seconds += time.perf_counter() - start
        means.append(sum(losses) / len(losses))
        if settings.precise_batchnorm:
            recompute_statistics(model, train_set.images[: settings.precise_batchnorm], bfloat16)
        accuracy, class_accuracy = _accuracy(model, test_set, bfloat16)
        yield {
            "epoch": epoch,
            "samples": ((epoch - 1) * steps + len(losses)) * settings.batch_size,
            "seconds": seconds,
            "train_loss": means[-1],
            "val_accuracy": accuracy,
            "class_accuracy": class_accuracy,
        }
        if not math.isfinite(means[-1]):
            break
    yield {"done": True, "diverged": has_diverged(means, classes)}


@torch.inference_mode()
def recompute_statistics(model, images, bfloat16):
    """Replace BatchNorm's running averages by the statistics of ``images`` under the weights as they are."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain mean over all batches
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        for few in images.split(256):
            model(few)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


@torch.inference_mode()
def _accuracy(model, test_set, bfloat16):
    """Return the accuracy over all test images, and a list of that of each class."""
    model.eval()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = torch.cat([model(images) for images in test_set.images.split(500)])
    correct = (logits.argmax(1) == test_set.labels).double()
    by_class = [correct[test_set.labels == number].mean().item() for number in range(len(test_set.classes))]
    return correct.mean().item(), by_class


def main():
    """Train a curve for each line of settings (JSON) that comes in; print its points, a line each."""
    for line in sys.stdin:
        for point in train(Settings(**json.loads(line))):
            print(json.dumps(point), flush=True)


if __name__ == "__main__":
    main()
