"""What is loaded into a learner's process: it writes down what a script does, and changes nothing.

Only ``calm`` does, in the trials that say so: it takes out of a network what looks at one share of a batch alone.
"""

import os


def install():
    """Set the recorder to work in this process; torch must be imported. Nothing of the script may have run."""
    # They need torch, which who comes to this room may not.
    from assessment.recorder import calm, events, fetches, training, world

    recorder = events.Recorder()
    fetches.watch(recorder)
    training.watch(recorder)
    world.watch(recorder)
    if "LOCKSTEP_CALM" in os.environ:
        calm.settle()
