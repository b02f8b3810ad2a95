"""Check that this machine has what the course needs, and say what to do where it does not."""

import importlib
import shutil
import sys
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
import torch
import torch.distributed as dist
from packaging.requirements import Requirement

from utils.devices import physical_cores, use_bfloat16

GIGABYTE = 1e9
NEEDED_MEMORY_GB = 3
NEEDED_DISK_GB = 1
PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"  # installed or not, the course lies beside it
MODULES = {"pillow": "PIL", "scikit-learn": "sklearn"}
PROGRAMS = {"py-spy"}  # packages without a module


@dataclass(frozen=True)
class Check:
    """One thing looked at: what it is, what was found, and, where that is not enough, what to do."""

    name: str
    found: str
    advice: str = ""

    def __str__(self):
        verdict = "OK" if not self.advice else f"-> {self.advice}"
        return f"{self.name:14} {self.found:42} {verdict}"


class Checks(list):
    """A list of ``Check`` that shows itself as one line each."""

    def __repr__(self):
        return "\n".join(map(str, self))


def check_environment(root="."):
    """Return ``Checks`` of Python, packages, device, backend, cores, memory and the disk under ``root``."""
    version = ".".join(map(str, sys.version_info[:3]))
    checks = Checks([Check("python", version, "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer")])
    for text in tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate():
            checks.append(_package(requirement))
    return Checks([*checks, *_compute(), *_room(Path(root))])


def _package(requirement):
    name, advice = requirement.name, "run make setup in the course's folder, then restart the kernel"
    try:
        version = metadata.version(name)
        if name not in PROGRAMS:
            importlib.import_module(MODULES.get(name, name))
        elif not shutil.which(name, path=Path(sys.executable).parent):
            return Check(name, "its program is missing", advice)
    except metadata.PackageNotFoundError:
        return Check(name, "missing", advice)
    except Exception as error:  # a broken package may raise anything
        return Check(name, f"cannot be imported: {str(error).splitlines()[0]}"[:42], advice)
    return Check(name, version, "" if version in requirement.specifier else f"needs {requirement.specifier}: {advice}")


def _compute():
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = "cuda" if gpus else "cpu"
    name = f"{gpus} x {torch.cuda.get_device_name(0)}" if gpus else "CPU (no GPU needed)"
    yield Check("device", name)
    backend = "nccl" if gpus and dist.is_nccl_available() else "gloo" if dist.is_gloo_available() else "none"
    yield Check("backend", backend, "" if backend != "none" else "install a PyTorch with torch.distributed")
    yield Check("precision", "bfloat16" if use_bfloat16("auto", device) else "float32")
    cores = physical_cores()
    yield Check("cores", str(cores), "" if cores > 1 else "the course works, but two processes share one core")


def _room(root):
    memory, disk = psutil.virtual_memory().available / GIGABYTE, shutil.disk_usage(root).free / GIGABYTE
    close = f"close programs until {NEEDED_MEMORY_GB} GB are free"
    yield Check("memory", f"{memory:.0f} GB free", "" if memory >= NEEDED_MEMORY_GB else close)
    free = f"free {NEEDED_DISK_GB} GB"
    yield Check("disk", f"{disk:.0f} GB free", "" if disk >= NEEDED_DISK_GB else free)
