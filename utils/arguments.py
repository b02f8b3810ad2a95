"""Types of command-line arguments that argparse does not have."""

import argparse


def at_least(least):
    """Return a type for argparse: numbers of the kind of ``least`` that are not below it and not infinite."""

    def number(text):
        value = type(least)(text)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is out of range: choose {least} or more")
        return value

    number.__name__ = type(least).__name__  # argparse names it where the text is no number
    return number
