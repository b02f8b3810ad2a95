"""Run a training script whose ranks share one effective batch, however many they are.

    torchrun --nnodes 1:2 ... divided.py IMAGES SCRIPT [ARGUMENT ...]

A job that shrinks and grows gives its script the same arguments each time. Its ``--batch-size`` is a process's, and so
it must follow the number of processes, or the steps would be others than before.
"""

import os
import runpy
import sys

images, *sys.argv = sys.argv[1:]
sys.argv += ["--batch-size", str(int(images) // int(os.environ["WORLD_SIZE"]))]
print(f"one of {os.environ['WORLD_SIZE']}", flush=True)
runpy.run_path(sys.argv[0], run_name="__main__")
