"""``%%ranks N``: run a notebook cell as N processes that can talk to each other.

    %load_ext utils.launch.ranks_magic

    %%ranks 2
    import torch.distributed as dist
    dist.init_process_group("gloo")
    print("hello from", dist.get_rank())

The cell is a script of its own: it sees nothing of the notebook, and the notebook sees what it prints;
``%%ranks 2 told`` also keeps that in the variable ``told``, a text for each rank.
Each process gets the environment that torchrun would give it. torchrun itself is left out, because it
would add its own start to every cell.
"""

import keyword
import re
import sys
import time

from IPython import get_ipython
from torch.distributed import TCPStore

from utils.errors import UserError
from utils.launch import processes as system
from utils.launch.failures import first_failure
from utils.launch.rank_logs import RankLogs

POLL_S = 0.05
GRACE_S = 1.0  # what the other ranks get to say something when one has failed
END = "\n\nfrom utils.runs import finish\nfinish()\n"


class CellError(Exception):
    """A rank of a cell failed; its traceback stands in the cell's output."""

    def _render_traceback_(self):
        return [str(self)]


def run_cell(code, processes):
    """Run ``code`` as ``processes`` ranks, print what they print as it comes, and wait for the end.

    Returns the text that each rank printed. Raises ``CellError`` when a rank fails, having stopped the
    others; an interrupt stops all.
    """
    system.refuse_count("processes", processes)
    logs = RankLogs(processes)
    script = logs.folder / "cell.py"
    script.write_text(code + END, encoding="utf-8")
    # The ranks find each other at a port that the system chose for this store, as under torchrun.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }
    command = system.tethered([sys.executable, "-u", script], logs.path("{rank}"))
    ranks = [
        system.start(command, processes=processes, env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]
    try:
        _watch(ranks, logs)
        failed = {rank: code for rank, process in enumerate(ranks) if (code := process.poll())}
    finally:
        system.kill(set().union(*(system.family(process.pid) for process in ranks)))
        logs.show(name_all=True, is_over=True)
    if failed:
        first, told = first_failure(logs, failed)
        raise CellError(
            f"{told}: {logs.last_line(first)}\nIts whole output stands above; the other ranks were stopped."
        )
    return [logs.text(rank) for rank in range(processes)]


def _watch(ranks, logs):
    """Show the output until all ranks have ended, or a little longer than the first failure."""
    deadline = None
    while any(process.poll() is None for process in ranks):
        time.sleep(POLL_S)
        logs.show(name_all=True)
        if deadline is None and any(process.poll() for process in ranks):
            deadline = time.monotonic() + GRACE_S
        if deadline is not None and time.monotonic() > deadline:
            return


def ranks(line, cell):
    """Run the cell as so many processes: ``%%ranks 2``, or ``%%ranks 2 name`` to keep what they print."""
    asked = re.fullmatch(r"([1-9]\d{0,8})(?:\s+([A-Za-z_]\w*))?", line.strip())
    if not asked or keyword.iskeyword(asked[2] or "") or (asked[2] or "").startswith("__"):
        raise UserError(f"%%ranks {line.strip()}: say how many processes, as in %%ranks 2, and a name perhaps")
    told = run_cell(cell, int(asked[1]))
    if asked[2]:
        get_ipython().user_ns[asked[2]] = told


def load_ipython_extension(shell):
    """Make ``%%ranks`` known; called by ``%load_ext utils.launch.ranks_magic``."""
    shell.register_magic_function(ranks, "cell")


def unload_ipython_extension(_shell):
    """Forget ``%%ranks``."""
    get_ipython().magics_manager.magics["cell"].pop("ranks", None)
