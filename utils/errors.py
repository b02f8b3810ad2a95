"""Problems that the user can put right, told in one line instead of a traceback."""

import sys
from contextlib import contextmanager


class UserError(Exception):
    """Something is missing or wrong outside the code; the text is one line that says what to do."""

    def _render_traceback_(self):
        """Show the line alone in a notebook (IPython asks exceptions for this method)."""
        return [f"{type(self).__name__}: {self}"]


@contextmanager
def one_line_errors():
    """End the process with code 1 and the text of a ``UserError``; let every other exception pass."""
    try:
        yield
    except UserError as problem:
        sys.exit(str(problem))


def first_line(error):
    """Return the first line of what ``error`` says, or else what it is."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
