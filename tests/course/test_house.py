"""The house keeps its order: imports point down the floors, files stay short, dependencies agree."""

import ast
import json
import re
import subprocess
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

# Packages, and others that they may not import at all.
PACKAGES = {"utils": {"assessment", "tests", "benchmarks"}, "assessment": {"tests", "benchmarks"}}


@cache
def order(package):
    """Return the files and rooms of a package as README lists them: each may import from those before it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"^\| floor \| `{package}/` .*\n.*\n((?:\| \d .*\n)+)", text, re.MULTILINE)
    return [name for line in table.splitlines() for name in re.findall(r"`(\w+)/?`", line.split("|")[2])]


def tracked(pattern):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", pattern], cwd=ROOT, capture_output=True)
    return [path for name in listed.stdout.decode().split("\n") if name and (path := ROOT / name).is_file()]


def module(path):
    """Return the dotted name under which a file is imported."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path):
    """Return the dotted names of all that a file imports, also within its functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {
                one if (ROOT / Path(*one.split("."))).with_suffix(".py").is_file() else node.module for one in inside
            }
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def files_of(package):
    """Return a package's files, less what a learner writes on."""
    own = (path for path in tracked("*.py") if path.relative_to(ROOT).parts[0] == package)
    return [path for path in own if path != ROOT / "assessment/train.py"]


def unit(name):
    """Return the file or the room of a package that a dotted name belongs to; None for the package's own face."""
    return name.split(".")[1] if "." in name else None


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_down_the_floors(package):
    for path in files_of(package):
        own, names = unit(module(path)), imported(path)
        assert not {name.split(".")[0] for name in names} & PACKAGES[package], path
        if own is not None:
            assert own in order(package), f"{path} has no floor: give it one in README.md"
            taken = {unit(name) for name in names if name.split(".")[0] == package}
            assert taken <= {*order(package)[: order(package).index(own) + 1]}, path


@pytest.mark.parametrize("package", PACKAGES)
def test_within_a_room_no_file_imports_in_a_circle(package):
    files = {module(path): path for path in files_of(package)}
    graph = {name: {one for one in imported(path) if one in files and one != name} for name, path in files.items()}
    TopologicalSorter(graph).prepare()


def test_tests_take_from_their_own_room_and_from_support_alone():
    files = {path.stem: path for path in files_of("tests")}
    assert len(files) == len(files_of("tests")), "two files of one name: pytest takes them for the same"
    for path in files.values():
        for name in {name for name in imported(path) if name in files}:
            own, other = path.parent, files[name].parent
            assert name == "conftest" or other.name == "support" or (own == other != ROOT / "tests"), (path, name)


@pytest.mark.parametrize("package", PACKAGES)
def test_readme_lists_every_file_and_room_and_each_room_says_what_it_is(package):
    rooms = {path.parent for path in files_of(package) if path.parent.parent == ROOT / package}
    files = {path.stem for path in files_of(package) if path.parent == ROOT / package} - {"__init__"}
    assert sorted(order(package)) == sorted(files | {room.name for room in rooms})
    for room in rooms:
        assert ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))), room


@pytest.mark.parametrize("path", tracked("*.py"), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_holds_one_idea(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 310


def test_requirements_lock_every_dependency_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["test"]]
    locked = {}
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9_.-]+)==([^ ;]+)", line):
            locked.setdefault(match[1].lower(), []).append(match[2])
    for requirement in map(Requirement, wanted):
        versions = locked.get(requirement.name.lower(), [])
        assert versions, f"{requirement.name} is not in requirements.txt: run make lock"
        assert all(version in requirement.specifier for version in versions), requirement


def test_requirements_hold_no_other_direct_dependency():
    """What the lock attributes to the project itself is exactly what the project names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {Requirement(text).name for text in project["dependencies"] + project["optional-dependencies"]["test"]}
    direct, name = set(), None
    for line in (ROOT / "requirements.txt").read_text().splitlines():
        name = line.split("==")[0] if "==" in line else name
        if "lockstep (pyproject.toml)" in line:
            direct.add(name)
    assert direct == wanted


def test_the_conda_environment_takes_the_same_lock():
    lines = [line.strip() for line in (ROOT / "environment.yml").read_text().splitlines()]
    packages = [line[2:] for line in lines if line.startswith("- ")]
    assert packages == ["conda-forge", "python>=3.11", "pip", "pip:", "-r requirements.txt", "-e ."]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert SpecifierSet(project["requires-python"]) == SpecifierSet(">=3.11")


def test_nothing_names_a_package_index_or_a_place_on_this_machine():
    words = re.compile(r"index-url|find-links|pypi\.org|pythonhosted|file:///|/root/|/home/[a-z]|/wo" + "rk/")
    allowed = {ROOT / "tests/course/test_house.py", ROOT / "Makefile"}  # the lock command says --no-emit-index-url
    for pattern in ("*.py", "*.txt", "*.toml", "*.yml", "*.md", "*.ipynb", "*.json", ".ci/run"):
        for path in set(tracked(pattern)) - allowed:
            assert not words.search(path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("path", tracked("*.ipynb"), ids=lambda path: path.stem)
def test_notebooks_are_committed_without_outputs_and_with_short_cells(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"] and cell["execution_count"] is None
            source = "".join(cell["source"])
            assert len(cell["source"]) <= 20, source
            assert not re.search(r";\s*\S", re.sub(r"([\"']).*?\1", "", source)), source


def test_ci_runs_the_parts_of_test_all_and_nothing_twice():
    (parts,) = re.findall(r"^test-all: (.*?) ##", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    (called,) = re.findall(r"^for part in (.*); do$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE)
    assert called == f"setup {parts}"
