"""Make the labs from the solutions, and give a lab's starter back.

A lab is its solution with the starter's parts in the places of its steps (``regions``). It ends in a line with the hash
of all before it, so that a lab that a learner has changed is known and never overwritten.
"""

import ast
import hashlib
import re
from datetime import datetime
from pathlib import Path

from assessment.starters.regions import ROOT, Region, regions
from utils.errors import UserError
from utils.files import written_whole

SEAL = re.compile(r"# From solutions/\S+, unchanged while this number fits: ([0-9a-f]{12})\n\Z")
PARTS = "assessment/starters"


def starter(name, root=ROOT):
    """Return the starter's text for ``solutions/<name>.py``; the assignment's is a script of its own.

    Raises ``UserError`` where marks and parts do not pair.
    """
    own = Path(root, PARTS, f"{name}.txt").read_text(encoding="utf-8")
    if name == "assessment":
        return own
    lines = []
    for piece in regions(Path(root, "solutions", f"{name}.py").read_text(encoding="utf-8"), own):
        lines += piece.starter if isinstance(piece, Region) else [piece]
    return re.sub(r"\n\n\n(?= )", "\n\n", "\n".join(lines)) + "\n"  # an empty part leaves one blank line, not two


def sealed(text, name):
    """Return ``text`` with the line that tells whether it has been changed since."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return f"{text}# From solutions/{name}, unchanged while this number fits: {digest}\n"


def is_untouched(text):
    """Say whether ``text`` is a lab as it was made."""
    seal = SEAL.search(text)
    return bool(seal) and hashlib.sha256(text[: seal.start()].encode()).hexdigest()[:12] == seal[1]


def program_digest(text):
    """Return a digest of the program in ``text``, the same however it is laid out and commented; "" for a deep one."""
    try:
        return hashlib.sha256(ast.dump(ast.parse(text)).encode()).hexdigest()
    except RecursionError:
        return ""


def solution_digest(name, root=ROOT):
    """Return the digest of the program ``solutions/<name>.py``, None in a course that was handed out without it."""
    source = Path(root, "solutions", f"{name}.py")
    return program_digest(source.read_text(encoding="utf-8")) if source.exists() else None


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
            text = sealed(starter(source.stem, root), source.name)
        except UserError as problem:
            raise UserError(f"{source}: {problem}") from None
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
        part.write_text(sealed(starter(source.stem, root), source.name), encoding="utf-8")
    print(
        f"{target.name} is the starter again"
        + (f"; yours is kept beside it as {kept.parent.name}/{kept.name}" if kept else "")
    )
    return kept
