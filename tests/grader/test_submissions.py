"""What was handed in is read without being trusted."""

import bz2
import io
import lzma
import os
import tarfile
import zipfile

import pytest

from assessment.grader.submissions import find, left_aside, read_roster
from utils.errors import UserError

GOOD = b"print('here')\n"


def problems(folder, **options):
    return {one.learner: one.problem for one in find(folder, 64, **options)}


def test_folders_files_and_archives_are_found(tmp_path):
    (tmp_path / "anna").mkdir()
    (tmp_path / "anna/train.py").write_bytes(GOOD)
    (tmp_path / "bob.py").write_bytes(GOOD)
    with zipfile.ZipFile(tmp_path / "carla.zip", "w") as archive:
        archive.writestr("course/assessment/train.py", GOOD)
        archive.writestr("course/assessment/old/train.py", b"older")
        archive.writestr("course/notes.txt", b"x" * 10)
        archive.writestr("__MACOSX/assessment/train.py", b"what an archiver knows of it")
    for name, mode in (("dora.tar.gz", "w:gz"), ("emil.tar.xz", "w:xz"), ("fred.tbz2", "w:bz2"), ("gina.tar", "w")):
        with tarfile.open(tmp_path / name, mode) as archive:
            told = tarfile.TarInfo("train.py")
            told.size = len(GOOD)
            archive.addfile(told, io.BytesIO(GOOD))
    found = find(tmp_path, 64)
    assert [one.learner for one in found] == ["anna", "bob", "carla", "dora", "emil", "fred", "gina"]
    assert all(one.script == GOOD and one.problem is None for one in found)


def test_every_file_is_a_learners_or_named(tmp_path):
    for name in (".anna.py", "_bob.py", "carla.rar", "dora", ".DS_Store", "._anna.py", "roster.csv", "emil.doc"):
        (tmp_path / name).write_bytes(GOOD)
    (tmp_path / "__MACOSX").mkdir()
    roster = tmp_path / "roster.csv"
    roster.write_text("learner\nemil\ndora\n")
    found = {one.learner: one for one in find(tmp_path, 64, roster=roster)}
    assert found.keys() == {".anna", "_bob", "carla", "dora", "emil"}
    assert found[".anna"].script == found["_bob"].script == GOOD
    assert all("is not read" in found[name].problem for name in ("carla", "dora", "emil"))
    told = left_aside(tmp_path, roster)
    assert all(name in told for name in (".DS_Store", "._anna.py", "__MACOSX", "roster.csv"))


def test_no_name_takes_the_file_of_another(tmp_path):
    """Whoever calls himself as the files of another are named gets files of his own; so do Anna and anna."""
    names = ["a b", "Anna", "anna"]
    for name in names:
        (tmp_path / f"{name}.py").write_bytes(GOOD)
    (key,) = [one.key for one in find(tmp_path, 64) if one.learner == "a b"]
    (tmp_path / f"{key}.py").write_bytes(GOOD)
    keys = [one.key.lower() for one in find(tmp_path, 64)]
    assert len(keys) == len(set(keys)) == 4


def test_a_name_says_nothing_to_a_terminal_or_a_log(tmp_path):
    for name in ("a\nb: pass", "c\x1b[2J", "d\u202ee"):
        (tmp_path / f"{name}.py").write_bytes(GOOD)
    assert [one.learner for one in find(tmp_path, 64)] == ["a\ufffdb: pass", "c\ufffd[2J", "d\ufffde"]


def tar_with(**facts):
    def make(path):
        with tarfile.open(path, "w") as archive:
            told = tarfile.TarInfo("train.py")
            for name, value in facts.items():
                setattr(told, name, value)
            archive.addfile(told)

    return "x.tar", make


