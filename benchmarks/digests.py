"""What tells one program from another, in whatever version of Python it is asked."""

import ast
import hashlib


def digest(*trees):
    """Return twelve hexadecimal digits that stand for syntax trees: layout and comments do nothing.

    ``ast.dump`` tells of fields that only some versions of Python have. They are empty, so what is empty is left out.
    """
    return hashlib.sha256("\n".join(str(_plain(tree)) for tree in trees).encode()).hexdigest()[:12]


def _plain(value):
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = [(name, _plain(one)) for name, one in ast.iter_fields(value) if one is not None and one != []]
    return type(value).__name__, fields
