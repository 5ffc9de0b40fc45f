"""A value as the text of a CSV cell."""

from __future__ import annotations

from typing import Any

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""As OWASP lists them, the full-width ones too: spreadsheets set to Japanese take them alike."""


def csv_cell(value: Any) -> str:
    """Floats with the digits that give back the same value, ``None`` as nothing, truth values ``true`` and ``false``.

    Text that a spreadsheet would take for a formula gets an apostrophe in front (OWASP, CSV Injection); numbers
    never do.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"'{value}" if value.startswith(_FORMULA_STARTS) else value
    return repr(value)
