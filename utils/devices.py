"""What hardware this machine has, which of it a process uses, and which backend that means."""

import os

import psutil
import torch

from utils.errors import UserError

DEVICES = ("auto", "cpu", "cuda")
PRECISIONS = ("auto", "float32", "bfloat16")


def choose_device(device="auto", backend=None, *, local_rank=0, local_world_size=1):
    """Return this process's ``torch.device`` and the communication backend that fits it.

    ``auto`` is a GPU of its own for every process of this machine (the one numbered by the local
    rank, or the only one that Slurm shows to this task) with NCCL, or the CPU with gloo where there is
    no GPU. Raises ``UserError`` where there are fewer GPUs than processes: sharing one is never what was
    meant, so the user decides. On a GPU float32 means float32: TensorFloat-32 is switched off.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        device = "cuda" if gpus else "cpu"
    if device == "cuda" and gpus == 1 and sees_its_own_gpu():
        local_rank, local_world_size = 0, 1
    if device == "cuda" and gpus < local_world_size:
        raise UserError(
            f"{local_world_size} processes on this machine need a GPU each, but it has {gpus}:"
            " start fewer processes, or choose --device cpu"
        )
    if device == "cuda":
        without_tf32()
        return torch.device("cuda", local_rank), backend or "nccl"
    if backend == "nccl":
        raise UserError("--backend nccl needs a GPU for every process; on the CPU choose --backend gloo")
    return torch.device("cpu"), backend or "gloo"


def sees_its_own_gpu():
    """Say whether Slurm has started this process itself, as a task: ``srun --gpus-per-task=1`` shows each its own GPU.

    What torchrun starts sees all that torchrun sees. Were the GPU shared after all, NCCL would refuse it.
    """
    return "SLURM_PROCID" in os.environ and "TORCHELASTIC_RUN_ID" not in os.environ


def without_tf32():
    """Let GPUs compute float32 in float32.

    Since Ampere they otherwise round what convolutions multiply to 10 bits (TensorFloat-32): N processes would equal
    one to 1e-3 instead of 1e-6 (PyTorch documentation, Numerical accuracy).
    """
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    torch.backends.cudnn.conv.fp32_precision = "ieee"


def device_for(processes):
    """Return ``cuda`` where each of ``processes`` on this machine can have a GPU of its own, else ``cpu``."""
    return "cuda" if torch.cuda.is_available() and torch.cuda.device_count() >= processes else "cpu"


def has_fast_bfloat16(device):
    """Say whether ``device`` computes in bfloat16 by its own instructions, faster than in float32.

    Without them bfloat16 is emulated and slower: Intel has them since Cooper Lake (AVX-512 BF16, AMX),
    NVIDIA since Ampere (compute capability 8.0).
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def use_bfloat16(precision, device):
    """Say whether to compute in bfloat16: as ``precision`` asks, or for ``auto`` where it pays.

    The environment variable ``LOCKSTEP_PRECISION`` (auto, float32 or bfloat16) decides what ``auto`` means, so that
    any processor can play one without instructions for bfloat16. Raises ``UserError`` where it is something else.
    """
    if precision == "auto":
        precision = os.environ.get("LOCKSTEP_PRECISION") or "auto"
        if precision not in PRECISIONS:
            raise UserError(f"LOCKSTEP_PRECISION={precision} is unknown: choose one of {', '.join(PRECISIONS)}")
    return has_fast_bfloat16(device) if precision == "auto" else precision == "bfloat16"


def physical_cores():
    """Count the physical cores that this process may use (at least 1)."""
    allowed = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count()
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
