"""Recordings are kept as they were made, of what is as it should be, and of scripts as they stand."""

import sys
from contextlib import nullcontext
from dataclasses import replace

import mutants
import recording
from outcomes import ALL, is_recorded, named_submission, outcome, recordings, run_of
from recording import AGAIN, FOLDER, load, path_of, save
from submitted import Submission


def test_a_script_that_changed_since_it_was_recorded_is_noticed(monkeypatch):
    """A change to a solution asks for that of the solution; what differs from it by the same lines stays recorded."""
    solution, other = named_submission("03", "the solution"), named_submission("03", "a mean of means")
    (old, new), *rest = other.changes
    commented = replace(other, changes=((old, f"# as before\n\n{new}"), *rest))
    changed = replace(other, changes=((old, f"import abc\n{new}"), *rest))
    assert is_recorded(solution) and is_recorded(commented) and not is_recorded(changed)
    assert not is_recorded(replace(other, name="of another name"))
    text = solution.text()
    for addition, is_known in (("# a word\n", True), ("import abc\n", False)):
        monkeypatch.setattr(Submission, "text", lambda _, addition=addition: text + addition)
        assert is_recorded(solution) == is_known and is_recorded(other)


def test_a_recording_is_read_as_it_was_written(tmp_path):
    path = path_of(next(one for one in ALL if one.lab == "01"))
    save(tmp_path / path.name, recordings(path))
    assert load(tmp_path / path.name) == recordings(path)


def test_recordings_stay_small():
    sizes = [path.stat().st_size for path in FOLDER.iterdir()]
    assert max(sizes) < 1_000_000 and sum(sizes) < 12_000_000


def test_no_recording_is_left_of_a_submission_that_is_gone():
    for path in {path_of(one) for one in ALL}:
        names = {one.name for one in ALL if path_of(one) == path}
        assert recordings(path).keys() <= names, f"{path.name} holds more: {AGAIN} of that lab leaves it out"


def test_the_table_records_what_is_as_it_should_be(tmp_path, monkeypatch, capsys):
    """Here the trials are those of recordings, and of one script they are another's."""
    others, whole = {"always scaled": "the number of processes"}, recordings(FOLDER / "06_wrong.xz")
    own = [one for one in ALL if (one.lab, one.law is None) == ("06", False)]
    runs, names = {one.name: (run_of(one), outcome(one)) for one in own}, {one.text(): one.name for one in own}

    def examine(script, _lab, _order, _server, _stage, look):
        name = names[script.read_text(encoding="utf-8")]
        trials, result = runs[others.get(name, name)]
        look(trials, result)
        return result

    monkeypatch.setattr(mutants, "examine", examine)
    monkeypatch.setattr(mutants, "ForkServer", nullcontext)
    monkeypatch.setattr(recording, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["mutants.py", "--record", "wrong", "06"])
    assert mutants.main() == 1 and "NOT 06  always scaled" in capsys.readouterr().out
    assert load(tmp_path / "06_wrong.xz") == {name: one for name, one in whole.items() if name not in others}
    others.clear()
    monkeypatch.setattr(sys, "argv", ["mutants.py", "--record", "06", "always scaled"])
    assert mutants.main() == 0 and load(tmp_path / "06_wrong.xz") == whole
