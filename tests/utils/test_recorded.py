"""Recordings are whole, say how they came about, and show the effects that the notebooks claim."""

import re
from collections import defaultdict
from dataclasses import asdict
from statistics import mean

import pytest
from conftest import ROOT

from assessment.task import assignment, reached_in
from benchmarks.recorded import RESNETS, SEEDS, STUDIES
from utils.errors import UserError
from utils.notebook import plots, recorded

NAMES = [*STUDIES, "05_resnet18", "14_assessment"]


def ends(name, *keys):
    """Return the last accuracies of a recording, by the values of ``keys``."""
    last, accuracies = {}, defaultdict(list)
    for row in recorded.read(name):
        last[row["run"], row.get("seed")] = row
    for row in last.values():
        accuracies[tuple(row[key] for key in keys)].append(float(row["val_accuracy"]))
    return accuracies


def test_every_recording_that_a_notebook_shows_is_there_and_no_other():
    shown = set()
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        shown |= set(re.findall(r'recorded\.show\(\\"(\w+)\\"\)', notebook.read_text(encoding="utf-8")))
    there = {path.stem for path in recorded.FOLDER.iterdir()}
    assert shown == there == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_is_marked_and_says_how_it_came_about(name):
    recording = recorded.show(name)
    shown = recording._repr_mimebundle_()["text/html"]
    assert shown.startswith("<div") and f"Recorded on {recording.date}, not measured here" in shown
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", recording.date)
    assert recording.command == f"python -m benchmarks.recorded {name}" and recording.command in shown
    assert recording.device and recording.device in shown
    assert "Fashion-MNIST" in recording.title or name == "14_assessment"
    assert re.search(r'alt="Recorded: [^"]{20,}"', shown) and recording.png.startswith(b"\x89PNG")


@pytest.mark.parametrize("name", STUDIES)
def test_the_numbers_are_of_the_settings_that_the_command_trains(name):
    wanted = [{key: str(value) for key, value in asdict(one).items()} for one in STUDIES[name].settings]
    found = []
    for row in recorded.read(name):
        own = {key: row[key] for key in wanted[0]}
        if own not in found:
            found.append(own)
    assert found == wanted and len(SEEDS) == 3


def test_recorded_batches_lose_accuracy_as_the_live_ones_do():
    found = ends("05_batch_size", "batch_size")
    assert min(found["32",]) > max(found["256",]) > mean(found["256",]) > max(found["1024",])


def test_recorded_rules_rank_as_the_live_ones_do():
    found = {key: mean(values) for key, values in ends("06_learning_rate", "batch_size", "lr_scaling").items()}
    assert found["512", "sqrt"] > found["512", "none"] and found["1024", "sqrt"] > found["1024", "none"]
    assert found["1024", "linear"] < found["1024", "sqrt"]


def test_recorded_momentum_and_decay_help_as_the_live_ones_do():
    found = ends("07_momentum", "base_lr", "momentum", "lr_decay")
    plain, memory, longer = found["0.01", "0", "0"], found["0.01", "0.9", "0"], found["0.1", "0", "0"]
    assert min(mean(memory), mean(longer)) > mean(plain) + 0.01
    assert mean(found["0.2", "0.9", "0.05"]) > mean(found["0.2", "0.9", "0"])


def test_recorded_cold_starts_diverge_and_warm_ones_do_not():
    found = ends("08_warmup", "warmup_epochs")
    assert max(found["0",]) < 0.3 and min(found["1.5",]) > 0.6
    marks = {(row["warmup_epochs"], row["diverged"]) for row in recorded.read("08_warmup")}
    assert marks == {("0", "True"), ("1.5", "False")}


def test_recorded_novograd_leads_at_its_best_rate():
    best = defaultdict(float)
    for (name, _), values in ends("09_novograd", "optimizer", "base_lr").items():
        best[name] = max(best[name], mean(values))
    assert best["novograd"] > best["sgd"] + 0.1


def test_the_recorded_resnets_are_one_and_two_processes():
    rows = {row["run"]: row for row in recorded.read("05_resnet18")}
    assert list(rows) == list(RESNETS)
    one, two = rows.values()
    assert float(two["seconds"]) < float(one["seconds"]) < float(two["device_seconds"]) * 1.2


def test_what_is_kept_can_be_shown(tmp_path):
    picture = plots.lines({"a": ([1, 2], [2, 1])}, xlabel="x", ylabel="y", title="t", alt="a line that falls")
    told = {"title": "a <line>", "command": "make it", "device": "a toy", "date": "2026-01-01", "torch": "2"}
    recorded.keep("one", picture, [{"x": 1, "y": 2}, {"x": 2, "y": 1}], folder=tmp_path, **told)
    shown = recorded.show("one", tmp_path)._repr_mimebundle_()
    assert "a &lt;line&gt;" in shown["text/html"] and "a line that falls" in shown["text/plain"]
    assert recorded.read("one", tmp_path) == [{"x": "1", "y": "2"}, {"x": "2", "y": "1"}]
    with pytest.raises(UserError, match=r"two has no recording \(.*two.json is missing\)"):
        recorded.show("two", tmp_path)


def test_the_solution_reaches_the_assignments_distinction_and_the_unchanged_rate_misses_its_target():
    task, accuracies, seconds = assignment(), defaultdict(list), defaultdict(float)
    for row in recorded.read("14_assessment"):
        run = row["run"], row["seed"]
        accuracies[run].append(float(row["val_accuracy"]))
        seconds[run] = float(row["seconds"])
    for (way, _), curve in accuracies.items():
        assert len(curve) == task.epochs
        if way == "the solution":
            assert reached_in(curve, task.distinction, task.patience)
        else:
            assert reached_in(curve, task.target, task.patience) is None
    assert len(accuracies) == 6 and max(seconds.values()) < 60 * task.minutes
