"""Which memory a copy's address lies in, and what is said of copies that were counted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pinscope.live.copies import LITTLE_BYTES, CopyCounter, host_ranges, judged
from pinscope.probes.proc import Proc
from pinscope.probes.uprobes import Lost, TraceEvent
from pinscope.records.registration import Copies, CopyMemory, CopySum
from pinscope.report.snapshot_facts import copy_facts, tracing_facts
from tests.data.synthetic_snapshot import GIB, MIB, TAKEN_AT, holder

MAPS = Path(__file__).parents[2] / "data" / "proc" / "h200-holders" / "proc" / "731" / "maps"


def test_each_address_of_an_h200_s_process_has_its_kind() -> None:
    ranges = host_ranges(MAPS.read_text())
    kinds = {
        0x7F7A18000000: "pinned",  # 65 MiB of cudaHostAlloc
        0x7F7A1C100FFF: "pinned",
        0x7F7A1C101000: None,  # address space behind it that CUDA keeps for GPU memory
        0x7F7A3E600000: "pinned",  # driver memory
        0x204A00000: "managed",
        0x5620F7900000: "host",  # the heap
        0: None,
        2**47: None,
    }
    assert {address: ranges.at(address) for address in kinds} == kinds


def test_ordinary_shared_memory_is_not_pinned() -> None:
    ranges = host_ranges("7f0000001000-7f0000003000 rw-s 00000000 00:01 9   /dev/zero (deleted)\n")
    assert ranges.at(0x7F0000001000) == "host"


def copies(*sums: tuple[CopyMemory, int, int], uncounted: int = 0, lost: int = 0) -> Copies:
    """Copies to a GPU: memory, the largest size, and how many."""
    return Copies(
        since=TAKEN_AT,
        seconds=2.0,
        sums=tuple(
            CopySum(call="cuMemcpyHtoD_v2", direction="h2d", memory=memory, most_bytes=most, count=count,
                    bytes=most * count)
            for memory, most, count in sums
        ),
        uncounted_calls=uncounted,
        lost_calls=lost,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("before", "pageable", "unknown", "bounds"),
    [
        (None, 0, GIB + 3 * MIB, {"pageable_bytes": "at_least", "pinned_bytes": "at_least"}),
        (LITTLE_BYTES, GIB + 3 * MIB, 0, {"pageable_bytes": "at_most", "pinned_bytes": "at_least"}),
        (256 * MIB, GIB, 3 * MIB, {"pageable_bytes": "at_least", "pinned_bytes": "at_least"}),
        (256 * MIB + 1, 0, GIB + 3 * MIB, {"pageable_bytes": "at_least", "pinned_bytes": "at_least"}),
    ],
)  # fmt: skip
def test_memory_is_pageable_where_not_so_much_can_have_been_registered_before(
    before: int | None, pageable: int, unknown: int, bounds: dict[str, str]
) -> None:
    seen = judged(copies(("pinned", 4 * MIB, 2), ("unknown", MIB, 3), ("unknown", GIB, 1)), before)
    assert (seen.pinned_bytes, seen.pageable_bytes, seen.unknown_bytes) == (8 * MIB, pageable, unknown)
    assert seen.bounds == bounds
    assert seen.to_gpu_bytes == GIB + 11 * MIB


def test_where_all_is_pinned_figures_are_exact_and_after_a_loss_or_an_unknown_call_at_least() -> None:
    assert judged(copies(("pinned", MIB, 1)), None).bounds == {}
    for missed in (copies(("pinned", MIB, 1), lost=1), copies(("pinned", MIB, 1), uncounted=1)):
        assert set(judged(missed, LITTLE_BYTES).bounds.values()) == {"at_least"}
        assert "to_gpu_bytes" in judged(missed, LITTLE_BYTES).bounds


def test_what_a_process_copied_is_said_with_rate_memory_sizes_and_calls() -> None:
    seen = judged(copies(("pinned", MIB, 6), ("unknown", MIB, 2), uncounted=7), LITTLE_BYTES)
    facts = dict(copy_facts(holder(copies=seen)))
    assert facts["To GPUs"].startswith("≥8 MiB")
    assert facts["To GPUs"].endswith("in 8 calls, 0.00419 GB/s")
    assert facts["From GPUs"].startswith("≥0 B")
    assert facts["Host memory"].startswith("pinned ≥6 MiB, pageable ~2 MiB (")
    assert (facts["Sizes, at most"], facts["Calls"]) == ("1 MiB: 8", "cuMemcpyHtoD_v2: 8")
    assert facts["Calls of unknown bytes"].startswith("7 ")
    assert list(copy_facts(holder())) == []


@pytest.mark.parametrize(
    ("python", "counted", "said"),
    [(True, False, {"Its lines"}), (False, False, {"Its copies"}), (None, False, {"Its lines", "Its copies"}),
     (False, True, set())],
)  # fmt: skip
def test_a_holder_says_how_to_trace_it(python: bool | None, counted: bool, said: set[str]) -> None:
    assert dict(tracing_facts(holder(python=python, copies=copies() if counted else None))).keys() == said


def test_where_the_kernel_has_no_such_probes_that_is_said_and_the_rest_goes_on(tmp_path: Path) -> None:
    counter = CopyCounter([os.getpid()], Proc.below(tmp_path))
    assert counter.trouble == (
        "the kernel does not let PinScope count copies: it has no probes for single processes (perf_event_open)"
    )
    seen: list[TraceEvent] = []
    counter.follow([Lost(3)], 0, seen.extend, lambda _: ())
    assert (seen, counter.copies()) == ([Lost(3)], {})
