"""Folders of images as datasets: what fits together is prepared, what does not is named file by file."""

import multiprocessing
import os
import shutil
import tarfile
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path, PurePath

import pytest
import torch
from PIL import Image

from utils.data import load, prepare
from utils.data.folders import LEAST, MOST
from utils.errors import UserError
from utils.models import MODELS, build


def picture_folder(root, splits=("train", "test"), classes=("cat", "dog"), size=(12, 12), mode="RGB"):
    """Make a small dataset of JPEG files in class folders, each file of another shade."""
    shade = 0
    for split in splits:
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for number in range(3):
                shade += 10
                colour = shade if mode == "L" else (shade, 255 - shade, 128)
                Image.new(mode, size, colour).save(root / split / name / f"{number}.jpg", quality=95)
    return root


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1)])
def test_a_folder_of_images_is_a_dataset(mode, channels, tmp_path):
    name = f"folder:{picture_folder(tmp_path / 'pictures', mode=mode)}"
    prepare(name, tmp_path / "data")
    train, test = load(name, tmp_path / "data", "train"), load(name, tmp_path / "data", "test")
    assert train.images.shape == test.images.shape == (6, channels, 12, 12)
    assert train.classes == ["cat", "dog"] and train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert abs(int(train.images[4, 0].float().mean()) - 50) <= 3  # the fifth picture that was made


def test_a_folder_that_changed_is_prepared_anew(tmp_path):
    pictures = picture_folder(tmp_path / "pictures")
    name = f"folder:{pictures}"
    prepare(name, tmp_path / "data")
    (pictures / "train/cat/0.jpg").unlink()
    prepare(name, tmp_path / "data")
    assert len(load(name, tmp_path / "data")) == 5


def spoil_jpeg(root):
    path = root / "train/dog/1.jpg"
    path.write_bytes(path.read_bytes()[:300])
    return path, "cannot be decoded"


def grey_among_colour(root):
    path = root / "test/cat/2.jpg"
    Image.new("L", (12, 12), 7).save(path)
    return path, "12x12 greyscale where .* is 12x12 colour"


def another_size(root):
    path = root / "test/cat/2.jpg"
    Image.new("RGB", (13, 12)).save(path)
    return path, "13x12 colour where .* is 12x12 colour"


def class_without_counterpart(root):
    path = root / "test/bird"
    path.mkdir()
    Image.new("RGB", (12, 12)).save(path / "0.jpg")
    return path, "has no counterpart in .*train"


def empty_class(root):
    for split in ("train", "test"):
        (root / split / "bird").mkdir()
    return root / "train/bird", "is empty"


def no_image(root):
    path = root / "train/cat/notes.txt"
    path.write_text("hello")
    return path, "is not an image"


def picture(name, mode, size, complaint):
    """Return a fault that is called ``name``: a picture among the others that is of another kind."""

    def fault(root):
        path = root / "train/cat/0.png"
        Image.new(mode, size).save(path)
        return path, complaint

    fault.__name__ = name
    return fault


def dangling_link(root):
    path = root / "train/cat/9.png"
    path.symlink_to(root / "nowhere.png")
    return path, "is a link that leads nowhere"


def pipe(root):
    path = root / "train/cat/9.png"
    os.mkfifo(path)
    return path, "is no file with an image"


FAULTS = [
    picture("transparent", "RGBA", (12, 12), "pixel format RGBA"),
    picture("far too large", "L", (30_000, 30_000), f"sides of {LEAST} to {MOST}"),
    picture("too wide", "RGB", (MOST + 1, 12), f"is {MOST + 1}x12: sides of {LEAST} to {MOST}"),
    picture("a pixel", "RGB", (1, 1), f"is 1x1: sides of {LEAST} to {MOST}"),
    dangling_link,
    pipe,
    spoil_jpeg,
    grey_among_colour,
    another_size,
    class_without_counterpart,
    empty_class,
    no_image,
]


@pytest.mark.parametrize("name", MODELS)
def test_every_network_takes_the_smallest_pictures(name):
    assert build(name, 3, 10).eval()(torch.zeros(2, 3, LEAST, LEAST, dtype=torch.uint8)).shape == (2, 10)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_a_folder_is_named_and_nothing_is_written(fault, tmp_path):
    path, complaint = fault(picture_folder(tmp_path / "pictures"))
    with pytest.raises(UserError, match=complaint) as caught:
        prepare(f"folder:{tmp_path / 'pictures'}", tmp_path / "data")
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert not list((tmp_path / "data").glob("[!.]*.pt")) and not list((tmp_path / "data").glob("*.part"))


def of_each_class(archive, count):
    """Yield ``count`` pictures of each class and split that the archive holds."""
    taken = Counter()
    for member in archive:
        place = PurePath(member.name).parent
        if member.isfile() and taken[place] < count:
            taken[place] += 1
            yield member


@pytest.mark.parametrize(
    ("train_images", "test_images"), [(30, 10), pytest.param(5_000, 1_000, marks=pytest.mark.slow)]
)
def test_real_cifar10_as_a_folder_of_jpegs(train_images, test_images, real_data, tmp_path):
    with tarfile.open(real_data / "cifar10-jpeg.tar") as archive:
        archive.extractall(tmp_path / "cifar10", of_each_class(archive, train_images), filter="data")
    for place in (tmp_path / "cifar10/test").iterdir():
        for surplus in sorted(place.iterdir())[test_images:]:
            surplus.unlink()
    name = f"folder:{tmp_path / 'cifar10'}"
    prepare(name, tmp_path / "data")
    train, test = load(name, tmp_path / "data", "train"), load(name, tmp_path / "data", "test")
    assert train.images.shape == (10 * train_images, 3, 32, 32)
    assert torch.bincount(train.labels).tolist() == [train_images] * 10 and "airplane" in train.classes
    assert torch.bincount(test.labels).tolist() == [test_images] * 10


@pytest.fixture
def open_folder():
    """Return a temporary folder that everybody can reach, and nobody else's umask closes."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-"))
    folder.chmod(0o777)
    yield folder
    for path in folder.rglob("*"):
        path.chmod(0o755)
    shutil.rmtree(folder)


def problem(name, root):
    try:
        return prepare(name, root)
    except UserError as told:
        return str(told)


def test_a_folder_that_may_not_be_read_is_named(open_folder):
    closed = open_folder / "images/train/a"
    closed.mkdir(parents=True)
    for name in ("train/b", "test/a", "test/b"):
        (open_folder / "images" / name).mkdir(parents=True)
    closed.chmod(0)
    # The system lets root read everything, so somebody else tries.
    leave = {"initializer": os.setuid, "initargs": (65534,)} if os.getuid() == 0 else {}
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), **leave) as somebody:
        told = somebody.submit(problem, f"folder:{open_folder / 'images'}", open_folder / "data").result(30)
    assert told == f"{closed} cannot be read (Permission denied): let yourself read it, or remove it"
