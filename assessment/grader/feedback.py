"""What one learner gets: results for Gradescope and PrairieLearn, and feedback to read, with the accuracy curve."""

import json
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, select_autoescape

from assessment.grader.marks import PASS
from utils.files import written_whole

TEMPLATES = Path(__file__).with_name("templates")
WIDE = 2_000  # letters of one check's text


@cache
def pages():
    """Return the templates of the HTML pages; whatever is put into them is escaped."""
    return Environment(loader=FileSystemLoader(TEMPLATES), autoescape=select_autoescape())


def page(template, **facts):
    """Return an HTML page."""
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    return pages().get_template(template).render(style=style, **facts) + "\n"


def write_feedback(grade, task, folder):
    """Write all files about one ``grade`` into ``folder``; files that say the same already stay as they are."""
    picture = curve(grade, task)
    facts = {"grade": grade, "headline": headline(grade), "picture": picture}
    keep(folder / "results.json", as_json(gradescope(grade)))
    keep(folder / "prairielearn.json", as_json(prairielearn(grade)))
    keep(folder / "feedback.md", markdown(grade))
    keep(folder / "feedback.html", page("feedback.html", **facts))


def keep(path, text):
    """Write ``text`` to ``path``, whole or not at all, unless it stands there."""
    content = text.encode("utf-8", "replace")
    if not path.is_file() or path.read_bytes() != content:
        with written_whole(path) as part:
            part.write_bytes(content)


def as_json(content):
    return json.dumps(content, indent=2) + "\n"


def headline(grade):
    """Return the verdict in one line."""
    if not grade.is_graded:
        return f"{grade.verdict}: no attempt is used"
    distinction = " with distinction" if grade.verdict == PASS and grade.is_distinguished else ""
    return f"{grade.verdict}{distinction}: {grade.earned} of {grade.points} points"


def gradescope(grade):
    """Return what Gradescope reads as ``results.json``."""
    tests = [
        {
            "name": check.name,
            "score": check.earned,
            "max_score": check.points,
            "status": "passed" if check.is_passed else "failed",
            "output": check.told[:WIDE],
            "visibility": "visible",
        }
        for check in (grade.checks if grade.is_graded else ())
    ]
    said = "\n\n".join([headline(grade), *filter(None, [grade.cause])])
    return {"score": grade.earned, "output": said, "visibility": "visible", "execution_time": round(grade.seconds)} | {
        "tests": tests
    }


def prairielearn(grade):
    """Return what PrairieLearn's external grader reads; what is not gradable takes no attempt."""
    if not grade.is_graded:
        return {"gradable": False, "score": 0.0, "message": grade.cause, "format_errors": [grade.cause]}
    tests = [
        {
            "name": check.name,
            "points": check.earned,
            "max_points": check.points,
            "message": "passed" if check.is_passed else "failed",
            "output": check.told[:WIDE],
        }
        for check in grade.checks
    ]
    score = grade.earned / grade.points
    return {"gradable": True, "score": score, "message": headline(grade), "output": grade.cause, "tests": tests}


def markdown(grade):
    """Return the feedback as Markdown; what a script has said stands in code, so that none of it is markup."""
    parts = [f"# {plain(grade.learner)}", f"**{headline(grade)}**"]
    if grade.cause:
        parts += ["## First", fenced(grade.cause)]
    if grade.is_graded:
        rows = [f"| {one.name} | {one.earned} of {one.points} | {plain(one.told)} |" for one in grade.checks]
        parts += [
            "## What was looked at",
            "\n".join(["| check | points | what was seen |", "| --- | --- | --- |", *rows]),
        ]
    if grade.curve:
        rows = [f"| {epoch} | {accuracy:.4f} |" for epoch, accuracy in enumerate(grade.curve, start=1)]
        parts += ["## Accuracy", "\n".join(["| epoch | validation accuracy, as reported |", "| --- | --- |", *rows])]
    parts += [f"Right, but: {plain(remark)}" for remark in grade.remarks]
    return "\n\n".join(parts) + "\n"


def fenced(text):
    """Return ``text`` as a block of code that nothing in it can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def plain(text):
    """Return ``text`` on one line, with what Markdown would read as markup taken literally."""
    line = " ".join(text[:WIDE].split())
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>#|!" else letter for letter in line)


def curve(grade, task):
    """Return the accuracy curve as an HTML image, nothing where the run reported none."""
    if not grade.curve:
        return ""
    from utils.notebook import plots  # matplotlib takes a second to import

    epochs = list(range(1, len(grade.curve) + 1))
    ends = [1, max(2, len(epochs))]
    series = {"reported": (epochs, grade.curve)}
    series["target"] = (ends, [task.target] * 2)
    series["distinction"] = (ends, [task.distinction] * 2)
    told = f"Validation accuracy over {len(epochs)} epochs, from {grade.curve[0]:.3f} to {grade.curve[-1]:.3f};"
    told += f" the target is {task.target}, for a distinction {task.distinction}."
    picture = plots.lines(series, xlabel="epoch", ylabel="validation accuracy", title="As reported", alt=told)
    return picture._repr_mimebundle_()["text/html"]
