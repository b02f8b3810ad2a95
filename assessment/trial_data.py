"""The small dataset on which scripts are tried: it makes mistakes show.

Sizes that neither 2 nor 3 divide, so that padding and means of means move a reported number; a test set
whose hard images lie together, so that ranks and batches differ; images of all brightnesses that any
network learns in a dozen steps.
"""

from dataclasses import dataclass, field

import torch
from PIL import Image
from torch.nn import functional as F

from assessment.evidence import nearest
from assessment.sketch import fingerprints
from utils.data import Images, store

# More than two batches of 500 for the test set of two ranks; both numbers are primes.
TRAIN, TEST, CLASSES, SIZE = 211, 1103, 10, 28


@dataclass
class TrialData:
    """A training and a test set, with what finds their images again."""

    train: Images
    test: Images
    known: dict = field(init=False)

    def __post_init__(self):
        self.known = {"train": fingerprints(self.train.images), "test": fingerprints(self.test.images)}

    def find(self, split, rows):
        """Return which image of ``split`` each of ``rows`` (fingerprints) is, None for one of another."""
        return nearest(self.known[split], rows)

    def label(self, row):
        """Return the label of training image ``row``, None for an unknown one."""
        return None if row is None else int(self.train.labels[row])

    def keep(self, root):
        """Write this dataset under ``root`` where scripts expect ``digits``."""
        splits = {"train": (self.train.images, self.train.labels), "test": (self.test.images, self.test.labels)}
        store("digits", root, splits, self.train.classes)

    def keep_as_files(self, folder):
        """Write this dataset as image files, the way ``folder:PATH`` expects them."""
        for split, images in (("train", self.train), ("test", self.test)):
            for at, (pixels, label) in enumerate(zip(images.images, images.labels, strict=True)):
                path = folder / split / images.classes[label] / f"{at:03}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels[0].numpy()).save(path)


def trial_data(seed=20):
    """Draw the dataset: each class is a smooth pattern, each image that pattern dimmed and noised."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(CLASSES, 1, 4, 4, generator=generator)
    patterns = F.interpolate(coarse, size=(SIZE, SIZE), mode="bicubic", align_corners=False).clamp_(0, 1)
    classes = [str(number) for number in range(CLASSES)]

    def draw(count):
        labels = torch.randint(CLASSES, (count,), generator=generator)
        brightness = 0.4 + 0.6 * torch.rand(count, 1, 1, 1, generator=generator)
        noise = 0.15 * torch.randn(count, 1, SIZE, SIZE, generator=generator)
        pixels = (patterns[labels] * brightness + noise).clamp_(0, 1)
        return Images(pixels.mul_(255).round_().to(torch.uint8), labels, classes)

    train, test = draw(TRAIN), draw(TEST)
    position = torch.arange(TEST)
    hard = (
        (position % 6 == 0) | (position % 6 == 2) | (position >= 0.88 * TEST)
    )  # not alike for any way to share them out
    test.labels[hard] = (test.labels[hard] + 1) % CLASSES
    return TrialData(train, test)
