"""``%%ranks``: a cell as N processes that find each other, with the first failure ending the rest."""

import _thread
import os
import threading

import psutil
import pytest
from conftest import until
from IPython.core.interactiveshell import InteractiveShell

from utils.errors import UserError
from utils.launch.processes import family
from utils.launch.ranks_magic import CellError, load_ipython_extension, run_cell

SUM = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
number = torch.tensor(dist.get_rank() + 1.0)
dist.all_reduce(number)
print("sum", number.item())
"""


def running_cells():
    """List the ranks of cells that this process has started."""
    return [one for one in family(os.getpid()) if any(word.endswith("cell.py") for word in command(one))]


def command(process):
    try:
        return process.cmdline()
    except psutil.Error:  # it ended meanwhile
        return []


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


def test_output_comes_while_the_cell_runs(capsys, tmp_path):
    code = f"import os, time\nprint('early')\nwhile not os.path.exists({str(tmp_path / 'go on')!r}): time.sleep(0.05)"
    thread = threading.Thread(target=run_cell, args=(code, 1))
    thread.start()
    shown = []
    until(lambda: shown.append(capsys.readouterr().out) or "".join(shown), 60, "the first line")
    assert "".join(shown) == "[rank 0] early\n" and thread.is_alive() and running_cells()
    (tmp_path / "go on").touch()
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_the_first_failure_stops_the_rest_and_raises(capsys):
    code = SUM + "if dist.get_rank() == 1: raise ValueError('the culprit')\nimport time; time.sleep(3600)"
    with pytest.raises(CellError, match=r"rank 1 failed first \(exit code 1\): ValueError: the culprit"):
        run_cell(code, 2)
    shown = capsys.readouterr().out
    assert "[rank 1] Traceback" in shown and "raise ValueError" in shown
    assert not running_cells()


def test_an_interrupt_stops_all_ranks():
    def interrupt():
        until(lambda: len(running_cells()) >= 2, 60, "both ranks")
        _thread.interrupt_main()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        run_cell("import time\ntime.sleep(3600)", 2)
    assert not running_cells()


def test_the_magic_reads_its_line_and_keeps_what_was_told():
    shell = InteractiveShell.instance()
    load_ipython_extension(shell)
    shell.run_cell_magic("ranks", "2 told", "import os; print(os.environ['RANK'])")
    assert shell.user_ns["told"] == ["0\n", "1\n"]
    for line in ("", "two", "0", "2 two words"):
        with pytest.raises(UserError, match="say how many processes"):
            shell.run_cell_magic("ranks", line, "pass")
    with pytest.raises(UserError, match="processes=1000000 makes no run: choose a whole number from 1 to 1,024"):
        shell.run_cell_magic("ranks", "1000000", "pass")
