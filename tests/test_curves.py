"""Curves: in the order asked, the same for the same seed, with the rates that the settings mean."""

import math
import subprocess
import sys
import time

import pytest

from utils.curves import CurveError, Settings, train, train_curves
from utils.errors import UserError
from utils.processes import family

SHORT = {"epochs": 2, "train_images": 512, "model": "lenet", "precision": "float32"}


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


def test_a_diverged_run_is_marked(digits):
    (curve,) = train_curves([settings(digits, base_lr=1e6)], show=False)
    assert curve.diverged and curve.time_to(0.9) == math.inf


def test_rates_follow_the_scaling_rule_from_the_reference_batch():
    asked = {"batch_size": 512, "base_lr": 0.1, "reference_batch": 32}
    assert Settings(**asked).rate() == 0.1
    assert Settings(**asked, lr_scaling="sqrt").rate() == pytest.approx(0.4)
    assert Settings(**asked, lr_scaling="linear").rate() == pytest.approx(1.6)
    with pytest.raises(UserError, match="choose one of none, sqrt, linear"):
        train_curves([Settings(**asked, lr_scaling="cubic")])


def test_warm_up_begins_with_small_steps(digits):
    """At a rate that ruins the network at once, one whole run of warm-up keeps the loss finite."""
    hot = {"batch_size": 64, "base_lr": 40.0, "reference_batch": 1, "epochs": 1}
    (cold, warm) = train_curves([settings(digits, **hot), settings(digits, **hot, warmup_epochs=1000.0)], show=False)
    assert not cold.points[0]["train_loss"] < 3 and warm.points[0]["train_loss"] < 3


def test_a_failing_curve_raises_with_its_own_traceback_and_leaves_no_process(digits, tmp_path):
    with pytest.raises(CurveError, match=r"(?s)Traceback.*--train-images 13000 is out of range"):
        train_curves([settings(digits), settings(digits, train_images=13_000)], show=False)
    with pytest.raises(CurveError, match="not prepared"):
        train_curves([settings(tmp_path)], show=False)


def test_an_interrupt_ends_all_processes(digits):
    code = f"""
from utils.curves import *
train_curves([Settings(data_dir={str(digits)!r}, epochs=1000) for _ in range(4)], show=False)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    time.sleep(6)
    members = family(process.pid)
    assert len(members) >= 2
    process.send_signal(2)
    assert b"KeyboardInterrupt" in process.communicate(timeout=10)[1]
    assert not [member for member in members if member.is_running()]
