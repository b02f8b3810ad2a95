"""Start training scripts with torchrun from a notebook or a program; no process stays behind.

from utils.launch import launch

run = launch("solutions/03_ddp.py", "--dataset", "digits", processes=2, run_dir="runs/first")
"""

__all__ = ["Run", "RunError", "launch"]


def __getattr__(name):
    """Import the face's names when they are asked for: what starts a process in this room does without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from utils.launch import run

    return getattr(run, name)
