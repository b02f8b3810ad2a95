"""What a learner has done so far, kept in ``.lockstep/progress.json`` below the working directory.

Notebooks work in the course's folder (``claims.start`` goes there), so that is where it lies.
"""

import json
from pathlib import Path

from filelock import FileLock

from utils.errors import UserError
from utils.files import written_whole

PATH = Path(".lockstep/progress.json")


def read():
    """Return all that is kept: a dictionary of sections. Raises ``UserError`` where the file is damaged."""
    if not PATH.exists():
        return {}
    try:
        return json.loads(PATH.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{PATH.absolute()} is damaged ({error}): move it away to begin anew") from error


def keep(section, name, value):
    """Keep ``value`` under ``name`` in ``section``; safe with several notebooks open at once."""
    PATH.parent.mkdir(exist_ok=True)
    with FileLock(PATH.with_suffix(".lock")):
        content = read()
        content.setdefault(section, {})[name] = value
        with written_whole(PATH) as part:
            part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
