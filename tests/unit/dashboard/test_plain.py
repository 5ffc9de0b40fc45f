"""Text from outside stays text."""

from __future__ import annotations

import re
import string

from pinscope.dashboard.widgets import plain, prose
from pinscope.text import one_line

JOINER = "\N{WORD JOINER}"
EVERY = "".join(chr(number) for number in range(0x3000) if chr(number) != JOINER)
"""Signs, each beside those that follow it in Unicode."""


def seen(markdown: str) -> str:
    """What CommonMark makes of it (section 2.4), without the invisible joiners."""
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", markdown).replace(JOINER, "")


def test_it_reads_as_it_was_written_on_one_line() -> None:
    assert seen(plain(EVERY)) == one_line(EVERY)


def test_no_sign_that_markdown_could_act_on_is_left() -> None:
    signs = f"[{re.escape(string.punctuation)}]"
    assert not re.search(signs, re.sub(rf"\\{signs}", "", plain(EVERY)))


def test_icons_and_addresses_are_broken_up() -> None:
    for text in [":material/home:", ":red[x]", ":smile:", "http://evil.example", "www.x.example"]:
        assert JOINER in plain(text) or "\\[" in plain(text)


def test_no_line_ends_between_a_number_and_its_unit() -> None:
    for quantity in ["17.4 ms", "2 MiB", "95.2 GB/s", "85.7 %", "± 3.1 %", "1.20 ×"]:
        assert " " not in seen(prose(quantity))
        assert seen(prose(f"{quantity} of 3 steps")).endswith(" of 3 steps")