def zip_with(*names, content=GOOD, method=zipfile.ZIP_STORED):
    def make(path):
        with zipfile.ZipFile(path, "w", method) as archive:
            for name in names:
                archive.writestr(name, content)

    return "x.zip", make


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (("x.zip", lambda path: path.write_bytes(b"PK nonsense")), "cannot be read"),
        (("x.tar", lambda path: path.write_bytes(b"nonsense")), "cannot be read"),
        (("x.py", lambda path: path.symlink_to("/etc/passwd")), "link"),
        (("x.ipynb", lambda path: path.write_text("{}")), "'x.ipynb' is not read"),
        (("x.7z", lambda path: path.write_bytes(b"7z")), "'x.7z' is not read"),
        (("x.py.txt", lambda path: path.write_bytes(GOOD)), "'x.py.txt' is not read"),
        (("x.tar.xz", lambda path: path.write_bytes(b"nonsense")), "cannot be read"),
        (("x.tar.bz2", lambda path: path.write_bytes(bz2.compress(bytes(60_000_000)))), "more than 50000 kB"),
        (("x.tar.xz", lambda path: path.write_bytes(lzma.compress(bytes(60_000_000)))), "more than 50000 kB"),
        (("x", lambda path: path.mkdir()), "no train.py in the folder, which is empty"),
        (("x", lambda path: (path.mkdir(), (path / "train (1).py").touch())), "it holds 'train (1).py'"),
        (zip_with("a.py"), "holds no train.py"),
        (zip_with("a/train.py", "b/train.py"), "holds 2 train.py"),
        (zip_with("../train.py"), "leads out of it"),
        (zip_with("train.py", "..\\..\\x"), "leads out of it"),
        (zip_with("train.py", "/etc/x"), "leads out of it"),
        (zip_with("train.py", content=bytes(10**8), method=zipfile.ZIP_DEFLATED), "more than 64 kB"),
        (zip_with("train.py", *(f"{at}.txt" for at in range(2_001))), "more than 2000 files"),
        (tar_with(type=tarfile.SYMTYPE, linkname="/etc/passwd"), "a link or no file"),
        (tar_with(type=tarfile.LNKTYPE, linkname="../x"), "a link or no file"),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_reason(tmp_path, made, told):
    name, make = made
    make(tmp_path / name)
    (problem,) = problems(tmp_path).values()
    assert told in problem


def test_a_pipe_or_a_linked_folder_does_not_hang(tmp_path):
    (tmp_path / "x").mkdir()
    os.mkfifo(tmp_path / "x/train.py")
    (tmp_path / "y").symlink_to("/etc")
    found = problems(tmp_path)
    assert "no file" in found["x"] and "link" in found["y"]


def test_every_name_has_a_file_of_its_own(tmp_path):
    names = [b"a b", b"a_b", b"a/../b".replace(b"/", b"_"), b"jos\xe9", b"jos\xe8", "ж".encode(), b"-x", b"=x"]
    for name in names:
        (tmp_path / os.fsdecode(name + b".py")).write_bytes(GOOD)
    keys = [one.key for one in find(tmp_path, 64)]
    assert len(set(keys)) == len(names) and all(key.isascii() and "/" not in key and key[0] != "." for key in keys)


def test_who_is_on_the_roster_alone_has_a_row(tmp_path):
    (tmp_path / "anna.py").write_bytes(GOOD)
    roster = tmp_path / "roster.csv"
    roster.write_text("\ufefflearner,id,email\nanna,1,a@x.org\nbob,2,b@x.org\n", encoding="utf-8")
    found = {one.learner: one for one in find(tmp_path, 64, roster=roster)}
    assert found["anna"].about["id"] == "1" and found["anna"].problem is None
    assert found["bob"].problem == "nothing was handed in" and found["bob"].about["email"] == "b@x.org"


