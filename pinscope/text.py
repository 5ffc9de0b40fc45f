"""Text that PinScope did not write (names of processes and files, parameters, other programs' errors) made fit to show.

Everything of the kind passes one of these functions on its way to a terminal, a page or a report.
"""

from __future__ import annotations

import re

MOST_QUOTED = 60
"""Characters of a refused value that a message repeats."""
MOST_IN_A_LINE = 600
"""Characters of one line of error."""
MOST_OF_ANOTHER = 200
"""Characters of another library's error, which repeats values whole."""
_LONG_WORD = re.compile(r"(\S{100})\S{50,}")
"""No name or path that somebody would read."""
_INVISIBLE = re.compile(
    "["
    r"\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters steer a terminal; tab and line feed are kept
    r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # order of writing (UAX 9): what is read is not what is there
    r"\u2028\u2029"  # break a line
    r"\ud800-\udfff"  # halves of a character: bytes that were no text
    # The rest takes no room (Default_Ignorable_Code_Point of DerivedCoreProperties.txt, Unicode 16; annotations).
    r"\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufe00-\ufe0f"
    r"\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    "]"
)


def visible(text: str) -> str:
    """``text`` without signs that steer a terminal, turn the order of what follows, or cannot be seen."""
    return _INVISIBLE.sub("", text)


def encodable(text: str) -> str:
    """``text`` with a question mark for each part that UTF-8 cannot carry: a byte of a file name that is no text."""
    return text.encode("utf-8", "replace").decode()


def escaped(text: str) -> str:
    r"""JSON text in which those signs stand as ``\uXXXX``: it means the same, and is safe to look at."""
    return _INVISIBLE.sub(_escape, text)


def _escape(sign: re.Match[str]) -> str:
    units = sign[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def one_line(text: str) -> str:
    """``text`` on one line, and only what is visible of it."""
    return " ".join(visible(text).split())


def sentence(text: str) -> str:
    """``text`` as a sentence of its own: a capital first, a full stop last."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")


def error_line(text: str, most: int = MOST_IN_A_LINE) -> str:
    """``text`` as one line of error: of a longer one the beginning and the end, where it says what is allowed."""
    line = _LONG_WORD.sub(r"\1…", one_line(text))
    return line if len(line) <= most else f"{line[: most // 2]} … {line[-most // 3 :]}"


def quoted(value: object) -> str:
    """A refused value as a message repeats it: in quotes if it is text, strange signs as escapes, cut where long."""
    if isinstance(value, int) and value.bit_length() > 4 * MOST_QUOTED:  # Python writes at most 4,300 digits
        return "a number of very many digits"
    whole = repr(value[: MOST_QUOTED + 1] if isinstance(value, str) else value)
    if len(whole) <= MOST_QUOTED + 2 and not (isinstance(value, str) and len(value) > MOST_QUOTED):
        return whole
    length = f" ({len(value):,} characters)" if isinstance(value, str) else ""
    return f"{whole[: MOST_QUOTED + 1]}…{whole[0] if length else ''}{length}"
