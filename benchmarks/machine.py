"""What machine a measurement was made on, in words."""

import platform
from pathlib import Path

import torch


def processor():
    """Return the name of this machine's processor, with the instructions for bfloat16 that it has."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(": ")[1] for line in lines if line.startswith("model name")]
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    has = {"amx_bf16": "AMX bfloat16", "avx512_bf16": "AVX-512 bfloat16"}
    told = next((f" with {name}" for flag, name in has.items() if flag in flags), "")
    return f"{names[0] if names else platform.machine()}{told}"


def device():
    """Return the name of the GPU where there is one, else that of the processor."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else processor()
