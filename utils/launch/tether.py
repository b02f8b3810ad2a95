"""Run a command that ends when its parent ends, even if the parent is killed with signal 9.

    python tether.py LOG COMMAND [ARGUMENT ...]

The process ties itself to its parent, sends its output to the file LOG (``{rank}`` stands for its rank,
``-`` leaves the output where it is) and becomes COMMAND. It stands before torchrun and before each
worker, so the training script stays as it is. The parent's number comes in ``LOCKSTEP_PARENT``.

The tie is Linux's parent-death signal (prctl(2), PR_SET_PDEATHSIG), which survives exec. It fires when
the *thread* that started this process ends. Other systems lack it; there only a run's own end, its
``stop()`` and Ctrl-C end the workers.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
KEYCTL, JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1  # the number of keyctl(2) on Linux


def tie_to_parent():
    """Ask for SIGKILL when the parent dies, and leave at once if it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(os.environ["LOCKSTEP_PARENT"]):
        os._exit(1)
    os.environ["LOCKSTEP_PARENT"] = str(os.getpid())  # for the workers, when this becomes torchrun


def leave_keyring():
    """Leave the kernel's keyring of this session (keyrings(7)) for an empty one: keys cross borders of sandboxes."""
    if sys.platform == "linux" and os.uname().machine in KEYCTL:
        ctypes.CDLL(None, use_errno=True).syscall(KEYCTL[os.uname().machine], JOIN_SESSION_KEYRING, None)


def send_output_to(log):
    """Let standard output and error go to one file, so that their order is kept."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


if __name__ == "__main__":
    tie_to_parent()
    leave_keyring()
    if sys.argv[1] != "-":
        send_output_to(sys.argv[1].replace("{rank}", os.environ.get("RANK", "")))
    os.execv(sys.argv[2], sys.argv[2:])
