"""One environment variable decides what ``auto`` precision means, in every process; each process has its own GPU."""

import pytest
import torch

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


@pytest.fixture
def two_tasks(monkeypatch):
    """Play the second of two processes of a machine, which sees one GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    for name in ("SLURM_PROCID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    backends = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = [one.fp32_precision for one in backends]
    yield monkeypatch
    for one, precision in zip(backends, before, strict=True):
        one.fp32_precision = precision


def test_a_task_of_slurm_takes_the_one_gpu_that_it_is_shown(two_tasks):
    two_tasks.setenv("SLURM_PROCID", "1")
    device, backend = devices.choose_device(local_rank=1, local_world_size=2)
    assert (device, backend) == (torch.device("cuda", 0), "nccl")


@pytest.mark.parametrize(
    "torchruns", [{}, {"SLURM_PROCID": "0", "TORCHELASTIC_RUN_ID": "x"}], ids=["alone", "in Slurm"]
)
def test_processes_that_see_the_same_gpu_are_refused(torchruns, two_tasks):
    for name, value in torchruns.items():
        two_tasks.setenv(name, value)
    with pytest.raises(UserError, match="2 processes on this machine need a GPU each, but it has 1"):
        devices.choose_device(local_rank=1, local_world_size=2)


def test_float32_is_float32_on_a_gpu(two_tasks):
    for backend in (torch.backends.cuda.matmul, torch.backends.cudnn.conv):
        backend.fp32_precision = "tf32"
    devices.choose_device("cuda")
    assert {torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision} == {"ieee"}
