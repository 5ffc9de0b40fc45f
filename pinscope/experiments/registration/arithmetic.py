"""Several processes and the same host memory: what contexts, buffers and page tables take, and the rate together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pinscope.analysis.rows import Row, counted, grouped, labels, summary
from pinscope.analysis.statistics import Summary, summarize

Strategy = Literal["each_registers", "one_owner"]
STRATEGY_TITLES: Mapping[str, str] = {
    "each_registers": "each process registers",
    "one_owner": "one owner copies for all",
}
SHARING_TITLES: Mapping[str, str] = {
    "memfd": "memory without a name",
    "shm_open": "POSIX segment",
    "shm_open_portable": "POSIX segment, portable",
    "hugetlb": "hugetlb pages",
    "hugetlb_1g": "hugetlb pages of 1 GiB",
}

SAME_RATE = 0.05
"""Rates that differ by less are the same."""


@dataclass(frozen=True)
class Trial:
    """One strategy with one number of processes. ``None``: not reached, or not known here.

    Attributes:
        strategy: who pins.
        processes: how many share the memory.
        sharing: what each registers; of one owner nothing.
        bytes: how much they share.
        context_bytes: GPU memory that all processes together took before they asked for any.
        buffer_bytes: GPU memory of their buffers.
        table_bytes: page tables: of the GPU; on the host model those of the processes.
        table_steps: the same after each process that pinned, counted from before the first.
        host_pinned_bytes: what the host's count of pinned pages grew by.
        start_seconds: until a process was ready.
        touch_seconds: until the memory was touched, once.
        pin_seconds: of each process that pinned.
        rate: bytes/second of all copies together, over the rounds.
        wrong_words, checked_words: in all processes and rounds.
        left_bytes: GPU memory still used when all had ended.
    """

    strategy: str
    processes: int
    sharing: str
    bytes: int
    context_bytes: int | None
    buffer_bytes: int | None
    table_bytes: int | None
    table_steps: tuple[int, ...]
    host_pinned_bytes: int | None
    start_seconds: Summary | None
    touch_seconds: float | None
    pin_seconds: Summary | None
    rate: Summary | None
    wrong_words: int
    checked_words: int
    left_bytes: int | None

    @property
    def title(self) -> str:
        """The strategy for people; with what is shared, where it is not the usual memory without a name."""
        return STRATEGY_TITLES[self.strategy] + (f", {self.sharing_title}" if self.sharing not in ("", "memfd") else "")

    @property
    def sharing_title(self) -> str:
        """What is shared, for people."""
        return SHARING_TITLES[self.sharing]

    @property
    def pinners(self) -> int:
        """Processes that pin."""
        return self.processes if self.strategy == "each_registers" else 1


def trials(rows: Sequence[Row]) -> list[Trial]:
    """Every strategy and number of processes, in the order measured."""
    return [_trial(group) for group in grouped(rows, _case).values()]


def first_of_each(found: Sequence[Trial]) -> list[Trial]:
    """Those of one owner, and those that share what the first does: one for each strategy and number of processes."""
    usual = next((trial.sharing for trial in found if trial.strategy == "each_registers"), "")
    return [trial for trial in found if trial.strategy == "one_owner" or trial.sharing == usual]


def _case(row: Row) -> tuple[str, int, str]:
    """Strategy, processes and what is shared: older runs had memfd alone, and did not say so."""
    sharing = row.get("sharing") or "memfd"
    return row["strategy"], row["processes"], sharing if row["strategy"] == "each_registers" else ""


def _trial(rows: Sequence[Row]) -> Trial:
    first = rows[0]
    steps = {
        name: [row for row in rows if row["step"] == name] for name in ("before", "start", "buffers", "pin", "end")
    }
    copies = [row for row in rows if row["step"] == "copy"]
    meter = "nvml_used_bytes" if first["nvml_used_bytes"] is not None else "device_used_bytes"
    tables = _gpu_tables(steps, meter) if first[meter] is not None else _kernel_tables(steps)
    return Trial(
        strategy=first["strategy"],
        processes=first["processes"],
        sharing=_case(first)[2],
        bytes=first["bytes"],
        context_bytes=_grown(steps["before"], steps["start"], meter),
        buffer_bytes=_grown(steps["start"], steps["buffers"], meter),
        table_bytes=tables[-1] if _all_pinned(first, steps["pin"]) and tables else None,
        table_steps=tables,
        host_pinned_bytes=_grown(steps["buffers"], steps["pin"], "pinned_bytes"),
        start_seconds=summary(steps["start"], "start_seconds"),
        touch_seconds=next((row["touch_seconds"] for row in steps["pin"] if row["touch_seconds"] is not None), None),
        pin_seconds=summary(steps["pin"], "pin_seconds"),
        rate=_rate(first["processes"], counted(copies)),
        wrong_words=sum(row["wrong_words"] for row in copies),
        checked_words=sum(row["checked_words"] for row in copies),
        left_bytes=_grown(steps["before"], steps["end"], meter),
    )


def _all_pinned(first: Row, pinned: Sequence[Row]) -> bool:
    """Whether every process that was to pin has."""
    return len(pinned) == (first["processes"] if first["strategy"] == "each_registers" else 1)


def _grown(before: Sequence[Row], after: Sequence[Row], meter: str) -> int | None:
    """What a reading grew by between the ends of two steps; the last row of a step is its end."""
    if not before or not after or before[-1][meter] is None or after[-1][meter] is None:
        return None
    return int(after[-1][meter] - before[-1][meter])


def _gpu_tables(steps: Mapping[str, Sequence[Row]], meter: str) -> tuple[int, ...]:
    base = steps["buffers"][-1][meter] if steps["buffers"] else None
    readings = [row[meter] for row in steps["pin"]]
    return () if base is None or None in readings else tuple(reading - base for reading in readings)


def _kernel_tables(steps: Mapping[str, Sequence[Row]]) -> tuple[int, ...]:
    """Each process's own page tables, summed up over those that have pinned."""
    before = {row["process"]: row["page_table_bytes"] for row in steps["buffers"]}
    found, total = [], 0
    for row in steps["pin"]:
        if row["page_table_bytes"] is None or before.get(row["process"]) is None:
            return ()
        total += row["page_table_bytes"] - before[row["process"]]
        found.append(total)
    return tuple(found)


def _rate(processes: int, copies: Sequence[Row]) -> Summary | None:
    """Bytes of all over the time from the first beginning to the last end, for each complete round."""
    rates = [
        sum(row["copied_bytes"] for row in group)
        / (max(row["ended_seconds"] for row in group) - min(row["begun_seconds"] for row in group))
        for group in grouped(copies, labels("repeat")).values()
        if len(group) == processes
    ]
    return summarize(rates) if rates else None
