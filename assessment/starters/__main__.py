"""Make the labs from the solutions: python -m assessment.starters."""

import sys

from assessment.starters.make import make_labs
from utils.errors import one_line_errors


def main():
    """Make the labs and say which were left alone."""
    for name in make_labs():
        print(f"{name} has been changed by hand and stays as it is", file=sys.stderr)


if __name__ == "__main__":
    with one_line_errors():
        main()
