"""The error tree: drawn in its docstring, and one exit code each."""

from __future__ import annotations

import re

from pinscope import errors


def _tree(kind: type[errors.PinScopeError]) -> list[type[errors.PinScopeError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _tree(child))]


ALL = [kind for kind in _tree(errors.PinScopeError) if kind.__module__ == errors.__name__]


def test_the_docstring_draws_every_class_in_its_place() -> None:
    assert errors.__doc__
    drawn = re.findall(r"^    ([│ ]*)(?:[├└]── )?([A-Z]\w+)", errors.__doc__, re.MULTILINE)
    depths = [(name, len(indent) // 4 + (name != "PinScopeError")) for indent, name in drawn]
    assert depths == [(kind.__name__, len(kind.__mro__) - len(errors.PinScopeError.__mro__)) for kind in ALL]


def test_the_drawn_exit_code_is_the_real_one() -> None:
    for kind in ALL:
        assert errors.__doc__
        drawn = re.search(rf"{kind.__name__} +exit (\d+)", errors.__doc__)
        parent = kind.__mro__[1]
        expected = int(drawn[1]) if drawn else parent.exit_code  # type: ignore[attr-defined]
        assert kind.exit_code == expected
        assert kind.exit_code in {1, 2, 3, 130}


def test_an_error_shows_the_line_it_was_given_and_nothing_else() -> None:
    for kind in ALL:
        assert kind.__doc__
        assert str(kind("one plain line")) == "one plain line"
