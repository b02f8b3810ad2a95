"""The embedded datasets: real handwritten digits, made hard enough to show what large batches do.

The originals are the 1,797 digits of 8x8 pixels that scikit-learn carries (test part of the Optical
Recognition of Handwritten Digits set, Alpaydin and Kaynak 1998). They are split first, so that no
writer's stroke is in two splits; then each split is drawn from as often as wanted, every picture
turned, sheared, scaled, shifted, dimmed and noised in its own way.

``digits`` is 28x28x1. ``digits-rgb`` is 32x32x3: the same digits blended into scikit-learn's two
sample photos by absolute difference, as MNIST-M does (Ganin et al. 2016). Each split has its own
part of the photos.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F

from utils.data.augment import uniform, warp

CLASSES = [str(digit) for digit in range(10)]
SPLITS = ("train", "test", "reserve")
COUNTS = {"train": 12_000, "test": 1_999}  # 1,999 is a prime: it divides by no number of processes
SEEDS = {"train": 1, "test": 2}
RECIPE = 1  # a higher number makes every prepared copy be drawn again

ORIGINALS = {"train": slice(0, 1100), "test": slice(1100, 1450), "reserve": slice(1450, 1797)}
PHOTO_COLUMNS = {"train": (0, 380), "test": (380, 510), "reserve": (510, 640)}
GLYPH = 20  # pixels that a digit takes before it is scaled


@dataclass(frozen=True)
class Digits:
    """An embedded dataset: ``digits`` or ``digits-rgb``."""

    name: str

    @property
    def file(self):
        return f"{self.name}.pt"

    @property
    def fingerprint(self):
        return f"{self.name} recipe {RECIPE}"

    def read(self, _root):
        """Return splits (name to uint8 [N, C, H, W] and int64 [N]) and class names."""
        return {split: draw(self.name, split, count, SEEDS[split]) for split, count in COUNTS.items()}, CLASSES


@cache
def originals(split):
    """Return the scanned digits of ``split``: float32 [N, 1, 8, 8] from 0 to 1, and labels int64 [N]."""
    from sklearn.datasets import load_digits  # takes two seconds to import, which only preparing needs

    scans = load_digits()
    order = torch.randperm(len(scans.target), generator=torch.Generator().manual_seed(0))[ORIGINALS[split]]
    images = torch.from_numpy(scans.images).float().unsqueeze(1) / 16
    return images[order], torch.from_numpy(scans.target).long()[order]


def draw(name, split, count, seed):
    """Draw ``count`` pictures of ``name`` from the originals of ``split``.

    Returns images uint8 [count, C, H, W] and labels int64 [count]. ``split`` is one of ``SPLITS``;
    ``reserve`` never appears in a prepared dataset, so it can judge weights that have seen one.
    """
    generator = torch.Generator().manual_seed(seed)
    strokes, labels = _strokes(split, count, generator, size=28 if name == "digits" else 32)
    if name == "digits":
        images = strokes + 0.25 * torch.randn(strokes.shape, generator=generator)
    else:
        images = (_patches(split, count, generator) - strokes).abs()
    return images.clamp_(0, 1).mul_(255).round_().to(torch.uint8), labels


def _strokes(split, count, generator, size):
    """Draw digits as light strokes on black: float32 [count, 1, size, size], and their labels."""
    scans, labels = originals(split)
    chosen = torch.randint(len(labels), (count,), generator=generator)
    glyphs = F.interpolate(scans[chosen], size=(GLYPH, GLYPH), mode="bicubic", align_corners=False)
    margin = (size - GLYPH) // 2
    turned = warp(
        F.pad(glyphs.clamp_(0, 1), (margin,) * 4),
        angle=uniform(-25, 25, count, generator),
        shear=uniform(-15, 15, count, generator),
        scale=uniform(0.7, 1.1, count, generator),
        shift=uniform(-0.06, 0.06, 2 * count, generator).view(count, 2),
    )
    return turned * uniform(0.5, 1.0, count, generator).view(-1, 1, 1, 1), labels[chosen]


def _patches(split, count, generator, size=32):
    """Cut ``count`` squares out of the sample photos: float32 [count, 3, size, size] from 0 to 1."""
    from sklearn.datasets import load_sample_images

    photos = torch.from_numpy(np.stack(load_sample_images().images)).permute(0, 3, 1, 2)
    low, high = PHOTO_COLUMNS[split]
    which = torch.randint(len(photos), (count, 1, 1), generator=generator)
    top = torch.randint(photos.shape[2] - size, (count, 1, 1), generator=generator)
    left = torch.randint(low, high - size, (count, 1, 1), generator=generator)
    offsets = torch.arange(size)
    patches = photos[which, :, top + offsets.view(1, -1, 1), left + offsets.view(1, 1, -1)]
    return patches.permute(0, 3, 1, 2).float() / 255
