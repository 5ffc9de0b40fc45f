"""Several processes and the same host memory: what contexts, buffers and page tables take, and the rate together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Annotated

from pinscope.analysis.cells import Label, Value, every_combination
from pinscope.analysis.conclusions import on_lab
from pinscope.analysis.rows import Row, Rows, counted, grouped, labels, median, summary
from pinscope.analysis.statistics import Summary, measured, summarize
from pinscope.experiments.registration.ways import SHARINGS, WAYS, Sharing
from pinscope.records.finding import Quantity, Table, costing, quantity
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bandwidth, format_bytes, format_share

SAME_RATE = 0.05
"""Rates that differ by less are the same."""
RATE = "bytes/second"


def count_words(processes: int) -> str:
    """``1 process``, ``4 processes``."""
    return f"{processes} process{'' if processes == 1 else 'es'}"


def _strategy(name: str) -> str:
    return WAYS[name].title


def _shared(name: Sharing | None) -> str:
    return SHARINGS[name].title if name else "the owner's own"


@dataclass(frozen=True)
class Trial:
    """One strategy with one number of processes. ``None``: not reached, or not known here.

    Attributes:
        sharing: what each registers; of one owner nothing.
        context_bytes: GPU memory that all processes together took before they asked for any.
        buffer_bytes: GPU memory of their buffers.
        table_bytes: page tables: of the GPU; on the host model those of the processes.
        host_pinned_bytes: what the host's count of pinned pages grew by.
        start_seconds: until a process was ready.
        touch_seconds: until the memory was touched, once.
        pin_seconds: of a process that pinned.
        bytes_per_second: all copies together, over the rounds.
        wrong_count, checked_count: words in all processes and rounds.
        left_bytes: GPU memory still used when all had ended.
        table_steps: page tables after each process that pinned, counted from before the first.
    """

    strategy: Annotated[str, Label("strategy", words=_strategy)]
    processes: Annotated[int, Label("processes", "count")]
    bytes: Annotated[int, Label("shared", "bytes")]
    sharing: Annotated[Sharing | None, Label("memory", words=_shared)]
    context_bytes: Annotated[int | None, Value("contexts", "bytes", "less")]
    buffer_bytes: Annotated[int | None, Value("buffers", "bytes")]
    table_bytes: Annotated[int | None, Value("page tables", "bytes", "less")]
    host_pinned_bytes: Annotated[int | None, Value("host pins", "bytes")]
    start_seconds: Annotated[float | None, Value("start-up", "seconds", "less")]
    touch_seconds: Annotated[float | None, Value("touching", "seconds", "less")]
    pin_seconds: Annotated[float | None, Value("pinning, each", "seconds", "less")]
    bytes_per_second: Annotated[Summary | None, Value("rate together", RATE, "more")]
    wrong_count: Annotated[int, Value("wrong words", "count", "less")]
    checked_count: Annotated[int, Value("checked words", "count")]
    left_bytes: Annotated[int | None, Value("left at the end", "bytes", "less")]
    table_steps: tuple[int, ...]

    @property
    def title(self) -> str:
        """Who pins: ``4 processes register``, ``one owner for 4 processes``."""
        if self.strategy == "one_owner":
            return f"one owner for {count_words(self.processes)}"
        shared = "" if self.sharing == "memfd" else f", {_shared(self.sharing)}"
        return f"{count_words(self.processes)} register{'s' if self.processes == 1 else ''}{shared}"

    @property
    def pinners(self) -> int:
        """Processes that pin."""
        return self.processes if self.strategy == "each_registers" else 1


def trials(rows: Rows) -> list[Trial]:
    """Every strategy and number of processes, in the order measured."""
    return [_trial(*case, group) for case, group in grouped(rows, _case).items()]


def cells_of(rows: Rows) -> list[Trial]:
    """Those of a run."""
    return trials(rows)


def _case(row: Row) -> tuple[str, int, int, Sharing | None]:
    """Labels of a trial: older runs had memfd alone, and did not say so."""
    sharing: Sharing | None = (row.get("sharing") or "memfd") if row["strategy"] == "each_registers" else None
    return row["strategy"], row["processes"], row["bytes"], sharing


def _trial(strategy: str, processes: int, size: int, sharing: Sharing | None, rows: Rows) -> Trial:
    names = ("before", "start", "buffers", "pin", "copy", "end")
    steps = {name: [row for row in rows if row["step"] == name] for name in names}
    meter = "nvml_used_bytes" if rows[0]["nvml_used_bytes"] is not None else "device_used_bytes"
    taken = _gpu_tables(steps, meter) if rows[0][meter] is not None else _kernel_tables(steps)
    all_pinned = len(steps["pin"]) == (processes if strategy == "each_registers" else 1)
    return Trial(
        strategy,
        processes,
        size,
        sharing,
        context_bytes=_grown(steps["before"], steps["start"], meter),
        buffer_bytes=_grown(steps["start"], steps["buffers"], meter),
        table_bytes=taken[-1] if all_pinned and taken else None,
        host_pinned_bytes=_grown(steps["buffers"], steps["pin"], "pinned_bytes"),
        start_seconds=median(summary(steps["start"], "start_seconds")),
        touch_seconds=next((row["touch_seconds"] for row in steps["pin"] if row["touch_seconds"] is not None), None),
        pin_seconds=median(summary(steps["pin"], "pin_seconds")),
        bytes_per_second=_together(processes, counted(steps["copy"])),
        wrong_count=sum(row["wrong_words"] for row in steps["copy"]),
        checked_count=sum(row["checked_words"] for row in steps["copy"]),
        left_bytes=_grown(steps["before"], steps["end"], meter),
        table_steps=taken,
    )


def _grown(before: Rows, after: Rows, meter: str) -> int | None:
    """What a reading grew by between the ends of two steps; the last row of a step is its end."""
    if not before or not after or before[-1][meter] is None or after[-1][meter] is None:
        return None
    return int(after[-1][meter] - before[-1][meter])


def _gpu_tables(steps: Mapping[str, Rows], meter: str) -> tuple[int, ...]:
    base = steps["buffers"][-1][meter] if steps["buffers"] else None
    readings = [row[meter] for row in steps["pin"]]
    return () if base is None or None in readings else tuple(reading - base for reading in readings)


def _kernel_tables(steps: Mapping[str, Rows]) -> tuple[int, ...]:
    """Each process's own page tables, summed up over those that have pinned."""
    before = {row["process"]: row["page_table_bytes"] for row in steps["buffers"]}
    pairs = [(before.get(row["process"]), row["page_table_bytes"]) for row in steps["pin"]]
    known = [after - base for base, after in pairs if base is not None and after is not None]
    return tuple(accumulate(known)) if len(known) == len(pairs) else ()


