"""``%%ranks``: a cell as N processes that find each other, with the first failure ending the rest."""

import _thread
import threading
import time

import pytest
from IPython.core.interactiveshell import InteractiveShell
from test_launch import processes_with

from utils.errors import UserError
from utils.magics import CellError, load_ipython_extension, run_cell

SUM = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
number = torch.tensor(dist.get_rank() + 1.0)
dist.all_reduce(number)
print("sum", number.item())
"""


@pytest.mark.parametrize("processes", [1, 3])
def test_ranks_find_each_other_and_their_output_is_prefixed(processes, capsys):
    told = run_cell(SUM, processes)
    total = float(sum(range(1, processes + 1)))
    assert told == [f"sum {total}\n"] * processes
    shown = capsys.readouterr().out.splitlines()
    assert sorted(shown) == [f"[rank {rank}] sum {total}" for rank in range(processes)]


def test_two_cells_at_once_do_not_collide():
    told = []
    threads = [threading.Thread(target=lambda: told.append(run_cell(SUM, 2))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert told == [["sum 3.0\n"] * 2] * 2


def test_output_comes_while_the_cell_runs(capsys):
    thread = threading.Thread(target=run_cell, args=("import time\nprint('early')\ntime.sleep(5)", 1))
    thread.start()
    time.sleep(3)
    assert capsys.readouterr().out == "[rank 0] early\n"
    thread.join(timeout=30)


def test_the_first_failure_stops_the_rest_and_raises(capsys):
    code = SUM + "if dist.get_rank() == 1: raise ValueError('the culprit')\nimport time; time.sleep(100)"
    start = time.monotonic()
    with pytest.raises(CellError, match=r"rank 1 failed first \(exit code 1\): ValueError: the culprit"):
        run_cell(code, 2)
    assert time.monotonic() - start < 30
    shown = capsys.readouterr().out
    assert "[rank 1] Traceback" in shown and "raise ValueError" in shown
    assert not processes_with("cell.py")


def test_an_interrupt_stops_all_ranks():
    threading.Timer(4, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        run_cell("import time\ntime.sleep(100)", 2)
    assert not processes_with("cell.py")


def test_the_magic_reads_its_line_and_keeps_what_was_told():
    shell = InteractiveShell.instance()
    load_ipython_extension(shell)
    shell.run_cell_magic("ranks", "2 told", "import os; print(os.environ['RANK'])")
    assert shell.user_ns["told"] == ["0\n", "1\n"]
    for line in ("", "two", "0", "2 two words"):
        with pytest.raises(UserError, match="say how many processes"):
            shell.run_cell_magic("ranks", line, "pass")
