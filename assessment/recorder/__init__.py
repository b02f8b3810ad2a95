"""What is loaded into a learner's process: it writes down what a script does, and changes nothing.

Only ``calm`` and ``draws`` do, in the trials that say so: what looks at one share of a batch alone is taken out of a
network, and what is drawn for images is the same for every share.
"""

import os


def install():
    """Set the recorder to work in this process and return it; torch must be imported, and no line of the script run."""
    # They need torch, which who comes to this room may not.
    from assessment.recorder import calm, draws, events, fetches, training, world

    recorder = events.Recorder()
    fetches.watch(recorder)
    training.watch(recorder)
    world.watch(recorder)
    if "LOCKSTEP_CALM" in os.environ:
        calm.settle()
    if "LOCKSTEP_DRAWS" in os.environ:
        draws.settle_draws(recorder)
    return recorder


def count(folder):
    """Have nothing but steps counted in this process, into a file in ``folder``."""
    from assessment.recorder import counts

    counts.count(folder)


def probe(kind, namespace, recorder):
    """Call functions among the names of a script that was read and not run."""
    from assessment.recorder import probes

    probes.probe(kind, namespace, recorder)