def test_bad_folders_and_rosters_are_told_in_a_line(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        find(tmp_path / "nowhere", 64)
    (tmp_path / "r.csv").write_text("")
    with pytest.raises(UserError, match=r"no column learner.*: none"):
        read_roster(tmp_path / "r.csv")
    (tmp_path / "r.csv").write_text("name\nx\n")
    with pytest.raises(UserError, match="no column learner"):
        read_roster(tmp_path / "r.csv")
    (tmp_path / "r.csv").write_text("learner;id\nanna;1\n")
    with pytest.raises(UserError, match="divided by commas: learner;id"):
        read_roster(tmp_path / "r.csv")
    (tmp_path / "r.csv").write_text("id,learner\n1,anna\n2\n")
    with pytest.raises(UserError, match="has no learner in line 3"):
        read_roster(tmp_path / "r.csv")
    (tmp_path / "r.csv").write_text("learner,id\nanna,1\nanna,2\n")
    with pytest.raises(UserError, match="has anna twice"):
        read_roster(tmp_path / "r.csv")
    for rows in ("learner,id\n ,1\n", 'learner\n""\n'):
        (tmp_path / "r.csv").write_text(rows)
        with pytest.raises(UserError, match="has no learner in line 2"):
            read_roster(tmp_path / "r.csv")
    (tmp_path / "r.csv").write_text('learner,name\nanna,"Anna\nbob,Bob\ncleo,Cleo\n')
    with pytest.raises(UserError, match="cannot be read as CSV"):
        read_roster(tmp_path / "r.csv")
    (tmp_path / "r.csv").write_text("learner\nanna\n", encoding="utf-16")
    with pytest.raises(UserError, match="is not in UTF-8: save it"):
        read_roster(tmp_path / "r.csv")
    (tmp_path / "r.csv").write_text("learner,name\n")
    assert read_roster(tmp_path / "r.csv") == {}
    with pytest.raises(UserError, match=r"none.csv cannot be read as CSV \(No such file or directory\)"):
        read_roster(tmp_path / "none.csv")


def test_who_hands_in_twice_delays_nobody(tmp_path):
    (tmp_path / "anna.py").write_bytes(GOOD)
    (tmp_path / "anna").mkdir()
    (tmp_path / "bob.py").write_bytes(GOOD)
    assert problems(tmp_path) == {"anna": "it was handed in twice, as a folder and as a file", "bob": None}


def test_a_row_without_a_name_is_found_by_its_line(tmp_path):
    (tmp_path / "roster.csv").write_text("learner,id\n\nanna,1\n\n,2\n")
    with pytest.raises(UserError, match="no learner in line 5"):
        read_roster(tmp_path / "roster.csv")
    (tmp_path / "roster.csv").write_text("learner,id\n\nanna,1\n")
    assert read_roster(tmp_path / "roster.csv") == {"anna": {"learner": "anna", "id": "1"}}


def test_a_roster_that_can_be_read_once_alone_is_refused(tmp_path):
    os.mkfifo(tmp_path / "roster.csv")
    with pytest.raises(UserError, match=r"roster.csv is a pipe"):
        read_roster(tmp_path / "roster.csv")


def test_a_folder_or_nothing_in_the_place_of_the_script_is_not_graded(tmp_path):
    (tmp_path / "anna/train.py").mkdir(parents=True)
    (tmp_path / "bob.py").write_bytes(b" \n")
    with zipfile.ZipFile(tmp_path / "carla.zip", "w") as archive:
        archive.mkdir("train.py")
    told = problems(tmp_path)
    assert told["anna"] == "train.py is no file" and told["bob"] == "train.py is empty"
    assert told["carla"] == "train.py in the archive is a folder; hand in the file itself"


def test_nobody_gets_the_files_of_another_by_calling_himself_so(tmp_path):
    (tmp_path / "José.py").write_bytes(GOOD)
    (own,) = [one.key for one in find(tmp_path, 64)]
    for taker in (own, own.lower(), own.upper()):
        (tmp_path / f"{taker}.py").write_bytes(GOOD)
    keys = {one.learner: one.key for one in find(tmp_path, 64)}
    assert keys["José"] == own and len({one.lower() for one in keys.values()}) == len(keys) == 4
