"""Text from outside: what steers a terminal, turns its order or cannot be seen goes; what is long is cut."""

from __future__ import annotations

import json
import unicodedata

import pytest

from pinscope.text import MOST_IN_A_LINE, encodable, error_line, escaped, one_line, quoted, visible

BIDI_CONTROLS = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
WRITTEN = set("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd") | {
    chr(number) for number in range(0x13430, 0x13440)
}
"""Signs of the category Cf that are drawn."""


PLACES = (
    range(0x10000),
    range(0x110B0, 0x110D0),
    range(0x13400, 0x13460),
    range(0x1D100, 0x1D200),
    range(0xE0000, 0xE0100),
)
"""Of Unicode, in which such signs are."""


def test_no_sign_that_steers_turns_or_hides_is_left() -> None:
    every = [chr(number) for numbers in PLACES for number in numbers]
    left = {sign for sign in every if visible(sign)}
    for sign in every:
        kind = unicodedata.category(sign)
        hidden = kind in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(sign) in BIDI_CONTROLS
        hidden = hidden or (kind == "Cf" and sign not in WRITTEN)
        assert not (hidden and sign in left and sign not in "\t\n"), f"U+{ord(sign):04X}"


@pytest.mark.parametrize("text", ["Pinned ÷ pageable → µs", "héllo Ünï 漢字 עברית العربية हिन्दी 🙂", "a\tb\nc"])
def test_what_can_be_read_stays(text: str) -> None:
    assert visible(text) == text


def test_what_utf_8_cannot_carry_is_a_question_mark() -> None:
    assert encodable("caf\udce9 \ud83d\ude42 ü🙂\n") == "caf? ?? ü🙂\n"


def test_one_line_is_one_line() -> None:
    assert one_line("a\nb\r\n\u2028 \u202ec\u2066\x1b[0m\t d\u200b") == "a b c[0m d"


def test_json_means_the_same_and_shows_nothing_strange() -> None:
    for text in ["\u202e", "\x9b\x7f", "\U000e0041\U0001d173", "\ud83d"]:
        written = escaped(json.dumps({"name": text}, ensure_ascii=False))
        assert visible(written) == written
        assert json.loads(written) == {"name": text}


def test_a_refused_value_is_quoted_cut_and_escaped() -> None:
    assert quoted("64 KiB") == "'64 KiB'"
    assert quoted(1.5) == "1.5"
    assert quoted("x" * 60) == repr("x" * 60)
    assert quoted("1" * 40_000) == f"'{'1' * 60}…' (40,000 characters)"
    assert quoted("\u202eBiK46") == "'\\u202eBiK46'"
    assert quoted(10**5000) == "a number of very many digits"
    assert len(quoted("\U000e0041" * 100)) < 100


def test_a_long_error_keeps_its_beginning_and_its_end() -> None:
    line = error_line(f"--interval: '{'1 ' * 120_000}' is not a number; 0.1 to 3600 is allowed")
    assert line.startswith("--interval: '1 1 1")
    assert line.endswith("is not a number; 0.1 to 3600 is allowed")
    assert len(line) <= MOST_IN_A_LINE
    assert error_line(f"{'/long' * 1000}: no such file") == f"{'/long' * 20}… no such file"
    assert error_line("short") == "short"
