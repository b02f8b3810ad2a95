"""Put a script through trials: each ``Plan`` says with how many processes, which flags and what data."""

import shutil
from dataclasses import dataclass, field

from assessment.trials import trial as trials
from assessment.trials.salvage import remove
from utils.data.datasets import source

OWN = object()  # in the place of a flag's value: the flag is left out, and the script's own default holds


@dataclass(frozen=True)
class Plan:
    """One trial: how many processes, with which flags (by name, without dashes), and what makes it special."""

    name: str
    processes: int
    settings: dict  # flags that every script understands
    # Those that the lab is about; None stands for a switch, ``OWN`` for none, a function makes one from the reference.
    flags: dict = field(default_factory=dict)
    # Images as files; on none of its machines are they prepared, or as they were before, where an earlier trial was.
    is_cold: bool = False
    machines: int = 1
    delays: dict = field(default_factory=dict)  # or a function that draws them for each check
    reference: str | None = None  # the earlier trial that this one is compared with
    # The earlier trial in whose folders this one runs: one that finished, or that was to end before its time.
    after: str | None = None
    is_damaged: bool = False  # what that one has saved last
    is_watched: bool = True  # by the recorder
    is_calm: bool = False  # with nothing in the network that looks at one share alone (recorder/calm.py)
    draws_alike: bool = False  # for every image the same (recorder/draws.py)
    probe: str = ""  # the script's functions are called, and it is not run (recorder/probes.py)


class Trials:
    """The trials of one script on the data of ``stage``; what is written goes to ``folder``.

    A flag in ``optional`` that the script says it does not know is left out from then on. ``apart`` gives every
    rank a folder of its own for its record.
    """

    def __init__(self, server, script, stage, folder, optional=frozenset(), apart=False):
        self.server, self.script, self.stage, self.folder = server, script, stage, folder
        self.optional, self.apart = optional, apart
        self.unknown, self.done = set(), {}

    def is_due(self, plan):
        """Say whether ``plan`` can be run: where it goes on in the folders of another, that must have ended rightly."""
        before = self.done.get(plan.after)
        return plan.after is None or (before and (before.outcome.state == "finished" or before.run.is_to_end))

    def attempt(self, plan):
        """Run ``plan`` and return its ``Trial``, compared with the ``reference`` that has been run before."""
        trial = self._attempt(plan)
        said = trials.unknown_flags(trial) & self.optional - self.unknown
        if said:
            self.unknown |= said
            trial = self._attempt(plan)
        trial.reference, trial.before = self.done.get(plan.reference), self.done.get(plan.after)
        self.done[plan.name] = trial
        return trial

    def _attempt(self, plan):
        if plan.is_watched:
            return self._attempt_with(self.server, self.folder, plan)
        with self.server.apart() as server:  # nothing that a watched run has left may tell it anything
            trial = self._attempt_with(server, self.folder if server is self.server else server.work, plan)
            trial.artifacts.keep()
            return trial

    def _attempt_with(self, server, folder, plan):
        stage, reference = self.stage, self.done.get(plan.reference)
        flags = (trials.CALM | plan.flags).items()
        flags = {name: value for name, value in flags if value is not OWN and name not in self.unknown}
        dataset, data_dir = stage.data.name, stage.prepared
        if plan.is_cold:
            dataset, data_dir = f"folder:{stage.images}", folder / "cold-{machine}"
        run = trials.Run(
            script=self.script,
            processes=plan.processes,
            settings=plan.settings,
            flags={name: value(reference) if callable(value) else value for name, value in flags.items()},
            data=stage.data.by_label if plan.is_cold else stage.data,
            prepared=stage.prepared,
            dataset=dataset,
            data_dir=data_dir,
            delays=plan.delays() if callable(plan.delays) else plan.delays,
            apart=self.apart,
            is_watched=plan.is_watched,
            is_calm=plan.is_calm,
            draws_alike=plan.draws_alike,
            machines=plan.machines,
            probe=plan.probe,
            earlier=self.done[plan.after].artifacts.place if plan.after else None,
            is_damaged=plan.is_damaged,
        )
        for place in run.data_dirs if plan.is_cold else ():
            if place.is_symlink() or not place.is_dir():  # what an earlier run has put there is not followed
                remove(place)
                place.mkdir()
            server.open_to_ranks(place)
            prepared = place / source(dataset).file
            remove(prepared)
            if plan.after:
                shutil.copyfile(stage.outdated, prepared)
        return trials.attempt(server, run, folder)
