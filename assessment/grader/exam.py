"""The data that the assignment is graded with: what scripts train on, and hidden images that judge their weights.

For ``digits-rgb`` the hidden images are drawn, with a secret seed, from originals that are in neither split. For
a dataset that was published with a test split, that split is hidden, and a tenth of the training images takes its
place. A second version has its classes renamed by a secret permutation: a script that learns from what it is given
learns that; weights and accuracies brought along fit it no more.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from utils.data import Images, digits, load, prepare, store
from utils.errors import UserError

TEST_SHARE = 10  # one in so many training images takes the place of those that are hidden


@dataclass(frozen=True)
class Exam:
    """One version of the data: what a script finds prepared, and what its weights are scored on."""

    train: Images
    test: Images
    hidden: Images

    def keep(self, name, root):
        """Write the training and test images as the prepared dataset ``name``, and the hidden ones beside ``root``."""
        splits = {"train": (self.train.images, self.train.labels), "test": (self.test.images, self.test.labels)}
        store(name, root / "data", splits, self.train.classes)
        for split in ("test", "hidden"):
            images = getattr(self, split)
            torch.save({"images": images.images, "labels": images.labels}, root / f"{split}.pt")


def exams(name, data_dir, count, seed):
    """Return the exam on the dataset ``name`` and the one with its classes renamed; ``seed`` is secret.

    Raises ``UserError`` where nothing would be left to judge by.
    """
    prepare(name, data_dir)
    train, test = load(name, data_dir, "train"), load(name, data_dir, "test")
    if name.startswith("digits"):
        if count < 1:
            raise UserError(f"hidden_images is {count}: by how many images of {name} are weights to be judged?")
        hidden = Images(*digits.draw(name, "reserve", count, seed), train.classes)
    else:
        if len(train) < TEST_SHARE:
            raise UserError(
                f"{name} has {len(train)} images to train on, of which one in {TEST_SHARE} is for tests: add some"
            )
        order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))  # folders lie class by class
        held, kept = order.tensor_split([len(train) // TEST_SHARE])
        train, test, hidden = part(train, kept), part(train, held), test
    exam = Exam(train, test, hidden)
    return exam, _renamed(exam, seed)


def part(images, rows):
    """Return those of ``images`` that stand in ``rows``."""
    return Images(*images.__getitems__(rows), images.classes)


def _renamed(exam, seed):
    """Return ``exam`` with another number for every class."""
    generator = torch.Generator().manual_seed(seed)
    classes = len(exam.train.classes)
    order = torch.randperm(classes, generator=generator)
    names = torch.empty_like(order)
    names[order] = order.roll(1)  # one cycle through all classes: none keeps its number
    splits = {split: getattr(exam, split) for split in ("train", "test", "hidden")}
    return Exam(**{split: replace(images, labels=names[images.labels]) for split, images in splits.items()})


def given_name(task):
    """Return the dataset's name for a script: a folder of images is nowhere in its sandbox, only what was prepared."""
    return "cifar10" if task.dataset.startswith("folder:") else task.dataset


def keep_exams(task, data_dir, root, seed):
    """Write both versions under ``root`` as ``true`` and ``renamed``, and return their folders.

    Raises ``UserError`` where no step could be taken with what ``task`` asks for.
    """
    folders = Path(root) / "true", Path(root) / "renamed"
    made = exams(task.dataset, data_dir, task.hidden_images, seed)
    images = len(made[0].train)
    for key in ("batch_size", "taught_batch_size"):
        taken = task.processes * getattr(task, key)
        if taken > images:
            raise UserError(
                f"{task.dataset} has {images} images to train on, and {task.processes} processes with a {key} of"
                f" {getattr(task, key)} take {taken} in one step: choose a smaller one in config.json"
            )
    for exam, folder in zip(made, folders, strict=True):
        exam.keep(given_name(task), folder)
    return folders
