"""Which ways to reach host data are measured where managed memory does not work, and which sizes make sense."""

from __future__ import annotations

from typing import Any, cast

import pytest

from pinscope.errors import InvalidParameter, NotPossible
from pinscope.experiments.access.experiment import Access, AccessParams, Reach, _left_out
from pinscope.experiments.contract import possible
from pinscope.lab.harness import Harness

MIB = 2**20


class Gpu:
    """Stands for an accessor: what a GPU says of managed memory, its free bytes, and why it cannot discard."""

    def __init__(self, reason: str | None = None, free: int = 2**40, no_discard: str | None = None) -> None:
        self._reason, self._free, self._no_discard = reason, free, no_discard

    def why_not_managed(self) -> str | None:
        return self._reason

    def why_not_discard(self) -> str | None:
        return self._no_discard

    def free_bytes(self) -> int:
        return self._free


def measured(gpu: Gpu, **overrides: Any) -> tuple[list[Reach], list[str]]:
    """What is measured there, and the notes."""
    notes: list[str] = []
    params = AccessParams.preset("cuda", quick=True).with_overrides(overrides)
    left_out = _left_out(params, cast("Any", gpu))
    cases = possible(Access().cases(params), Harness(note=notes.append), left_out, "ways=copy,mapped")
    return [case.what for case in cases], notes


def ways(gpu: Gpu, **overrides: Any) -> tuple[set[str], list[str]]:
    cases, notes = measured(gpu, **overrides)
    return {way for _, _, way in cases}, notes


def test_where_managed_memory_works_every_way_is_measured() -> None:
    assert ways(Gpu()) == ({"copy", "copy_part", "mapped", "managed", "prefetched"}, [])


def test_where_it_does_not_the_others_are_and_a_note_says_why() -> None:
    measured_ways, notes = ways(Gpu(reason="it does not migrate"))
    assert measured_ways == {"copy", "copy_part", "mapped"}
    assert notes == ["Left out: managed; prefetched. it does not migrate"]


@pytest.mark.parametrize(
    ("gpu", "reason"), [(Gpu(reason="it does not migrate"), "it does not migrate"), (Gpu(free=64 * MIB), "a quarter")]
)
def test_where_nothing_is_left_to_measure_the_run_says_why_and_what_can_be(gpu: Gpu, reason: str) -> None:
    with pytest.raises(NotPossible, match=rf"{reason}.*--set ways=copy,mapped$"):
        measured(gpu, ways="managed,prefetched")


@pytest.mark.parametrize(("size", "spacings"), [("256", "64"), ("4KiB", "1,2"), ("128KiB", "64")])
def test_data_without_a_block_for_the_widest_spacing_is_refused(size: str, spacings: str) -> None:
    preset = AccessParams.preset("cuda", quick=True)
    with pytest.raises(InvalidParameter, match=r"^size: it takes at least \d+ KiB, a block of 4 KiB for spacing"):
        preset.with_overrides({"size": size, "spacings": spacings})
    assert preset.with_overrides({"size": "256KiB", "spacings": "64"}).size == MIB // 4


def test_a_part_is_copied_only_where_there_is_one_and_a_copy_call_can_take_it() -> None:
    params = AccessParams.preset("cuda", quick=True)
    cases = [case.what for case in Access().cases(params)]
    parts = {(pattern, spacing) for pattern, spacing, way in cases if way == "copy_part"}
    assert parts == {("stream_read", 16), ("stream_write", 16)}
    assert not Access().cases(params.with_overrides({"ways": "copy_part", "patterns": "random_read"}))


def test_where_content_cannot_be_discarded_prefetching_of_what_is_overwritten_is_left_out_with_the_reason() -> None:
    every, _ = measured(Gpu())
    kept, notes = measured(Gpu(no_discard="the driver is old"))
    assert set(every) - set(kept) == {("stream_write", 1, "prefetched"), ("scatter_write", 1, "prefetched")}
    assert notes == ["Left out: prefetched, where all data is written. the driver is old"]
