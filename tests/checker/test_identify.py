"""Images are known by where they were fetched, whatever was done to them; passes that teach nobody do not count."""

import pytest
import torch

from assessment.recorder.fetches import replace_getitem
from assessment.recorder.sketch import fingerprints
from assessment.trials.data import Stage, trial_data
from assessment.trials.evidence import Rank
from assessment.trials.identify import identify
from utils.data import load, prepare

DATA = trial_data()
STRANGE = torch.rand(400, 1, 28, 28, generator=torch.Generator().manual_seed(3))


def fetch(rows, **where):
    return {"event": "fetch", "rows": list(rows)} | (where or {"split": "train"})


def forward(number, images, parameters=(1, 2), layers_in_training=True, is_transformed=False):
    return {
        "event": "forward",
        "number": number,
        "rows": fingerprints(images).tolist(),
        "parameters": list(parameters),
        "layers_in_training": layers_in_training,
        "is_transformed": is_transformed,
    }


def backward(number):
    return {"event": "backward", "number": number}


STEP = {"event": "step", "parameters": [1, 2]}


def seen(*events):
    """Return the forward passes that are left, as (whether it teaches, rows, training images)."""
    rank = Rank(0, [*events])
    identify(rank, DATA)
    return [(one["teaches"], one["rows"], one.get("training_images")) for one in rank.named("forward")]


def train(*rows):
    return DATA.train.images[list(rows)]


@pytest.mark.parametrize("change", [lambda one: one, lambda one: one / 255, lambda one: one.float() / 127.5 - 1])
def test_an_image_is_known_by_its_pixels(change):
    assert seen(forward(1, change(train(4, 9))), backward(1), STEP) == [(True, [4, 9], None)]


def test_an_image_that_was_changed_is_known_by_where_it_was_fetched():
    events = [fetch([4, 9]), forward(1, train(4, 9).flip(3)), backward(1), STEP]
    assert seen(*events) == [(True, [4, 9], None)]


def test_what_was_looked_at_before_training_does_not_shift_what_is_trained_on():
    events = [fetch(range(200)), fetch([4, 9]), forward(1, train(4, 9).flip(2)), backward(1), STEP]
    assert seen(*events) == [(True, [4, 9], None)]


def test_images_fetched_one_by_one_make_a_batch():
    events = [fetch([7]), fetch([4]), fetch([9]), forward(1, train(4, 9).flip(3)), backward(1), STEP]
    assert seen(*events) == [(True, [4, 9], None)]


def test_a_batch_that_is_cut_into_passes_and_an_order_that_is_fetched_at_once_are_used_up_from_the_front():
    first, second = train(5, 6).flip(3), train(7, 8).flip(3)
    events = [fetch([5, 6, 7, 8]), forward(1, first), backward(1), forward(2, second), backward(2), STEP]
    assert seen(*events) == [(True, [5, 6], None), (True, [7, 8], None)]


def test_what_a_loader_deals_to_its_workers_ahead_is_used_in_that_order():
    ahead = [fetch([5, 6], of=len(DATA.train)), fetch([7, 8], of=len(DATA.train)), fetch([1], of=len(DATA.test))]
    events = [*ahead, forward(1, train(5, 6).flip(3)), backward(1), forward(2, train(7, 8).flip(3)), backward(2), STEP]
    assert [rows for _, rows, _ in seen(*events)] == [[5, 6], [7, 8]]


def test_images_of_nowhere_stay_unknown():
    assert seen(fetch([1, 2, 3]), forward(1, STRANGE[:4]), backward(1), STEP) == [(True, [None] * 4, None)]


def test_test_images_are_judged_and_those_of_training_counted_beside_them():
    test = DATA.test.images[[3, 5]]
    events = [forward(1, train(1)), backward(1), STEP, forward(2, test), forward(3, train(1, 2), (1, 2), False)]
    assert seen(*events)[1:] == [(False, [3, 5], 0), (False, [], 2)]


@pytest.mark.parametrize(
    "idle",
    [
        [forward(1, STRANGE[:4])],
        [forward(1, train(1, 2), parameters=(8, 9)), backward(1)],
        [forward(1, train(1, 2))],
    ],
    ids=["no image, before training", "a copy that is warmed up", "in training mode, and nobody uses it"],
)
def test_passes_that_show_nothing_are_taken_out(idle):
    assert seen(*idle, forward(2, train(4)), backward(2), STEP) == [(True, [4], None)]


def test_a_pass_within_a_transformation_teaches():
    assert seen(forward(1, train(4), parameters=(), is_transformed=True), STEP) == [(True, [4], None)]


def test_a_coloured_image_is_known_whatever_each_channel_is_scaled_by():
    data = trial_data("digits-rgb")
    images = data.train.images[:20].float() / 255
    mean, spread = torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1), torch.tensor([0.2, 0.3, 0.1]).view(3, 1, 1)
    assert data.find("train", fingerprints((images - mean) / spread).tolist()) == list(range(20))


def test_a_folder_of_images_holds_them_in_the_order_that_is_expected(tmp_path):
    stage = Stage(DATA, tmp_path).keep()
    prepare(f"folder:{stage.images}", tmp_path / "own")
    for split in ("train", "test"):
        found, wanted = load(f"folder:{stage.images}", tmp_path / "own", split), getattr(DATA.by_label, split)
        assert torch.equal(found.images, wanted.images) and torch.equal(found.labels, wanted.labels)


def test_a_watched_index_makes_no_sequence_of_a_single_number():
    class Plain(torch.Tensor):
        pass

    class Watched(torch.Tensor):
        pass

    take, seen = torch.Tensor.__getitem__, []
    for kind, put in ((Plain, setattr), (Watched, lambda kind, _name, function: replace_getitem(kind, function))):
        put(kind, "__getitem__", lambda tensor, index: seen.append(index) or take(tensor, index))
    loss, row = torch.tensor(1.5).as_subclass(Watched), torch.arange(3).as_subclass(Watched)
    assert torch.tensor([loss, 3]).tolist() == [1.5, 3] and row[1] == 1 and seen == [1] and len(list(row)) == 3
    with pytest.raises(TypeError, match="len"):  # what Python does by itself
        torch.tensor([torch.tensor(1.5).as_subclass(Plain), 3])
