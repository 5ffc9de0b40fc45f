"""The one sentence of a run where something is odd: what failed, what nobody would guess, what was not measured."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.registry import read_run
from tests.data import synthetic
from tests.data.readings import As
from tests.data.synthetic_snapshot import GIB, MIB, holder, host, snapshot
from tests.data.synthetic_timeline import growing, rows_of, run, watched
from tests.unit.analysis.test_pinning_strategy import USUAL, idle, read, row
from tests.unit.experiments.access.test_reading import rows as access_rows
from tests.unit.experiments.page_tables.test_arithmetic import reading as page_tables
from tests.unit.experiments.page_tables.test_arithmetic import rows as page_table_rows
from tests.unit.experiments.registration.test_arithmetic import reading as registration
from tests.unit.experiments.registration.test_arithmetic import rows as registration_rows

WHOLE = row("thp_register", 0.4)


def test_the_way_to_pin_is_said_of_what_was_measured() -> None:
    for rows, verdict in [
        ([USUAL, WHOLE], "Touch huge pages with 8 threads, then register once: 16 GiB in one piece 400 ms, "
         "cudaHostAlloc 4.80 s."),
        ([WHOLE], "Touch huge pages with 8 threads, then register once: 16 GiB in one piece takes 400 ms."),
        ([USUAL], "One cudaHostAlloc pins 16 GiB in 4.80 s."),
        ([USUAL, row("thp_pipeline", 0.3)], "One cudaHostAlloc pins 16 GiB in 4.80 s."),
        ([row("thp_register", 0.4, pinned=False)],
         "CUDA does not take memory as pinned that was registered: pin with cudaHostAlloc."),
        ([row("host_alloc_chunks", 4.0)], "One cudaHostAlloc for each 1 GiB: pinning 16 GiB takes 4.00 s."),
        ([idle()], None),
    ]:  # fmt: skip
        assert read(rows).verdict == verdict


def test_page_tables_say_where_they_are_paid_for_and_what_came_back() -> None:
    both = page_table_rows() + page_table_rows(device=1)
    assert (page_tables(both).verdict or "").endswith(", on 2 of 2 GPUs with a context.")
    alone = page_table_rows() + page_table_rows(2 * MIB, device=1)
    assert ", on 1 of 2 GPUs with a context." in (page_tables(alone).verdict or "")
    assert (page_tables(page_table_rows(kept=GIB)).verdict or "").endswith(", of which freeing gave back none.")
    assert page_tables(page_table_rows(2 * MIB)).verdict is None


@pytest.mark.parametrize(("page", "amount"), [(4096, "2 MiB"), (16 * 1024, "511 KiB to 2 MiB")])
def test_ways_that_take_different_page_tables_are_not_given_one_figure(page: int, amount: str) -> None:
    rows = page_table_rows() + page_table_rows(page, backing="thp")
    assert (page_tables(rows).verdict or "").startswith(f"Each GiB that a process pins takes {amount} of each")
    unseen = page_table_rows() + page_table_rows(2 * MIB, backing="hugetlb")
    assert (page_tables(unseen).verdict or "").startswith("Each GiB that a process pins takes up to 2 MiB of each")


def test_the_host_model_speaks_of_locked_memory_and_of_itself() -> None:
    model = registration(registration_rows("each_registers", 2), lab="host").verdict or ""
    assert model.startswith("Host model, no GPU: 2 processes sharing 8 GiB take 32 MiB of page tables")
    assert "GPU memory" not in model


def test_ways_to_use_data_are_compared_as_far_as_they_were_measured() -> None:
    def verdict(rows: list[dict[str, Any]]) -> str | None:
        return As("access").read(synthetic.run("overlap"), rows).verdict

    assert verdict(access_rows("copy", 5e-3)) is None
    assert (verdict(access_rows("copy", 5e-3) + access_rows("mapped", 2e-3)) or "").startswith("Map the data")
    assert (verdict(access_rows("copy", 5e-3) + access_rows("mapped", 9e-3)) or "").startswith("Copy what")
    mixed = access_rows("copy", 5e-3) + access_rows("mapped", 2e-3)
    mixed += access_rows("copy", 5e-3, uses=8) + access_rows("mapped", 16e-3, uses=8)
    assert verdict(mixed) == (
        "Zero-copy is 2.50 times faster (1 streaming read), 3.20 times slower (8 streaming reads)."
    )


def held(amount: Any, samples: int = 60) -> str | None:
    """The verdict of a timeline in which one process holds so much, and nobody else any."""
    rows = watched(
        samples, holders=lambda n: (holder(7, host_alloc_bytes=amount(n), driver_memory_bytes=0),), pinned_bytes=amount
    )
    return read_run(run(), rows).verdict


def test_a_timeline_says_how_much_by_whom_and_whether_it_grew() -> None:
    for amount, verdict in [
        (lambda n: 0, "Nothing was pinned in 59.0 s."),
        (lambda n: 8192, "Pinned memory was at most 8 KiB in 59.0 s."),
        (lambda n: 8 * GIB, "Pinned memory stayed near 8 GiB for 59.0 s, python (pid 7) had 8 GiB."),
        (lambda n: (1 if n < 9 else 3) * GIB,
         "No leak seen in 59.0 s: python (pid 7) pinned 2 GiB (most within 1.00 s) and kept it."),
        (lambda n: (3 if n < 9 else 1) * GIB,
         "Pinned memory fell from 3 GiB to 1 GiB in 59.0 s, python (pid 7) had 1 GiB."),
        (lambda n: (9 if n == 5 else 1) * GIB,
         "Pinned memory peaked at 9 GiB after 5.00 s (end: 1 GiB), python (pid 7) had 9 GiB."),
    ]:  # fmt: skip
        assert held(amount) == verdict


def test_where_mlock_holds_all_there_is_verdict_and_headline_say_so() -> None:
    rows = watched(
        60, holders=lambda n: (holder(7, host_alloc_bytes=0, locked_bytes=16 * n * MIB),), pinned_bytes=lambda n: 0
    )
    reading = read_run(run(), rows)
    assert reading.verdict == "Nothing was pinned in 59.0 s, but python (pid 7) locked up to 944 MiB with mlock."
    assert ("Grew most, locked by mlock, not pinned", "python (pid 7)") in [
        cells[:2] for cells in reading.tables[0].rows
    ]


def test_a_leak_is_the_answer_where_there_is_one() -> None:
    assert (read_run(run(), growing()).verdict or "").startswith(
        "leaky (pid 1) looks like it leaks: it pinned 472 MiB in 59 steps and freed nothing."
    )


def test_a_timeline_of_one_sample_or_without_the_count_says_no_more_than_it_knows() -> None:
    assert held(lambda n: GIB, samples=1) == "1 GiB was pinned in the only sample, python (pid 7) had 1 GiB."
    unknown = host(pinned_bytes=None, explained_bytes=None, missing={"pinned_bytes": "needs Linux 5.7"})
    assert read_run(run(), rows_of([snapshot(host=unknown, holders=())] * 9)).verdict is None
