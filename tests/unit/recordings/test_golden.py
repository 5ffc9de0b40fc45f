"""What this version reads in each recording is what it read before."""

from __future__ import annotations

from difflib import unified_diff

import pytest

from tests.data.golden_text import FOLDER, golden_text
from tests.data.recorded import RECORDED, document


@pytest.mark.xdist_group("readings")
def test_a_recording_reads_as_before() -> None:
    for name in RECORDED:
        read = golden_text(document(name))
        before = (FOLDER / f"{name}.txt").read_text(encoding="utf-8")
        changed = list(unified_diff(before.splitlines(), read.splitlines(), "before", "now", n=0, lineterm=""))
        assert not changed, "\n".join((*changed[:60], "where this is wanted: scripts/write-verdicts"))


def test_every_recording_has_its_text_and_no_text_is_left_over() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(RECORDED)
