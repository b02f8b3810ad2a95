"""A lab's checklist, and a result: steps made of laws, the state of each, misses from cause to consequence."""

from dataclasses import dataclass, field
from pathlib import Path

from assessment.laws.verdict import Verdict
from assessment.trials.trial import CALM

DONE, WRONG, UNSEEN, UNBEGUN = "done", "wrong", "not seen yet", "not begun"


@dataclass(frozen=True)
class Item:
    """One step of a lab: the laws that make it up, by trial, and two hints beyond the symptom."""

    number: int
    title: str
    laws: tuple  # of (trial's name, law)
    idea: str  # why, and where it is documented
    call: str  # the missing call
    points: int = 0  # in the assignment
    own: dict = field(default_factory=dict)  # law -> (idea, call), where the item's do not fit

    def hints(self, law):
        """Return the idea and the call for a miss of ``law``."""
        return self.own.get(law, (self.idea, self.call))


@dataclass(frozen=True)
class Lab:
    """The checklist of one lab."""

    name: str  # of the script, without .py
    plans: tuple
    items: tuple
    optional: frozenset = frozenset(CALM)  # flags that a script need not know
    dataset: str = "digits"  # whose place the data of the trials takes
    beginning: str = ""  # what is said of a starter that nobody has touched, where there is no TODO 1
    beyond: str = ""  # what is said when all is done, where there is more than is checked
    numbers_todos: bool = True  # its parts are the numbered TODOs of a starter
    pair: dict = field(default_factory=dict)  # flags of the runs as many processes and as one
    pair_of_many: dict = field(default_factory=dict)  # flags of the run as many alone
    record_step: int | None = None  # the step before which every process writes a record of its own


@dataclass
class Miss:
    """A law that is broken or of which nothing was seen; ``item`` is None for a run that ended before its time."""

    law: object
    verdict: Verdict
    item: Item | None = None
    ended_early: bool = False  # the run that showed it failed or hung, after others had finished


@dataclass
class Result:
    """What the checker found: the state of each step, and the misses from cause to consequence."""

    lab: Lab
    script: Path
    states: dict  # step number -> DONE, WRONG, UNSEEN or UNBEGUN
    misses: list
    seconds: float = 0.0
    is_untouched: bool = False
    advice: list = field(default_factory=list)
    ends: dict = field(default_factory=dict)  # how each trial ended, by name
    has_trained: bool = False  # whether any rank was seen to take a step
    unknown: set = field(default_factory=set)  # flags that the script does not know
    untouched: set = field(default_factory=set)  # numbers of the steps that stand as the starter has them

    @property
    def is_done(self):
        """Say whether every step is done and no run ended before its time."""
        return all(state == DONE for state in self.states.values()) and self.cause is None

    @property
    def cause(self):
        """Return the ``Miss`` to look at first, None where no law is broken that a step begun could keep."""
        broken = (miss for miss in self.misses if miss.verdict.holds is False)
        return next((miss for miss in broken if not miss.item or miss.item.number not in self.untouched), None)

    @property
    def next_step(self):
        """Return the first ``Item`` that nobody has begun, None where there is none."""
        return next((item for item in self.lab.items if self.states[item.number] == UNBEGUN), None)
