"""Starters are made from solutions: the labs, and the assignment's script."""

from assessment.starters.difference import Difference
from assessment.starters.make import reset
from assessment.starters.regions import ROOT

__all__ = ["ROOT", "Difference", "reset"]
