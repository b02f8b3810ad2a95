"""Say whether Python can read a stranger's script as a program, in a process that may come to harm by it.

    python -m assessment.grader.compiling train.py

prints one line of JSON: the ``problem`` ("" where there is none), and a digest of the ``program``. Two kilobytes of
source can make a compiler take gigabytes, so the process limits itself first; where it ends without a line, so it was.
"""

import json
import resource
import sys
from pathlib import Path

from assessment.starters.make import program_digest

MOST_MB, MOST_S = 2_000, 20
LONGEST = 300  # letters of a problem


def read(path):
    """Return what is known of the source in the file ``path``, which is compiled and not run."""
    source = Path(path).read_bytes()
    if b"\0" in source:
        return {"problem": "it is no Python program: it holds zero bytes; save it in UTF-8", "program": ""}
    try:
        compile(source, "train.py", "exec", dont_inherit=True)
        return {"problem": "", "program": program_digest(source)}
    except SyntaxError as error:
        # A message may hold a name as long as the source, and one line is read.
        return {"problem": f"it is no Python program: {error.msg[:LONGEST]}, line {error.lineno or '?'}", "program": ""}
    except MemoryError:
        raise
    except (ValueError, RecursionError, OverflowError) as error:
        return {"problem": f"it is no Python program: {str(error)[:LONGEST]}", "program": ""}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MB * 1_000_000,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S))
    print(json.dumps(read(sys.argv[1])))
