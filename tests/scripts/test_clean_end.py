"""Correct runs end with code 0, every time: ``finish`` keeps gloo's threads from aborting the exit."""

import os

import pytest
from conftest import ROOT, TINY

SOAK = int(os.environ.get("LOCKSTEP_SOAK", 0))
COLD = {"LOCKSTEP_COLD": "1"}  # how an interpreter ends, one that was forked off another does not show
RUNS = SOAK or 4


@pytest.mark.slow
@pytest.mark.timeout(max(300, 60 * RUNS))
def test_runs_end_cleanly(torchrun, digits, tmp_path):
    ends = []
    for number in range(RUNS):
        args = ("--data-dir", digits, *TINY, "--train-images", 256, "--seed", number)
        run = torchrun(ROOT / "solutions/03_ddp.py", *args, processes=2, run_dir=tmp_path / str(number), env=COLD)
        run.wait(timeout=100)
        aborted = any("terminate called" in run.log(rank) for rank in (0, 1))
        ends.append(run.state if not aborted else "aborted")
    print(f"{ends.count('finished')} of {RUNS} runs ended cleanly")
    assert ends == ["finished"] * RUNS
