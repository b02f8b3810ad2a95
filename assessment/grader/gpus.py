"""Which GPUs a class may be graded on, where the instructor allows it: the files by which NVIDIA's driver is reached.

A sandbox shows no device but those that it is given, so scripts train on the CPU unless ``--gpus`` says otherwise.
"""

import re
from pathlib import Path

import torch

from utils.errors import UserError

# Beside one file for each GPU (the driver's documentation, chapter on the files in /dev).
SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")


def gpu_devices(processes, folder=Path("/dev")):
    """Return the paths of all device files of GPUs.

    Raises ``UserError`` where there is no GPU of its own for each of ``processes``: a script that asks for one would
    fail, whoever wrote it.
    """
    numbered = sorted(str(path) for path in Path(folder).glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name))
    there = min(len(numbered), torch.cuda.device_count())
    if there < processes:
        raise UserError(
            f"--gpus: the assignment runs {processes} processes, each on a GPU of its own, and this machine shows"
            f" {there}: leave --gpus out, and scripts train on the CPU"
        )
    return (*numbered, *(str(Path(folder) / name) for name in SHARED if (Path(folder) / name).exists()))
