"""One environment variable decides what ``auto`` precision means, in every process of the course."""

import pytest

from utils import devices
from utils.curves import Settings, train_curves
from utils.errors import UserError
from utils.notebook.environment import check_environment


@pytest.mark.parametrize(("asked", "wide"), [("float32", False), ("bfloat16", True)])
def test_the_environment_decides_what_auto_means(asked, wide, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_PRECISION", asked)
    assert devices.use_bfloat16("auto", "cpu") is wide
    told = {check.name: check.found for check in check_environment()}
    assert told["precision"] == asked
    for chosen in ("float32", "bfloat16"):  # what is asked for by name stays
        assert devices.use_bfloat16(chosen, "cpu") is (chosen == "bfloat16")


@pytest.mark.parametrize("unset", ["", "auto"])
def test_without_it_the_processor_decides(unset, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_PRECISION", unset)
    assert devices.use_bfloat16("auto", "cpu") is devices.has_fast_bfloat16("cpu")


def test_an_unknown_precision_is_one_line(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_PRECISION", "half")
    with pytest.raises(UserError, match="LOCKSTEP_PRECISION=half is unknown: choose one of auto, float32, bfloat16"):
        devices.use_bfloat16("auto", "cpu")


def test_processes_compute_as_the_environment_says(digits, monkeypatch):
    losses = {}
    for asked, environment in (("auto", "float32"), ("float32", "bfloat16"), ("auto", "bfloat16")):
        monkeypatch.setenv("LOCKSTEP_PRECISION", environment)
        settings = Settings(data_dir=str(digits), epochs=1, train_images=256, precision=asked)
        (curve,) = train_curves([settings], show=False)
        losses[asked, environment] = curve.points[0]["train_loss"]
    assert losses["auto", "float32"] == losses["float32", "bfloat16"] != losses["auto", "bfloat16"]
