"""What is wrong in a script's command line is told in one line, by every script alike."""

import importlib
import os

import pytest
from conftest import ROOT
from programs import run_program

from utils.arguments import FLAGS
from utils.errors import UserError

SCRIPTS = sorted(path.stem for path in (ROOT / "solutions").glob("*.py"))
WRONG = {
    "data-dir": ("", " "),
    "run-dir": ("",),
    "epochs": ("0", "-1", "1.5", ""),
    "batch-size": ("0", "-1", "nan"),
    "global-batch-size": ("0", "-7"),
    "micro-batch-size": ("0", "-1"),
    "profile-steps": ("-1",),
    "train-images": ("0", "-1"),
    "base-lr": ("-1", "nan", "inf", "1e999", "1e308"),
    "checkpoint-every": ("-1", "nan", "inf"),
    "momentum": ("-1", "1", "nan"),
    "reference-batch": ("0", "nan"),
    "lr-scaling": ("cubic",),
    "warmup-epochs": ("-1", "nan", "inf"),
    "lr-decay": ("-1", "nan"),
    "weight-decay": ("-0.1", "nan"),
    "target-accuracy": ("nan", "5", "-0.1"),
    "patience": ("0", "-3"),
    "model": ("transformer",),
    "width": ("nan", "1e9", "0", "-1"),
    "dropout": ("2", "nan", "-0.1"),
    "timeout": ("0", "-1", "nan", "1e30"),
    "seed": ("-1", str(2**64), "1.5"),
}


def parse(script, arguments, monkeypatch):
    monkeypatch.setattr("sys.argv", [f"{script}.py", *arguments])
    args, _ = importlib.import_module(f"solutions.{script}").parse_args()
    return vars(args)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_value_that_makes_no_sense_is_named(script, monkeypatch):
    known = parse(script, [], monkeypatch)
    for name, values in WRONG.items():
        for value in values if name.replace("-", "_") in known else ():
            with pytest.raises(UserError) as told:
                parse(script, [f"--{name}={value}"], monkeypatch)
            assert f"--{name}" in str(told.value) and "\n" not in str(told.value), (name, value)


def test_every_number_has_a_value_that_makes_no_sense():
    assert {name for name, told in FLAGS.items() if "type" in told} <= WRONG.keys()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_flag_that_the_script_does_not_have_is_named(script, monkeypatch):
    with pytest.raises(UserError, match="unrecognized arguments: --epoch-count 3"):
        parse(script, ["--epoch-count", "3"], monkeypatch)


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_smallest_and_the_largest_values_are_taken(script, monkeypatch):
    told = {"epochs": 1, "batch-size": 1, "base-lr": 0.0, "momentum": 0.0, "dropout": 0.0, "target-accuracy": 1.0}
    known = parse(script, [], monkeypatch)
    told = {name: value for name, value in (told | {"seed": 2**32 - 1}).items() if name.replace("-", "_") in known}
    found = parse(script, [f"--{name}={value}" for name, value in told.items()], monkeypatch)
    assert {name: found[name.replace("-", "_")] for name in told} == told


@pytest.mark.parametrize(
    "told",
    [
        {"RANK": "abc"},
        {"RANK": "-1"},
        {"RANK": ""},
        {"WORLD_SIZE": "0"},
        {"WORLD_SIZE": "1e3"},
        {"MASTER_PORT": "70000"},
        {"MASTER_PORT": "0"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "2"},
    ],
    ids=str,
)
@pytest.mark.parametrize("script", SCRIPTS)
def test_ranks_that_torchrun_never_sets_are_named(script, told, monkeypatch):
    for name, text in told.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(UserError, match=f"environment has {next(iter(told))}=.*torchrun") as error:
        parse(script, [], monkeypatch)
    assert "\n" not in str(error.value)


WHOLE = {
    "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
}  # fmt: skip


@pytest.mark.parametrize("lost", [name for name in WHOLE if name != "RANK"])
@pytest.mark.parametrize("text", [None, ""], ids=["lacking", "empty"])
def test_a_rank_that_lacks_what_torchrun_sets_is_told_so(lost, text, monkeypatch):
    for name, told in (WHOLE | {lost: text}).items():
        monkeypatch.delenv(name, raising=False) if told is None else monkeypatch.setenv(name, told)
    with pytest.raises(UserError, match=f"lacks {lost}, which torchrun sets|has {lost}='', which torchrun never"):
        parse("03_ddp", [], monkeypatch)


def test_a_rank_0_that_nobody_reaches_is_one_line(tmp_path):
    environment = os.environ | WHOLE | {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}
    command = (ROOT / "solutions/03_ddp.py", "--timeout", 2, "--run-dir", tmp_path / "run")
    done = run_program(*command, environment=environment)
    told = [line for line in done.stderr.splitlines() if not line.startswith(("[W", "W"))]
    assert done.returncode == 1 and told[-1].startswith("nobody answers at 127.0.0.1:1, where rank 0 should be")
    assert "Traceback" not in done.stderr
