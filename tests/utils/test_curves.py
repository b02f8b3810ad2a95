"""Curves: in the order asked, the same for the same seed, with the rates that the settings mean."""

import json
import math

import pytest
import torch
from conftest import until
from programs import Program, run_program

from utils import models
from utils.curves import CurveError, Settings, has_diverged, read_curve, train_curves
from utils.data import load
from utils.errors import UserError
from utils.launch.processes import family, kill
from utils.train_curve import recompute_statistics, train

SHORT = {"epochs": 2, "train_images": 512, "model": "lenet", "precision": "float32"}


HOT = {"batch_size": 64, "base_lr": 40.0, "reference_batch": 1, "epochs": 1}
CHANGES = {
    "plain": {},
    "too fast": {"base_lr": 1e6},
    "far too fast": {"base_lr": 1e20, "epochs": 5},
    "hot and cold": HOT,
    "hot and warm": HOT | {"warmup_epochs": 1000.0},
    "novograd": {"optimizer": "novograd", "base_lr": 0.02, "weight_decay": 1e-3, "epochs": 6},
}


@pytest.fixture(scope="module")
def trained(digits):
    """Train each of ``CHANGES``, all in one call: most of its time is the start of its processes."""
    asked = [settings(digits, **changes) for changes in CHANGES.values()]
    return dict(zip(CHANGES, train_curves(asked, show=False), strict=True))


def settings(digits, **changes):
    return Settings(data_dir=str(digits), **SHORT | changes)


def measured(curve):
    """Return all of a curve's points but the times."""
    return [{name: value for name, value in point.items() if name != "seconds"} for point in curve.points]


def test_many_curves_come_back_in_order_and_equal_those_trained_alone(digits):
    """Five curves on the cores there are: each is what it would be if it were trained here alone."""
    asked = [
        settings(digits, batch_size=batch, seed=seed) for batch, seed in [(32, 0), (64, 0), (32, 1), (128, 0), (32, 0)]
    ]
    curves = train_curves(asked, show=False)
    assert [curve.settings for curve in curves] == asked
    assert [[point["epoch"] for point in curve.points] for curve in curves] == [[1, 2]] * 5
    assert measured(curves[0]) == measured(curves[4]) != measured(curves[2])
    assert curves[3].points[-1]["samples"] == 2 * 512 and curves[3].points[-1]["seconds"] > 0
    *alone, last = train(asked[1])
    assert last == {"done": True, "diverged": False}
    for point, other in zip(alone, curves[1].points, strict=True):
        assert point["train_loss"] == pytest.approx(other["train_loss"], rel=1e-3)


def test_a_diverged_run_is_marked(trained):
    curve = trained["too fast"]
    assert curve.diverged and curve.time_to(0.9) == math.inf


def test_rates_follow_the_scaling_rule_from_the_reference_batch():
    asked = {"batch_size": 512, "base_lr": 0.1, "reference_batch": 32}
    assert Settings(**asked).rate() == 0.1
    assert Settings(**asked, lr_scaling="sqrt").rate() == pytest.approx(0.4)
    assert Settings(**asked, lr_scaling="linear").rate() == pytest.approx(1.6)
    with pytest.raises(UserError, match="choose one of none, sqrt, linear"):
        train_curves([Settings(**asked, lr_scaling="cubic")])


def test_warm_up_begins_with_small_steps(trained):
    """At a rate that ruins the network at once, one whole run of warm-up keeps the loss finite."""
    cold, warm = trained["hot and cold"], trained["hot and warm"]
    assert not cold.points[0]["train_loss"] < 3 and warm.points[0]["train_loss"] < 3


def test_a_failing_curve_raises_with_its_own_traceback_and_leaves_no_process(digits, tmp_path):
    with pytest.raises(CurveError, match=r"(?s)Traceback.*--train-images 13000 is out of range"):
        train_curves([settings(digits), settings(digits, train_images=13_000)], show=False)
    with pytest.raises(UserError, match="not prepared"):
        list(train(settings(tmp_path)))


def test_an_interrupt_ends_all_processes(digits):
    code = f"""
from utils.curves import *
train_curves([Settings(data_dir={str(digits)!r}, epochs=1000) for _ in range(4)], show=False)
"""
    process = Program("-c", code)
    try:
        until(lambda: len(family(process.pid)) >= 2, 60, "the processes that train")
        members = family(process.pid)
        until(lambda: all(sum(one.cpu_times()[:2]) > 0.5 for one in members if one.pid != process.pid), 60, "work")
        process.send_signal(2)
        assert "KeyboardInterrupt" in process.wait().stderr
        assert not [member for member in members if member.is_running()]
    finally:
        kill(family(process.pid))


def test_the_rate_climbs_then_decays():
    """Batch 512 of reference 32, linear: from 0.1 to 1.6 in the first ten of twenty steps an epoch."""
    one = Settings(batch_size=512, base_lr=0.1, lr_scaling="linear", warmup_epochs=0.5)
    rates = [one.rate_at(step, 20) for step in range(40)]
    assert rates[0] == pytest.approx(0.1) and rates[5] == pytest.approx(0.85) and rates[10:] == [1.6] * 30
    both = Settings(batch_size=512, base_lr=0.1, lr_scaling="linear", warmup_epochs=0.5, lr_decay=0.1)
    for step, rate in enumerate(rates):
        assert both.rate_at(step, 20) == pytest.approx(rate / (1 + 0.1 * step))
    assert Settings(batch_size=16, base_lr=0.1, warmup_epochs=1).rate_at(0, 20) == 0.1  # smaller than the reference


