"""The checklists of the labs, each in a file of its own."""

from importlib import import_module

from assessment.starters.regions import ROOT
from utils.errors import UserError


def checklist(lab):
    """Return the ``Lab`` that ``lab`` names: ``03``, ``3``, ``03_ddp`` or ``assessment``.

    Raises ``UserError`` where there is none.
    """
    number = str(lab).split("_")[0].zfill(2)
    path = ROOT / f"assessment/checklists/lab_{number}.py"
    if not path.exists():
        known = sorted(one.stem.removeprefix("lab_") for one in path.parent.glob("lab_*.py"))
        raise UserError(f"there is no checklist for lab {lab}: choose one of {', '.join(known)}")
    return import_module(f"assessment.checklists.lab_{number}").LAB
