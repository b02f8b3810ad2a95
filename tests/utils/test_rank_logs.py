"""What ranks print is shown whole, once and in order, however much it is, and read once."""

import contextlib
import io
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from utils.launch.rank_logs import MOST_BYTES, MOST_LINE, RankLogs


def bytes_read():
    """Return how many bytes this process has read since it started (proc_pid_io(5))."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def test_a_log_of_any_size_is_shown_to_its_end(capsys):
    logs = RankLogs(1)
    line = "x" * 99
    with open(logs.path(0), "w") as file:
        for part in range(5):
            file.write(f"{line}\n" * (MOST_BYTES // 400) + f"part {part}\n")
            file.flush()
            logs.show()
            shown = capsys.readouterr().out.splitlines()
            assert len(shown) == MOST_BYTES // 400 + 1 and shown[-1] == f"part {part}"
    assert logs.last_line(0) == "part 4" and len(logs.text(0)) == MOST_BYTES


def test_what_has_been_shown_is_not_read_again():
    logs = RankLogs(1)
    logs.path(0).write_text("a line\n" * 500_000)
    logs.show()
    before = bytes_read()
    for _ in range(10):
        logs.show()
    assert bytes_read() - before < 100_000, "ten looks at nothing more read the log again"


def test_a_line_without_an_end_is_shown_in_parts(capsys):
    logs = RankLogs(1)
    logs.path(0).write_text("." * (2 * MOST_LINE + 7))
    logs.show()
    assert len("".join(capsys.readouterr().out.splitlines())) == 2 * MOST_LINE
    logs.show(is_over=True)
    assert capsys.readouterr().out == ".......\n"


@given(st.lists(st.text(alphabet="aé\n", max_size=20), max_size=8))
def test_lines_come_whole_and_once_however_they_were_written(pieces):
    logs, shown = RankLogs(2), []
    with open(logs.path(1), "w", encoding="utf-8") as file:
        for number, piece in enumerate(pieces, start=1):
            file.write(piece)
            file.flush()
            shown += printed(logs, is_over=number == len(pieces))
    assert shown == [f"[rank 1] {line}" for line in "".join(pieces).splitlines()]


def printed(logs, **options):
    """Return the lines that ``logs`` shows."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        logs.show(**options)
    return out.getvalue().splitlines()


def test_a_folder_in_the_place_of_a_log_is_nothing_printed():
    logs = RankLogs(1)
    logs.path(0).mkdir()
    logs.show()
    assert logs.text(0) == "" and logs.last_line(0) == "(nothing printed)"
