"""Registration: what contexts, buffers and page tables are, and which findings follow. Rows are synthetic."""

from __future__ import annotations

from typing import Any

import pytest

from pinscope.experiments.registration.experiment import RegistrationObservation
from pinscope.experiments.registration.reading import trials
from tests.data import synthetic
from tests.data.readings import As, Made

draw = As("registration").draw
MADE = Made("registration", params={})
reading, rules = MADE.reading, MADE.findings

GIB, MIB = 2**30, 2**20
CONTEXT, TABLE, BUFFER = 520 * MIB, 16 * MIB, 256 * MIB
Rows = list[dict[str, Any]]


def rows(
    strategy: Any, processes: int, tables: list[int] | None = None, *, rate: float = 50e9,
    left: int = 0, sharing: Any = None, pinned_after: float | None = None,
) -> Rows:  # fmt: skip
    """One trial as it is measured: ``tables`` is what each process that pins takes."""
    if tables is None:
        tables = [TABLE] * (processes if strategy == "each_registers" else 1)
    used, pins = GIB, 0
    found: Rows = []

    def add(step: Any, process: int | None, repeat: int = 0, **values: Any) -> None:
        if step != "copy":
            values |= {"device_used_bytes": used, "nvml_used_bytes": used, "pinned_bytes": pins}
        found.append(
            RegistrationObservation(
                repeat=repeat, warmup=False, strategy=strategy, processes=processes, process=process, step=step,
                sharing=sharing, bytes=8 * GIB, buffer_bytes=BUFFER, **values,
            ).model_dump()
        )  # fmt: skip

    add("before", None)
    used += processes * CONTEXT
    for rank in range(processes):
        add("start", rank, start_seconds=1.0)
    used += processes * BUFFER
    for rank in range(processes):
        add("buffers", rank)
    for rank, table in enumerate(tables):
        used, pins = used + table, pins + 8 * GIB
        last = pinned_after if rank == len(tables) - 1 else None
        add("pin", rank, touch_seconds=3.0 if rank == 0 else None, pin_seconds=0.3, all_seconds=last)
    for repeat in range(3):
        for rank in range(processes):
            add(
                "copy", rank, repeat, begun_seconds=0.0, ended_seconds=processes * 8 * GIB / rate,
                copied_bytes=8 * GIB, wrong_words=0, checked_words=1000,
            )  # fmt: skip
    used = GIB + left
    add("end", None)
    return found


def test_rows_of_older_runs_read_as_memory_without_a_name() -> None:
    older = rows("each_registers", 4) + rows("one_owner", 4)
    for row in older:
        del row["sharing"]
    assert [trial.title for trial in trials(older)] == ["4 processes register", "one owner for 4 processes"]


def test_page_tables_and_the_time_until_all_have_it_pinned_are_known_where_all_have() -> None:
    timed = rows("each_registers", 4, pinned_after=5.0)
    last_pin = max(place for place, row in enumerate(timed) if row["step"] == "pin")
    for given, seconds, tables in ((timed, 5.0, 4 * TABLE), (timed[: last_pin + 1], 5.0, 4 * TABLE),
                                   (timed[:last_pin], None, None)):  # fmt: skip
        assert (trials(given)[0].all_seconds, trials(given)[0].table_bytes) == (seconds, tables)
    older = [{key: value for key, value in row.items() if key != "all_seconds"} for row in timed]
    assert trials(older)[0].all_seconds is None


def test_page_tables_are_paid_again_from_half_as_much_again_on() -> None:
    for second, said in ((0, False), (TABLE // 2 - 1, False), (TABLE // 2, True)):
        assert ("every-process-pays" in rules(rows("each_registers", 2, [TABLE, second]))) == said


def test_an_owner_is_slower_or_faster_by_more_than_both_may_be_off() -> None:
    for rate, noise, words in [
        (30e9, 0.0, "copies at 60.0 % of their rate, but saves"),
        (49e9, 0.0, "copies as fast (49.0 GB/s), and saves"), (60e9, 0.0, "copies faster (60.0 GB/s), and saves"),
        (30e9, 0.3, "copies as fast (30.0 GB/s), and saves"),
    ]:  # fmt: skip
        much = [8 * CONTEXT] * 4
        owner = [
            {**row, "ended_seconds": row["ended_seconds"] * (1 + noise * (row["repeat"] - 1))}
            if row["step"] == "copy"
            else row
            for row in rows("one_owner", 4, much[:1], rate=rate)
        ]
        assert words in (reading(rows("each_registers", 4, much) + owner).verdict or "")


@pytest.mark.parametrize("strategy", ["each_registers", "one_owner"])
def test_a_run_that_broke_off_anywhere_still_reads_and_draws(strategy: str) -> None:
    whole = rows(strategy, 2)
    for count in range(len(whole) + 1):
        result = reading(whole[:count])
        assert all(quantity.value is not None or quantity.reason for quantity in result.headline)
        if count % 5 == 0:
            draw(synthetic.run("registration", params={}), whole[:count])


def test_page_tables_that_seem_negative_are_compared_with_nothing() -> None:
    assert "contexts-beside-tables" not in rules(rows("each_registers", 2, [-TABLE, -TABLE]))


def test_gpu_memory_left_behind_is_a_warning() -> None:
    assert "gpu-memory-left" in rules(rows("one_owner", 2, left=100 * MIB))
    assert "gpu-memory-left" not in rules(rows("one_owner", 2))