def test_novograd_trains(trained):
    points = trained["novograd"].points
    assert points[-1]["train_loss"] < min(points[0]["train_loss"], math.log(10)) - 0.1


def test_bad_settings_are_named_before_a_process_starts(digits):
    for changes, told in (
        ({"optimizer": "adamax"}, "choose sgd or novograd"),
        ({"optimizer": "novograd", "base_lr": -1.0}, "lr is -1.0"),
        ({"warmup_epochs": -1}, "warmup_epochs is -1; choose 0 or more"),
        ({"epochs": 0}, "epochs is 0; choose 1 or more"),
        ({"shrink": 0}, "shrink is 0; choose 1 or more"),
        ({"precision": "bf16"}, "precision 'bf16' is unknown"),
        ({"dataset": digits}, "settings are plain numbers and texts: .*PosixPath"),
    ):
        with pytest.raises(UserError, match=told):
            train_curves([settings(digits, **changes)])
    with pytest.raises(UserError, match="batch_size 600 is more than the 512 training images"):
        list(train(settings(digits, batch_size=600)))


def test_a_loss_that_is_not_finite_ends_the_curve(trained):
    curve = trained["far too fast"]
    assert curve.diverged and len(curve.points) < 5
    assert curve.points[-1]["samples"] < len(curve.points) * 512


def test_statistics_are_recomputed_and_training_does_not_notice(digits):
    network, images = models.build("wide-resnet-tiny", 1, 10), load("digits", digits, "train").shrunk(2).images[:512]
    network.train()
    recompute_statistics(network, images, bfloat16=False)
    network.eval()
    normalised = network[:3](images)  # pixels, first convolution, its BatchNorm
    assert normalised.mean((0, 2, 3)).abs().max() < 1e-3 and (normalised.var((0, 2, 3)) - 1).abs().max() < 0.02
    asked = {"model": "wide-resnet-tiny", "train_images": 256, "base_lr": 0.2}
    plain, precise = train_curves(
        [settings(digits, **asked, precise_batchnorm=count) for count in (0, 200)], show=False
    )
    losses = [[point["train_loss"] for point in curve.points] for curve in (plain, precise)]
    assert losses[0] == losses[1] and plain.accuracy != precise.accuracy


def test_the_classes_accuracies_make_up_that_of_all(trained, digits):
    curve = trained["plain"]
    counts = load("digits", digits, "test").labels.bincount()
    for point in curve.points:
        together = (torch.tensor(point["class_accuracy"]) * counts).sum() / counts.sum()
        assert together.item() == pytest.approx(point["val_accuracy"], abs=1e-6)


RECORD = """
import json, sys, torch
from utils.runs import COLUMNS, Record, finish
record = Record(sys.argv[1], {"batch_size": 64, "seed": 0}, world_size=2, effective_batch=128)
for number, loss in enumerate(json.loads(sys.argv[2]), start=1):
    times = {"time_s": 2.0 * number, "epoch_time_s": 2.0, "images_per_s": 320.0}
    row = dict.fromkeys(COLUMNS[1:], 0.0) | times | {"train_loss": loss, "val_accuracy": 0.1 * number}
    record.epoch(torch.nn.Linear(1, 1), **row)
finish(record)
"""


def record(folder, losses):
    """Write a run's record in a process of its own, whose signals and end are the record's."""
    assert run_program("-c", RECORD, folder, json.dumps(losses)).returncode == 0


def test_a_record_is_read_as_a_curve(tmp_path):
    record(tmp_path / "good", [2.0, 1.0, 0.5])
    curve = read_curve(tmp_path / "good")
    assert [point["samples"] for point in curve.points] == [640, 1280, 1920]
    assert [point["seconds"] for point in curve.points] == [2.0, 4.0, 6.0] and not curve.diverged
    assert curve.settings["batch_size"] == 64 and curve.accuracy == pytest.approx(0.3)
    assert curve.time_to(0.2) == 4.0 and curve.time_to(0.2, "epoch") == 2 and curve.time_to(0.9, "samples") == math.inf
    for name, losses in (("blown up", [229.3, 2.35, 2.31]), ("nan", [2.0, math.nan])):
        record(tmp_path / name, losses)
        assert read_curve(tmp_path / name).diverged, name
    (tmp_path / "nan/config.json").unlink()
    for name in ("nothing", "nan"):
        with pytest.raises(UserError, match="holds no finished epoch"):
            read_curve(tmp_path / name)


def test_a_run_that_came_back_has_not_diverged():
    guessing = math.log(10)
    assert has_diverged([2.6, 2.31, 2.305]) and has_diverged([1.0, math.inf]) and has_diverged([9.0])
    assert not has_diverged([2.31, 2.305, 2.303]), "stuck where it began"
    assert not has_diverged([7.7, 2.0, 0.9]) and not has_diverged([0.5, 0.45, 0.503])
    assert has_diverged([1.2, 0.9], classes=2) and not has_diverged([guessing, 0.9])
