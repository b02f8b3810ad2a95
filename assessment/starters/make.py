"""Make the labs from the solutions: one source holds both variants.

    python -m assessment.starters

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

import ast
import hashlib
import re
from datetime import datetime
from pathlib import Path

from utils.errors import UserError
from utils.files import written_whole

ROOT = Path(__file__).resolve().parents[2]
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


def is_solution(text, name, root=ROOT):
    """Say whether ``text`` is the program of ``solutions/<name>.py``, however it is laid out and commented."""
    source = Path(root, "solutions", f"{name}.py")
    if not source.exists():
        return False
    return ast.dump(ast.parse(text)) == ast.dump(ast.parse(solution(source.read_text(encoding="utf-8"))))


def starters(root=ROOT):
    """Yield each solution under ``root`` and the starter that is made from it: labs, and the assignment."""
    for source in sorted(Path(root, "solutions").glob("[0-9]*.py")):
        yield source, Path(root, "labs", source.name)
    yield Path(root, "solutions/assessment.py"), Path(root, "assessment/train.py")


def starter_of(name, root=ROOT):
    """Return where the starter made from ``solutions/<name>.py`` lies, which a learner writes on."""
    return next(target for source, target in starters(root) if source.stem == name)


def make_labs(root=ROOT):
    """Write every starter under ``root`` and return the paths of those kept because a learner changed them."""
    kept = []
    for source, target in starters(root):
        if not source.exists():
            continue  # a course may be handed out without the assignment's solution
        try:
            text = sealed(starter(source.read_text(encoding="utf-8")), source.name)
        except UserError as problem:
            raise UserError(f"{source}, {problem}") from None
        old = target.read_text(encoding="utf-8", errors="replace") if target.exists() else None
        if old == text:
            continue
        if old is not None and not is_untouched(old):
            kept.append(target.relative_to(root))
            continue
        with written_whole(target) as part:
            part.write_text(text, encoding="utf-8")
    return kept


def reset(lab, root=ROOT):
    """Give back the starter of ``lab`` (``03``, or ``assessment``); keep the file that was there beside it, dated.

    Returns the path of the kept file, None where the lab was as it is made. Raises ``UserError`` where there
    is no such lab.
    """
    wanted, kept = str(lab).split("_")[0].zfill(2), None
    found = [pair for pair in starters(root) if pair[0].stem.split("_")[0] == wanted]
    if not found:
        raise UserError(f"there is no lab {lab}")
    ((source, target),) = found
    if not source.exists():
        raise UserError(f"{source} is not here, so {target.name} cannot be made anew: take it from where the course is")
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
