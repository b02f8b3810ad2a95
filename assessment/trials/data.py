"""The small dataset on which scripts are tried: it makes mistakes show.

Sizes that neither 2 nor 3 divide, so that padding and means of means move a reported number, and whose larger share
among four ranks is whole batches of 9, so that ranks which keep the remainder take other numbers of steps; a test set
whose hard images lie together, so that ranks and batches differ; images of all brightnesses that any
network learns in a dozen steps. What is laid out as files for ranks on two machines is a part of it, which makes other
mistakes show: shares of the test set of whole batches and of one image more.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch.nn import functional as F

from assessment.recorder.sketch import fingerprints
from assessment.trials.evidence import nearest
from utils.data import Images, store
from utils.data.datasets import checksum

# More than two batches of 500 for the test set of two ranks. With three ranks two images more fill the shares of the
# test set up, with two ranks one, so that cutting them off at the end of all is not right.
TRAIN, TEST, CLASSES = 215, 1093, 10
# Of these four ranks get 48 images or 47, so in batches of 8 not all have as many; and 257 images or 256 to judge,
# which are other numbers of batches of 8, 16, 32, 64, 128 or 256.
COLD_TRAIN, COLD_TEST = 191, 1025
SHAPES = {"digits": (1, 28), "digits-rgb": (3, 32)}  # channels, and pixels a side


@dataclass
class TrialData:
    """A training and a test set, with what finds their images again."""

    name: str  # of the dataset that it stands for
    train: Images
    test: Images
    order: torch.Tensor | None = None  # of the test images, among those that lie prepared
    known: dict = field(init=False)

    def __post_init__(self):
        self.known = {"train": fingerprints(self.train.images), "test": fingerprints(self.test.images)}

    def find(self, split, rows):
        """Return which image of ``split`` each of ``rows`` (fingerprints) is, None for one of another."""
        return nearest(self.known[split], rows)

    @property
    def by_label(self):
        """Return what lies in a folder of files, in the order in which that holds it: class by class."""
        parts = (self.train.labels[:COLD_TRAIN], self.test.labels[:COLD_TEST])
        orders = [labels.argsort(stable=True) for labels in parts]
        train, test = (
            Images(one.images[order], one.labels[order], one.classes)
            for one, order in zip((self.train, self.test), orders, strict=True)
        )
        return TrialData(self.name, train, test, orders[1])

    def label(self, row):
        """Return the label of training image ``row``, None for an unknown one."""
        return None if row is None else int(self.train.labels[row])


class Stage:
    """A ``TrialData`` on disk under ``root``: ``prepared`` holds it under its name, ``images`` as files.

    ``outdated`` is what was prepared from files that lay in ``images`` before: as many, and others.
    """

    def __init__(self, data, root):
        self.data, self.root = data, Path(root)
        self.prepared, self.images, self.outdated = (self.root / one for one in ("data", "images", "outdated.pt"))

    def keep(self, with_files=True):
        """Write the data, and return this stage."""
        train, test = self.data.train, self.data.test
        splits = {"train": (train.images, train.labels), "test": (test.images, test.labels)}
        store(self.data.name, self.prepared, splits, train.classes)
        if with_files:
            self._keep_as_files("train", train, COLD_TRAIN)
            self._keep_as_files("test", test, COLD_TEST)
            self._keep_outdated()
        return self

    def _keep_as_files(self, split, images, count):
        """Write the first ``count`` of ``images`` the way ``folder:PATH`` expects them."""
        for at, (pixels, label) in enumerate(zip(images.images[:count], images.labels[:count], strict=True)):
            path = self.images / split / images.classes[label] / f"{at:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.permute(1, 2, 0).squeeze(-1).numpy()).save(path)

    def _keep_outdated(self):
        """Write what was prepared from upside-down images with the labels of their neighbours."""
        content = {"fingerprint": "of other files", "classes": self.data.train.classes}
        for split in ("train", "test"):
            old = getattr(self.data.by_label, split)
            images, labels = old.images.flip(2), old.labels.roll(1)
            content[split] = {"images": images, "labels": labels, "checksum": checksum(images, labels)}
        torch.save(content, self.outdated)


def trial_data(name="digits", seed=20):
    """Draw the dataset for ``name``: each class is a smooth pattern, each image that pattern dimmed and noised."""
    channels, size = SHAPES.get(name, SHAPES["digits-rgb"])
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(CLASSES, channels, 4, 4, generator=generator)
    patterns = F.interpolate(coarse, size=(size, size), mode="bicubic", align_corners=False).clamp_(0, 1)
    classes = [str(number) for number in range(CLASSES)]

    def draw(count):
        labels = torch.randint(CLASSES, (count,), generator=generator)
        brightness = 0.4 + 0.6 * torch.rand(count, 1, 1, 1, generator=generator)
        noise = 0.15 * torch.randn(count, channels, size, size, generator=generator)
        pixels = (patterns[labels] * brightness + noise).clamp_(0, 1)
        return Images(pixels.mul_(255).round_().to(torch.uint8), labels, classes)

    train, test = draw(TRAIN), draw(TEST)
    position = torch.arange(TEST)
    # Not alike for any way to share them out. Shares are filled up with the first images, or with nothing, and may lose
    # the last: the first are hard and the last are easy, so that either shows.
    hard = (position % 6 == 0) | (position % 6 == 2) | (position >= 0.88 * TEST) | (position < 4)
    hard &= position < TEST - 4
    test.labels[hard] = (test.labels[hard] + 1) % CLASSES
    return TrialData(name, train, test)
