"""What a learner has done so far: the steps of each lab, and the predictions, from ``.lockstep/progress.json``."""

from html import escape

from assessment.checklists import checklist
from assessment.starters.make import ROOT
from utils.notebook import progress


class Overview:
    """A table with a line for each lab: steps done of all, and predictions kept in its chapter."""

    def __init__(self):
        kept = progress.read()
        checks, predictions = kept.get("checks", {}), kept.get("predictions", {})
        self.rows = []
        for path in sorted((ROOT / "assessment/checklists").glob("lab_*.py")):
            name = checklist(path.stem.removeprefix("lab_")).name
            found = checks.get(name)
            told = sum(question.partition(": ")[0].endswith(name) for question in predictions)
            self.rows.append((name, _steps(found), told))

    def __repr__(self):
        return "\n".join(f"{name:<20} {steps:<24} {told} predictions" for name, steps, told in self.rows)

    def _repr_html_(self):
        head = "<tr><th>lab</th><th>steps</th><th>predictions in its chapter</th></tr>"
        cells = "".join(
            f"<tr><td>{escape(name)}</td><td>{steps}</td><td>{told}</td></tr>" for name, steps, told in self.rows
        )
        return f"<table>{head}{cells}</table>"


def _steps(found):
    if found is None:
        return "not checked yet"
    is_done = len(found["done"]) == found["of"] and found["cause"] is None
    return "all done" if is_done else f"{len(found['done'])} of {found['of']} done"
