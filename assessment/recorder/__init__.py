"""What is loaded into a learner's process: it writes down what a script does, and changes nothing."""


def install():
    """Set the recorder to work in this process; torch must be imported. Nothing of the script may have run."""
    from assessment.recorder import events, training, world  # they need torch, which who comes to this room may not

    recorder = events.Recorder()
    training.watch(recorder)
    world.watch(recorder)
