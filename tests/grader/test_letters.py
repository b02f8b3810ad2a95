"""What strangers say is shown, and obeyed by nobody."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from assessment.grader.letters import visible, visible_line
from assessment.grader.marks import FAIL, Check, Grade


@given(st.text())
def test_no_control_character_and_no_mark_of_direction_is_left(text):
    for letter in visible(text):
        assert letter in "\n\t" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs")
    assert len(visible_line(text).splitlines()) <= 1 and len(visible(text)) == len(text)


@given(st.text(alphabet=st.characters(categories=("L", "N", "P", "S"))))
def test_letters_of_all_languages_stay(text):
    assert visible(text) == text


def test_all_that_is_said_of_a_submission_is_shown_so():
    esc, turned = "\x1b[2J", "\u202e"
    said = Grade(esc, "x", FAIL, f"a\n{turned}b", [Check("c", 1, told=f"\0{esc}")], remarks=[turned], fault=esc)
    told = repr(said.shown().kept())
    assert "a\\n\ufffdb" in told
    assert not any(one in told for one in ("\\x1b", "\\x00", turned))
