"""What a run leaves is read as facts: whatever lies in its folder, reading it never fails."""

import os
import re
import zipfile

import pytest
import torch

from assessment.recorder.sketch import distance, sketch
from assessment.trials.artifacts import MOST_BYTES, Artifacts, Weights
from assessment.trials.data import trial_data
from assessment.trials.saved import LARGEST
from utils import models

DATA = trial_data()


@pytest.fixture
def left(tmp_path):
    return Artifacts(tmp_path, DATA)


def test_a_folder_that_was_never_made_holds_nothing(tmp_path):
    left = Artifacts(tmp_path / "run", DATA)
    assert (left.texts, left.metrics, left.summary, left.weights, left.predictions) == ({}, [], {}, None, None)


def test_weights_are_names_and_sketches_and_judge_every_test_image(left, tmp_path):
    network = models.build("lenet", 1, 10, width=1.0, dropout=0.0)
    torch.save(network.state_dict() | {"steps": torch.tensor(7)}, tmp_path / "model.pt")
    assert isinstance(left.weights, Weights) and "steps" in left.weights.names
    assert left.weights.sketches.keys() == network.state_dict().keys()  # whole numbers are no weights
    assert left.predictions is None  # no network of the course has this tensor
    torch.save(network.state_dict(), tmp_path / "model.pt")
    assert Artifacts(tmp_path, DATA).predictions.shape == (len(DATA.test),)


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ([1, 2], "holds list, not the state_dict"),
        ({"model": {}}, r"holds \['model'\], not the state_dict"),
        ({"x" * 4_000_000: {}, "y" * 61: {}}, r"holds \['x{56}\.\.\., 'y{56}\.\.\.\], not the state_dict"),
        ({"w": torch.empty(0).expand(0)}, None),
        ({"w": torch.zeros(1).expand(LARGEST + 1)}, "more than 200,000,000 numbers"),
        (os.getcwd, "cannot be loaded with weights_only=True"),
    ],
)
def test_what_is_no_state_dict_is_said_in_words(left, tmp_path, held, told):
    torch.save(held, tmp_path / "model.pt")
    assert isinstance(left.weights, Weights) if told is None else re.search(told, left.weights)
    assert not isinstance(left.weights, str) or len(left.weights) < 300
    assert left.predictions is None


def test_weights_that_were_compressed_are_not_unpacked(left, tmp_path):
    with zipfile.ZipFile(tmp_path / "model.pt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", b"0" * 1000)
    assert left.weights == "model.pt is compressed; torch.save does not do that"


def test_of_texts_the_end_is_read_and_of_a_pipe_nothing(left, tmp_path):
    (tmp_path / "run.log").write_bytes(b"a" * MOST_BYTES + b"the end\xff")
    (tmp_path / "metrics.csv").write_text("epoch\n" + "1\n" * MOST_BYTES)
    os.mkfifo(tmp_path / "pipe.txt")
    assert left.texts.keys() == {"run.log", "metrics.csv"} and left.texts["run.log"].endswith("the end\ufffd")
    assert len(left.texts["run.log"]) == MOST_BYTES and left.metrics == []


def test_the_distance_of_sketches_is_that_of_tensors():
    torch.manual_seed(0)
    ours, theirs = ([torch.randn(40, 40) for _ in range(30)] for _ in range(2))
    theirs = [one + 0.1 * other for one, other in zip(ours, theirs, strict=True)]
    sketches = [{at: sketch(one) for at, one in enumerate(some)} for some in (ours, theirs)]
    assert distance(*sketches) == pytest.approx(0.1, rel=0.25) and distance(sketches[0], sketches[0]) == 0
