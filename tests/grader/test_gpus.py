"""A class is graded on GPUs where the instructor says so, and nobody sees a device that he was not given."""

import json
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch
from conftest import need
from programs import run_program

from assessment.grader.gpus import gpu_devices
from assessment.grader.sandbox import BUBBLEWRAP, UNSHARE, Limits, Sandbox
from utils.errors import UserError

LOOKS = "import json, os, sys; print(json.dumps([os.path.exists(sys.argv[1]), sorted(os.listdir('/dev'))]))"


def test_the_files_of_the_driver_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps", "sda"):
        (tmp_path / name).touch()
    assert [Path(one).name for one in gpu_devices(2, tmp_path)] == ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"]
    with pytest.raises(UserError, match="runs 3 processes, each on a GPU of its own, and this machine shows 2"):
        gpu_devices(3, tmp_path)


def test_without_gpus_nobody_is_graded_on_them(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    (tmp_path / "class").mkdir()
    (tmp_path / "class/ada.py").write_text("print('hello')\n")
    done = run_program("assessment.grade", tmp_path / "class", "--out", tmp_path / "grades", "--gpus")
    assert done.returncode == 1 and "--gpus: the assignment runs" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("kind", [BUBBLEWRAP, UNSHARE])
def test_a_sandbox_shows_the_devices_that_it_is_given_and_no_others(kind):
    need(shutil.which({BUBBLEWRAP: "bwrap", UNSHARE: "unshare"}[kind]), f"{kind} is not installed")
    if os.getuid():
        pytest.skip("only root makes device files")
    folder = Path(tempfile.mkdtemp(prefix="lockstep-devices-"))
    device = folder / "nvidia0"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # it reads as zeros
        for devices, is_seen in (((), False), ((str(device),), True)):
            command = Sandbox(kind, None, Limits(), devices=devices).wrap(["python3", "-c", LOOKS, device])
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            found, others = json.loads(done.stdout)
            assert found is is_seen and not [name for name in others if name.startswith(("nvidia", "sd", "loop"))]
    finally:
        shutil.rmtree(folder)
