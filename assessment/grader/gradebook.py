"""What an instructor gets of a class: a gradebook, files for Canvas and Moodle, JUnit's XML, a page to read."""

import csv
import io
import re
from collections import Counter
from textwrap import shorten
from xml.etree import ElementTree

from assessment.grader.feedback import headline, keep, page
from assessment.grader.marks import FAIL, FAULT, NOT_GRADABLE, PASS, Grade
from assessment.grader.submissions import NOTHING

ASSIGNMENT = "Data-parallel training"
WIDE = 400  # letters of what is told in one line
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are wide ones
NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(grades, about, out, waiting=0):
    """Write all files about a class into the folder ``out``; ``waiting`` submissions are not graded yet.

    ``about`` maps a grade's ``key`` to the learner's row of the roster. What could not be graded has no points
    in Canvas' and Moodle's files: there an empty cell leaves a grade as it is.
    """
    keep(out / "gradebook.csv", table(gradebook(grades, about)))
    keep(out / "canvas.csv", table(canvas(grades, about)))
    keep(out / "moodle.csv", table(moodle(grades, about)))
    keep(out / "junit.xml", junit(grades))
    keep(out / "summary.html", summary(grades, about, waiting))


def table(rows):
    """Return ``rows`` as CSV, everything quoted; a cell that a spreadsheet would compute becomes text."""
    file = io.StringIO()
    writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\r\n")
    writer.writerows([[harmless(cell) for cell in row] for row in rows])
    return file.getvalue()


def harmless(cell):
    """Return ``cell`` as text that no spreadsheet takes for a formula; numbers stay numbers."""
    text = "" if cell is None else str(cell)
    if isinstance(cell, str) and text.lstrip(" \n\v\f\0").startswith(FORMULA):
        return f"'{text}"
    return text


def gradebook(grades, about):
    """Return the rows of the gradebook: one a learner, a column a check."""
    checks = [check.name for check in grades[0].checks] if grades else []
    names = ("name", "id", "email")
    yield ["learner", *names, "verdict", "distinction", "points", "of", "accuracy", "seconds", *checks, "first"]
    for grade in grades:
        person = [about.get(grade.key, {}).get(name, "") for name in names]
        accuracy = None if grade.accuracy is None else round(grade.accuracy, 4)
        points = [grade.earned, grade.points] if grade.is_graded else [None, grade.points]
        told = [check.earned if grade.is_graded else None for check in grade.checks]
        distinction = "yes" if grade.verdict == PASS and grade.is_distinguished else ""
        numbers = [*points, accuracy, round(grade.seconds), *told]
        yield [grade.learner, *person, grade.verdict, distinction, *numbers, first_line(grade)]


def canvas(grades, about):
    """Return the rows that Canvas imports into its gradebook."""
    points = grades[0].points if grades else 0
    yield ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", ASSIGNMENT]
    yield ["Points Possible", "", "", "", "", points]
    for grade in grades:
        person = about.get(grade.key, {})
        name = person.get("name") or grade.learner
        told = [person.get(key, "") for key in ("canvas_id", "id", "login", "section")]
        yield [name, *told, grade.earned if grade.is_graded else None]


def moodle(grades, about):
    """Return the rows that Moodle imports: those of learners with an ID number and an e-mail address."""
    yield ["ID number", "Email address", "Grade", "Feedback"]
    for grade in grades:
        person = about.get(grade.key, {})
        if person.get("id") and person.get("email"):
            said = "\n".join(filter(None, [headline(grade), grade.cause]))
            yield [person["id"], person["email"], grade.earned if grade.is_graded else None, said]