def _together(processes: int, copies: Rows) -> Summary | None:
    """Bytes of all over the time from the first beginning to the last end, for each complete round."""
    rates = [
        sum(row["copied_bytes"] for row in group)
        / (max(row["ended_seconds"] for row in group) - min(row["begun_seconds"] for row in group))
        for group in grouped(copies, labels("repeat")).values()
        if len(group) == processes
    ]
    return summarize(rates) if rates else None


@dataclass(frozen=True)
class Registrations:
    """All that was measured in a run."""

    run: ExperimentRun
    rows: Rows

    @cached_property
    def trials(self) -> list[Trial]:
        """All, in the order measured."""
        return trials(self.rows)

    @cached_property
    def both(self) -> tuple[Trial | None, Trial | None]:
        """Each registers, the usual memory; and one owner: with the most processes that both have, or one has."""
        usual = next((trial.sharing for trial in self.trials if trial.sharing), None)
        own = [trial for trial in self.trials if trial.sharing in (None, usual)]
        apart, owner = ({trial.processes: trial for trial in own if trial.strategy == name} for name in WAYS)
        most = max(apart.keys() & owner.keys() or apart or owner, default=0)
        return apart.get(most), owner.get(most)

    @property
    def rates(self) -> tuple[Summary, Summary] | None:
        """Of several processes by themselves, and of one owner for them."""
        apart, _ = self.both
        own, owners = (trial and trial.bytes_per_second for trial in self.both)
        return (own, owners) if own and owners and apart and apart.processes > 1 else None

    @property
    def is_owner_slower(self) -> bool:
        """By more than the same rate."""
        return self.rates is not None and self.rates[1].median < (1 - SAME_RATE) * self.rates[0].median

    @property
    def beside_bytes(self) -> int:
        """What the processes take beside page tables: their contexts; on the host model the memory itself."""
        apart, _ = self.both
        return 0 if apart is None else apart.bytes if self.run.lab == "host" else max(apart.context_bytes or 0, 0)

    def saves_little(self, saved: int) -> bool:
        """Whether one owner saves little beside what the processes take anyway."""
        return bool(self.beside_bytes) and costing((self.beside_bytes + saved) / self.beside_bytes) == "note"


