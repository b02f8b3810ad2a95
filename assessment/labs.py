"""Make the labs from the solutions: one source holds both variants.

    python -m assessment.labs

In ``solutions/NN_name.py`` a region that differs looks like this (the first line may also be
``# [step 3: exact validation]``, which names one of the lab's steps):

    # [solution]
    code of the solution
    # [starter]
    #: code that the learner starts with
    # [end]

A lab ends in a line with the hash of all before it, so that a lab that a learner has changed is known
and never overwritten.
"""

import hashlib
import re
import sys
from datetime import datetime
from pathlib import Path

from utils.errors import UserError, one_line_errors
from utils.files import written_whole

ROOT = Path(__file__).resolve().parent.parent
OPEN = re.compile(r"\s*# \[(solution|step \d+: .+)\]$")
SEAL = re.compile(r"# From solutions/\S+, unchanged while this number fits: ([0-9a-f]{12})\n\Z")


def starter(source):
    """Return the lab's text for a solution's ``source``. Raises ``UserError`` where markers do not pair."""
    return _variant(source, "starter")


def solution(source):
    """Return the solution's text for ``source``, without the markers and the starter's code."""
    return _variant(source, "solution")


def _variant(source, wanted):
    lines, where = [], None  # where: None outside a region, else the half that the line stands in
    for number, line in enumerate(source.splitlines(), start=1):
        mark, previous = line.strip(), where
        if OPEN.match(line):
            expected, where = None, "solution"
        elif mark == "# [starter]":
            expected, where = "solution", "starter"
        elif mark == "# [end]":
            expected, where = "starter", None
        else:
            if where == "starter" and not mark.startswith("#:"):
                raise UserError(f"line {number}: a starter line begins with '#:', found {mark!r}")
            if where in (None, wanted):
                lines.append(re.sub(r"#: ?", "", line, count=1).rstrip() if where == "starter" else line)
            continue
        if previous != expected:
            raise UserError(f"line {number}: {mark} stands where none may: regions go [solution], [starter], [end]")
    if where is not None:
        raise UserError("the last region has no [end]")
    return "\n".join(lines) + "\n"


def sealed(text, name):
    """Return ``text`` with the line that tells whether it has been changed since."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{text}# From solutions/{name}, unchanged while this number fits: {digest}\n"


def is_untouched(text):
    """Say whether ``text`` is a lab as it was made."""
    seal = SEAL.search(text)
    return bool(seal) and hashlib.sha256(text[: seal.start()].encode()).hexdigest()[:12] == seal[1]


def make_labs(solutions=ROOT / "solutions", labs=ROOT / "labs"):
    """Write ``labs/`` from ``solutions/`` and return the names of labs kept because a learner changed them."""
    kept = []
    for source in sorted(Path(solutions).glob("[0-9]*.py")):
        target = Path(labs) / source.name
        try:
            text = sealed(starter(source.read_text(encoding="utf-8")), source.name)
        except UserError as problem:
            raise UserError(f"{source}, {problem}") from None
        old = target.read_text(encoding="utf-8", errors="replace") if target.exists() else None
        if old == text:
            continue
        if old is not None and not is_untouched(old):
            kept.append(source.name)
            continue
        with written_whole(target) as part:
            part.write_text(text, encoding="utf-8")
    return kept


def reset(lab, labs=ROOT / "labs"):
    """Give back the starter of ``lab`` (``03``) and keep the file that was there beside it, named by date and time.

    Returns the path of the kept file, None where the lab was as it is made. Raises ``UserError`` where there
    is no such lab.
    """
    number = str(lab).split("_")[0].zfill(2)
    source = next((ROOT / "solutions").glob(f"{number}_*.py"), None)
    if source is None:
        raise UserError(f"there is no lab {lab}")
    target, kept = Path(labs) / source.name, None
    if target.exists() and not is_untouched(target.read_text(encoding="utf-8", errors="replace")):
        kept = target.with_name(f"{target.stem}-{datetime.now():%Y-%m-%d-%H%M%S}.py")
        target.rename(kept)
    with written_whole(target) as part:
        part.write_text(sealed(starter(source.read_text(encoding="utf-8")), source.name), encoding="utf-8")
    print(
        f"{target.name} is the starter again"
        + (f"; yours is kept beside it as {kept.parent.name}/{kept.name}" if kept else "")
    )
    return kept


def main():
    """Make the labs and say which were left alone."""
    for name in make_labs():
        print(f"labs/{name} has been changed by hand and stays as it is", file=sys.stderr)


if __name__ == "__main__":
    with one_line_errors():
        main()