def junit(grades):
    """Return the class as JUnit's XML: a suite a learner, a case a check."""
    root = ElementTree.Element("testsuites", name=ASSIGNMENT)
    for grade in grades:
        failed = sum(not check.is_passed for check in grade.checks)
        counts = {"tests": len(grade.checks), "failures": 0, "errors": 0, "skipped": 0}
        counts[("failures" if grade.is_graded else "errors" if grade.verdict == FAULT else "skipped")] = failed
        told = {name: str(count) for name, count in counts.items()} | {"time": f"{grade.seconds:.0f}"}
        suite = ElementTree.SubElement(root, "testsuite", name=xml_text(grade.learner), **told)
        for check in grade.checks:
            case = ElementTree.SubElement(suite, "testcase", name=check.name, classname=xml_text(grade.learner))
            if grade.verdict == FAULT:
                ElementTree.SubElement(case, "error", message=grade.verdict).text = xml_text(grade.fault)
            elif not grade.is_graded:
                ElementTree.SubElement(case, "skipped", message=xml_text(first_line(grade)))
            elif not check.is_passed:
                ElementTree.SubElement(case, "failure", message=xml_text(check.told[:200])).text = xml_text(check.told)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def xml_text(text):
    """Return ``text`` without the characters that XML cannot hold."""
    return NO_XML.sub("\ufffd", text)


def summary(grades, about, waiting=0):
    """Return the page about the class; ``about`` and ``waiting`` as in ``write``."""
    graded = [grade for grade in grades if grade.is_graded]
    rows = []
    for at, check in enumerate(grades[0].checks if grades else ()):
        failed = [grade.checks[at].told for grade in graded if not grade.checks[at].is_passed]
        often = Counter(line.splitlines()[0][:160] for line in failed if line).most_common(1)
        rows.append({"name": check.name, "points": check.points, "failed": len(failed), "of": len(graded)})
        rows[-1]["often"] = often[0][0] if often else ""
    rows.sort(key=lambda row: -row["failed"])
    faults = [grade for grade in grades if grade.verdict == FAULT]
    told = [(grade, about.get(grade.key, {}).get("name", ""), first_line(grade)) for grade in grades]
    facts = {"told": told, "checks": rows, "faults": faults, "line": summary_line(grades), "waiting": waiting}
    return page("summary.html", picture=accuracies(graded), **facts)


def accuracies(grades):
    """Return a figure of the accuracies on hidden images, from the lowest to the highest, as HTML."""
    found = sorted(grade.accuracy for grade in grades if grade.accuracy is not None)
    if len(found) < 2:
        return ""
    from utils.notebook import plots  # matplotlib takes a second to import

    alt = f"Accuracy on hidden images of {len(found)} submissions, from {found[0]:.3f} to {found[-1]:.3f}."
    axes = {"xlabel": "submission, from the lowest accuracy on", "ylabel": "accuracy on hidden images"}
    series = {"accuracy": (list(range(1, len(found) + 1)), found)}
    return plots.lines(series, title="What the weights are worth", alt=alt, **axes)._repr_mimebundle_()["text/html"]


def summary_line(grades, out=None):
    """Return how many submissions have which verdict, and where the files are."""
    counts = Counter(grade.verdict for grade in grades)
    with_distinction = sum(grade.verdict == PASS and grade.is_distinguished for grade in grades)
    told = [f"{counts[verdict]} {verdict}" for verdict in (PASS, FAIL, NOT_GRADABLE, FAULT) if counts[verdict]]
    if with_distinction:
        told[0] += f" ({with_distinction} with distinction)"
    absent = sum(grade.cause == NOTHING for grade in grades)
    if absent:
        told = [f"{one} ({absent} handed in nothing)" if NOT_GRADABLE in one else one for one in told]
    where = f"; begin with {out / 'summary.html'}" if out else ""
    return f"{len(grades)} submissions: {', '.join(told)}{where}"


def first_line(grade: Grade):
    """Return on one line what a learner is to look at first: the step, and what was seen; or a remark."""
    lines = [line.strip() for line in grade.cause.splitlines() if line.strip()] or grade.remarks
    wanted = lines[:2] if lines and lines[0].endswith(":") else lines[:1]
    return shorten(" ".join(wanted), WIDE, placeholder=" …")
