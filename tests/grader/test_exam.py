"""The data of the grader: hidden images are hidden, renamed classes are renamed, nothing is lost."""

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from assessment.grader.exam import exams, given_name, keep_exams
from utils.data import digits, load
from utils.errors import UserError


@pytest.fixture
def folder(tmp_path):
    """Return a dataset of 200 training and 40 test images of four classes, as files, class by class."""
    for split, count in (("train", 50), ("test", 10)):
        for name in range(4):
            place = tmp_path / "images" / split / f"class {name}"
            place.mkdir(parents=True)
            for at in range(count):
                colour = (name * 60, at * 4, 0 if split == "train" else 255)
                Image.new("RGB", (12, 12), colour).save(place / f"{at:02}.png")
    return f"folder:{tmp_path / 'images'}"


def rows(images):
    return [image.numpy().tobytes() for image in images.images]


def test_of_a_dataset_with_a_test_split_that_split_is_hidden(folder, tmp_path):
    exam, _ = exams(folder, tmp_path / "data", 0, seed=3)
    train, test = load(folder, tmp_path / "data", "train"), load(folder, tmp_path / "data", "test")
    assert sorted(rows(exam.hidden)) == sorted(rows(test))
    assert sorted(rows(exam.train) + rows(exam.test)) == sorted(rows(train))
    assert len(exam.test) == 20 and set(exam.test.labels.tolist()) == {0, 1, 2, 3}


def test_renamed_classes_keep_their_images_and_none_its_number(folder, tmp_path):
    exam, renamed = exams(folder, tmp_path / "data", 0, seed=3)
    names = {}
    for split in ("train", "test", "hidden"):
        one, other = getattr(exam, split), getattr(renamed, split)
        assert torch.equal(one.images, other.images)
        for old, new in zip(one.labels.tolist(), other.labels.tolist(), strict=True):
            assert names.setdefault(old, new) == new != old
    assert sorted(names.values()) == [0, 1, 2, 3]


def test_hidden_digits_come_from_originals_of_their_own(tmp_path):
    one, _ = exams("digits-rgb", tmp_path, 300, seed=5)
    same, _ = exams("digits-rgb", tmp_path, 300, seed=5)
    other, _ = exams("digits-rgb", tmp_path, 300, seed=6)
    assert rows(one.hidden) == rows(same.hidden) != rows(other.hidden)
    parts = [Counter(scan.numpy().tobytes() for scan in digits.originals(split)[0]) for split in digits.SPLITS]
    assert not parts[2] & (parts[0] + parts[1])
    assert not set(rows(one.hidden)) & {*rows(one.train), *rows(one.test)}


def test_what_a_script_finds_is_prepared_under_the_name_that_it_is_given(folder, tmp_path):
    task = SimpleNamespace(dataset=folder, hidden_images=0, processes=2, batch_size=90, taught_batch_size=1)
    true, renamed = keep_exams(task, tmp_path / "data", tmp_path, seed=3)
    for place in (true, renamed):
        assert len(load(given_name(task), place / "data", "train")) == 180
        assert len(torch.load(place / "hidden.pt", weights_only=True)["labels"]) == 40
        assert not list((place / "data").glob("*hidden*"))


def test_an_assignment_that_nobody_could_do_is_refused(folder, tmp_path):
    task = SimpleNamespace(dataset=folder, hidden_images=0, processes=2, batch_size=90, taught_batch_size=91)
    with pytest.raises(UserError, match="has 180 images to train on, and 2 processes with a taught_batch_size of 91"):
        keep_exams(task, tmp_path / "data", tmp_path / "room", seed=3)
    assert not (tmp_path / "room").exists()
    with pytest.raises(UserError, match="hidden_images is 0: by how many images"):
        exams("digits-rgb", tmp_path, 0, seed=3)
    for path in (tmp_path / "images/train").glob("*/*.png"):
        if path.stem not in ("00", "01"):
            path.unlink()
    with pytest.raises(UserError, match="has 8 images to train on, of which one in 10"):
        exams(folder, tmp_path / "data", 0, seed=3)
