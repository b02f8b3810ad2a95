"""What a record of epochs lets the checker say, and what it does not."""

from types import SimpleNamespace

import pytest

from assessment.laws.stopping import ONLY_ROSE, stops_together, telling_target
from assessment.trials.artifacts import Artifacts

STEPS = 3  # an epoch


@pytest.mark.parametrize(
    ("accuracies", "in_all", "in_a_row", "told"),
    [([0.1, 0.4, 0.2, 0.5, 0.6, 0.7], 4, 5, ""), ([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], 3, 3, ONLY_ROSE)],
    ids=["up and down", "only up"],
)
def test_counting_in_a_row_is_judged_where_an_accuracy_falls(tmp_path, accuracies, in_all, in_a_row, told):
    free = ended(tmp_path / "free", accuracies, {}, None)
    flags = {"target_accuracy": telling_target(free), "patience": 2}
    right = stops_together(ended(tmp_path / "row", accuracies[:in_a_row], flags, free))
    assert right.holds and right.symptom == told
    if in_all < in_a_row:
        assert stops_together(ended(tmp_path / "all", accuracies[:in_all], flags, free)).holds is False


def ended(folder, accuracies, flags, reference):
    """Return what the law sees of a run of two ranks that has trained one epoch for each accuracy."""
    folder.mkdir()
    (folder / "metrics.csv").write_text("\n".join(["val_accuracy", *map(str, accuracies)]))
    ranks = [SimpleNamespace(steps=range(STEPS * len(accuracies))) for _ in range(2)]
    evidence = SimpleNamespace(ranks=ranks, settings={"epochs": 6}, world_size=2)
    return SimpleNamespace(
        artifacts=Artifacts(folder, None),
        evidence=evidence,
        run=SimpleNamespace(flags=flags),
        outcome=SimpleNamespace(state="finished", exits={0: 0, 1: 0}, logs=["", ""]),
        reference=reference,
    )


@pytest.mark.timeout(60)
def test_of_a_record_with_too_many_rows_as_many_count_as_there_were_epochs(tmp_path):
    """Whoever writes a megabyte of them does not hold up who judges it."""
    rows = [0.1, 0.4, 0.2, 0.5, 0.6, 0.7]
    flooded = ended(tmp_path / "flooded", [*rows, *(0.7 + at / 1e6 for at in range(20_000))], {}, None)
    assert telling_target(flooded) == telling_target(ended(tmp_path / "plain", rows, {}, None)) > 0