def tables(shared: Registrations) -> tuple[Table, ...]:
    """All trials."""
    note = (
        "Contexts, buffers and page tables are those of all processes together: what the used memory of the GPU grew "
        "by from step to step. Start-up and pinning are medians over the processes that did it. The owner's pinning "
        "includes touching. On the host model there are no contexts; page tables are those of the processes."
    )
    return (every_combination(shared.trials, note),) if shared.trials else ()


def headline(shared: Registrations) -> Iterator[Quantity]:
    """Page tables of both strategies, and the owner's rate before that of all."""
    where = "GPU memory for page tables" if shared.run.lab == "cuda" else "Page tables"
    known = [trial for trial in shared.both if trial]
    for trial in known:
        reason = "some of them did not pin, or no meter could be read"
        yield quantity(
            f"{where}, {trial.title}", trial.table_bytes, "bytes", reason=reason, key=f"{trial.strategy}.page_tables"
        )
    for trial in reversed(known):
        name, rate = f"Copy rate of all together, {trial.title}", trial.bytes_per_second
        key, reason = f"{trial.strategy}.rate", "no round was completed"
        yield measured(name, rate, RATE, key=key) if rate else quantity(name, None, RATE, reason=reason, key=key)


def verdict(shared: Registrations) -> str | None:
    """What every process pays, beside one owner, and at which rate; ``None`` where neither is known."""
    if any(trial.wrong_count for trial in shared.trials):
        return "Data arrived wrong in a process: do not trust any figure of this run."
    sizes = [trial.table_bytes for trial in shared.both if trial and trial.table_bytes is not None]
    little = len(sizes) == 2 and shared.saves_little(sizes[0] - sizes[1]) and not shared.is_owner_slower
    taken, rates, apart = _taken_words(shared), _rates_words(shared), shared.both[0]
    if taken:
        sentence = taken + (": not worth a change at this size" if little else f"; it {rates}" if rates else "")
    elif rates and apart:
        sentence = f"one owner of memory that {apart.processes} processes share {rates}"
    else:
        return None
    return on_lab(shared.run.lab, f"{sentence[0].upper()}{sentence[1:]}.")


def _taken_words(shared: Registrations) -> str | None:
    kind, register = ("page tables", "lock") if shared.run.lab == "host" else ("GPU memory for page tables", "register")
    apart, owner = (trial if trial and (trial.table_bytes or 0) >= 0 else None for trial in shared.both)
    owned = owner and owner.table_bytes is not None and format_bytes(owner.table_bytes)
    if apart and apart.table_bytes is not None:
        several = f"{apart.processes} processes that {register} the same {format_bytes(apart.bytes)} take"
        who = several if apart.processes > 1 else f"a process that {register}s {format_bytes(apart.bytes)} takes"
        return f"{who} {format_bytes(apart.table_bytes)} of {kind}" + (f", one owner {owned}" if owned else "")
    return f"one owner of {format_bytes(owner.bytes)} takes {owned} of {kind}" if owner and owned else None


def _rates_words(shared: Registrations) -> str | None:
    """How one owner's copies do beside those of all; the rate of one strategy alone answers nothing."""
    if shared.rates is None:
        return None
    apart, owner = (rate.median for rate in shared.rates)
    if shared.is_owner_slower:
        return f"copies at {format_bandwidth(owner)}, {format_share(owner / apart)} of their rate"
    return f"copies {'as fast' if owner <= (1 + SAME_RATE) * apart else 'faster'} ({format_bandwidth(owner)})"
