"""Text of strangers as a terminal, a browser and a spreadsheet may show it: nothing in it is obeyed.

Control characters move cursors, colour terminals and end lines; marks of direction show a text in another order than
the one in which it is read (Unicode Technical Report 36, Bidirectional Text Spoofing); letters without a width make two
names that look alike.
"""

import unicodedata

SHOWN = "\N{REPLACEMENT CHARACTER}"
# Controls, formats (directions and what has no width among them), halves of surrogate pairs, separators of lines.
OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def visible(text, kept="\n\t"):
    """Return ``text`` with every character that would be obeyed replaced, but for those in ``kept``."""

    def shown(letter):
        is_obeyed = unicodedata.category(letter) in OBEYED or unicodedata.bidirectional(letter) in DIRECTIONS
        return SHOWN if is_obeyed and letter not in kept else letter

    return text if text.isascii() and text.isprintable() else "".join(map(shown, text))


def visible_line(text):
    """Return ``text`` on one line: line breaks and tabs are replaced as well."""
    return visible(text, kept="")
