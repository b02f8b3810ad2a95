"""No symptom is told that nothing shows: each is said of a submission, or of altered evidence."""

import ast
import sys
from pathlib import Path

import pytest
from altering import altered, each, others_than_the_undivided
from outcomes import ALL, outcome
from test_altered_evidence import CASES

from assessment.checklists.common import ORDER, TWO
from assessment.checklists.examine import asked
from assessment.laws import gradients
from assessment.laws.verdict import broken

MODULES = {sys.modules[law.__module__] for law in ORDER} | {gradients}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_symptom_is_shown(monkeypatch):
    shown = set()

    def noted(symptom, *facts):
        frame = sys._getframe(1)
        shown.add((Path(frame.f_code.co_filename), frame.f_lineno))
        return broken(symptom, *facts)

    for module in MODULES:
        monkeypatch.setattr(module, "broken", noted)
    for submission in ALL:
        outcome(submission, asked)
    for case in CASES:
        lab, change, _ = case.values
        altered(lab, change)
    altered("03", each(others_than_the_undivided, TWO), "FSDP")
    told = {(path, lines) for path in (Path(module.__file__) for module in MODULES) for lines in symptoms(path)}
    unseen = [(path, lines) for path, lines in told if not any((path, line) in shown for line in range(*lines))]
    assert len(told) > 80 and not sorted(f"{path.name}, line {lines[0]}" for path, lines in unseen)


def symptoms(path):
    """Yield the first line and the one behind the last of each call of ``broken`` in a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "broken":
            yield node.lineno, node.end_lineno + 1
