"""Several processes and the same host memory: what contexts, buffers and page tables take, and rates of copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, Literal

from pinscope.analysis.cells import Label, LineStyle, Value, Way, every_combination, way
from pinscope.analysis.models import GPU_PAGE_SIZES, page_table_memory_bytes
from pinscope.analysis.read_rows import Row, Rows, counted, grouped, labels, median, summary
from pinscope.analysis.rules import SAME_RATE
from pinscope.analysis.statistics import Summary, exceeds, measured, ratio, summarize
from pinscope.analysis.texts import Wrong
from pinscope.records.run import ExperimentRun, Quantity, Table, costing, quantity
from pinscope.units import format_bandwidth, format_bytes, format_count, format_share

Strategy = Literal["each_registers", "one_owner"]
Contexts = Literal["every_gpu", "own_gpu"]
Source = Literal["host", "device"]
Sharing = Literal["memfd", "shm_open", "shm_open_portable", "hugetlb", "hugetlb_1g"]
PORTABLE: Sharing = "shm_open_portable"
WAYS: Mapping[str, Way] = {
    "each_registers": way("each process registers", style=LineStyle("registered")),
    "one_owner": way("one owner copies for all", "one owner", LineStyle("pinned")),
}
"""Who pins."""
SHARINGS: Mapping[Sharing, Way] = {
    "memfd": way("memory without a name"),
    "shm_open": way("POSIX segment"),
    "shm_open_portable": way("POSIX segment, portable"),
    "hugetlb": way("hugetlb pages"),
    "hugetlb_1g": way("hugetlb pages of 1 GiB"),
}
"""What the processes share, and whether they register it for all contexts."""
CONTEXTS: Mapping[Contexts, str] = {"every_gpu": "every GPU", "own_gpu": "one GPU each"}
"""Where processes on several GPUs have contexts."""
SOURCES: Mapping[Source, str] = {"host": "its pinned memory", "device": "its own GPU's memory"}
"""From where a process copies into the opened memory of another GPU."""


RATE = "bytes/second"
"""Of a headline."""
TABLES = {
    "Every combination": "Contexts, buffers and page tables are those of all processes together: what the used memory "
    "of the GPU grew by from step to step. Start-up and pinning are medians over the processes that did it. The "
    "owner's pinning includes touching. Pinned by all after: since the first began to touch the memory. On the host "
    "model there are no contexts; page tables are those of the processes.",
    "Page tables of processes that register the same memory": "Measured: what the GPU's used memory grew by. Expected: "
    "8 bytes a 4 KiB page, in steps of 2 MiB, for each process with a context on the GPU. First process: what it grew "
    "by once the first process had registered; 0 B where that has no context on this GPU.",
    "Memory of one GPU, opened on another one": "Rates of large copies into the opened memory. Taken by opening: what "
    "used memory grew by on the GPU on which that memory lies, while the opener's own GPU was the current device.",
}
"""Title → note."""


def all_of(count: int) -> str:
    """``both``, ``all 4``."""
    return "both" if count == 2 else f"all {count}"


def _shared(name: Sharing | None) -> str:
    return SHARINGS[name].title if name else "the owner's own"


@dataclass(frozen=True)
class Trial:
    """One strategy with one number of processes. ``None``: not reached, or not known here.

    Attributes:
        sharing: what each registers; of one owner nothing.
        context_bytes: GPU memory that all processes together took before they asked for any.
        table_bytes: page tables: of the GPU; on the host model those of the processes.
        host_pinned_bytes: what the host's count of pinned pages grew by.
        touch_seconds: until the memory was touched, once.
        all_seconds: until all had it pinned, touching and all; not known of older runs.
        bytes_per_second: all copies together, over the rounds.
        table_steps: page tables in the row of each process that pinned, counted from before the first.
    """

    strategy: Annotated[str, Label("strategy", words=lambda name: WAYS[name].title)]
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
    all_seconds: Annotated[float | None, Value("pinned by all after", "seconds", "less")]
    bytes_per_second: Annotated[Summary | None, Value("rate together", RATE, "more")]
    wrong_count: Annotated[int, Value("wrong words", "count", "less")]
    checked_count: Annotated[int, Value("checked words", "count")]
    left_bytes: Annotated[int | None, Value("left at the end", "bytes", "less")]
    table_steps: tuple[int, ...]

    @property
    def title(self) -> str:
        """Who pins: ``4 processes register``, ``one owner for 4 processes``."""
        if self.strategy == "one_owner":
            return f"one owner for {format_count(self.processes, 'process')}"
        shared = "" if self.sharing == "memfd" else f", {_shared(self.sharing)}"
        return f"{format_count(self.processes, 'process')} register{'s' if self.processes == 1 else ''}{shared}"


def trials(rows: Rows) -> list[Trial]:
    """Every strategy and number of processes on one GPU, in the order measured."""
    on_one = [row for row in rows if row["device"] is None]
    return [_trial(*case, group) for case, group in grouped(on_one, _case).items()]


def _case(row: Row) -> tuple[str, int, int, Sharing | None]:
    """Labels of a trial: older runs had memfd alone, and did not say so."""
    sharing: Sharing | None = (row.get("sharing") or "memfd") if row["strategy"] == "each_registers" else None
    return row["strategy"], row["processes"], row["bytes"], sharing


def _trial(strategy: str, processes: int, size: int, sharing: Sharing | None, rows: Rows) -> Trial:
    names = ("before", "start", "buffers", "pin", "copy", "end")
    steps = {name: [row for row in rows if row["step"] == name] for name in names}
    meter = _meter(rows)
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
        all_seconds=steps["pin"][-1].get("all_seconds") if all_pinned else None,
        bytes_per_second=_together(processes, counted(steps["copy"])),
        wrong_count=sum(row["wrong_words"] for row in steps["copy"]),
        checked_count=sum(row["checked_words"] for row in steps["copy"]),
        left_bytes=_grown(steps["before"], steps["end"], meter),
        table_steps=taken,
    )


def _meter(rows: Rows) -> str:
    """The field that says what is used of a GPU: NVML's figure where there is one."""
    return "nvml_used_bytes" if rows[0]["nvml_used_bytes"] is not None else "device_used_bytes"


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
class PageTables:
    """What registering the same memory took on one of several GPUs.

    Attributes:
        table_bytes: what the GPU's used memory grew by; ``None`` where it is not known, or not all have registered.
        first_bytes: the same after the first process.
    """

    device: Annotated[int, Label("GPU", "count")]
    processes: Annotated[int, Label("processes", "count")]
    contexts: Annotated[Contexts, Label("context on", words=CONTEXTS.__getitem__)]
    bytes: Annotated[int, Label("registered", "bytes")]
    table_bytes: Annotated[int | None, Value("measured", "bytes", "less")]
    first_bytes: Annotated[int | None, Value("first process", "bytes", "less")]

    strategy = "each_registers"

    @property
    def expected_bytes(self) -> Annotated[int, Value("expected", "bytes")]:
        """By the page table's arithmetic: 8 bytes a 4 KiB page, in the driver's steps, for each with a context."""
        payers = self.processes if self.contexts == "every_gpu" else 1
        return payers * page_table_memory_bytes(self.bytes, GPU_PAGE_SIZES[0])

    @property
    def title(self) -> str:
        """Which GPU, and who registered."""
        return (
            f"GPU {self.device}, {format_count(self.processes, 'process')} with a context on {CONTEXTS[self.contexts]}"
        )


def _page_tables(rows: Rows) -> PageTables:
    case, steps = rows[0], {"buffers": rows[:1], "pin": rows[1:]}
    taken = _gpu_tables(steps, _meter(rows)) if case["step"] == "before" else ()
    return PageTables(
        **{name: case[name] for name in ("device", "processes", "contexts", "bytes")},
        table_bytes=taken[-1] if len(taken) == case["processes"] else None,
        first_bytes=taken[0] if taken else None,
    )


@dataclass(frozen=True)
class Opened:
    """Memory of one GPU opened by a process whose context is on another one, and copies there.

    Attributes:
        context_bytes: what the memory's GPU took more afterwards; ``None`` where it is not known.
    """

    device: Annotated[int, Label("memory on GPU", "count")]
    opener: Annotated[int, Label("opened from GPU", "count")]
    context_bytes: Annotated[int | None, Value("taken by opening", "bytes", "less")]
    open_seconds: Annotated[float | None, Value("opening", "seconds", "less")]
    host_bytes_per_second: Annotated[Summary | None, Value("from its pinned memory", RATE, "more")]
    device_bytes_per_second: Annotated[Summary | None, Value("from its own GPU", RATE, "more")]
    wrong_count: Annotated[int | None, Value("wrong words", "count", "less")]

    @property
    def title(self) -> str:
        """Whose process copies, and where the memory lies."""
        return f"GPU {self.opener} into GPU {self.device}"

    @property
    def rates(self) -> Mapping[Source, Summary]:
        """Bytes/second of copies from each source from which they were measured."""
        rates = zip(SOURCES, (self.host_bytes_per_second, self.device_bytes_per_second), strict=True)
        return {source: rate for source, rate in rates if rate}


def _opened(rows: Rows) -> Opened:
    """Words are compared in a warm-up too, which has no rate."""
    steps = {name: [row for row in rows if row["step"] == name] for name in ("before", "open", "through")}
    host, device = (_rate(row for row in counted(steps["through"]) if row["source"] == source) for source in SOURCES)
    return Opened(
        rows[0]["device"],
        rows[0]["opener"],
        context_bytes=_grown(steps["before"], steps["open"], _meter(rows)),
        open_seconds=next((row["open_seconds"] for row in steps["open"]), None),
        host_bytes_per_second=host,
        device_bytes_per_second=device,
        wrong_count=sum(row["wrong_words"] for row in steps["through"]) if steps["through"] else None,
    )


def _rate(copies: Iterable[Row]) -> Summary | None:
    rates = [row["buffer_bytes"] * row["copies"] / row["device_seconds"] for row in copies]
    return summarize(rates) if rates else None


@dataclass(frozen=True)
class Registrations:
    """All that was measured in a run."""

    run: ExperimentRun
    rows: Rows

    @cached_property
    def trials(self) -> list[Trial]:
        """Those on one GPU."""
        return trials(self.rows)

    @cached_property
    def on_gpus(self) -> list[PageTables]:
        """What processes took on each of several GPUs, in the order measured."""
        across = [row for row in self.rows if row["contexts"] and row["opener"] is None]
        return [_page_tables(group) for group in grouped(across, labels("contexts", "device")).values()]

    @property
    def on_every_gpu(self) -> list[PageTables]:
        """Of processes with a context on every GPU."""
        return [table for table in self.on_gpus if table.contexts == "every_gpu"]

    @cached_property
    def opened(self) -> list[Opened]:
        """Every pair of GPUs, in the order measured."""
        across = [row for row in self.rows if row["opener"] is not None]
        return [_opened(group) for group in grouped(across, labels("device", "opener")).values()]

    @property
    def cells(self) -> Sequence[Trial | PageTables]:
        """Of a run that measured several GPUs only, their page tables."""
        return self.trials or self.on_gpus

    @property
    def wrong(self) -> Wrong:
        """Words that did not arrive."""
        copied: tuple[Trial | Opened, ...] = (*self.trials, *self.opened)
        cases = [(cell.title, cell.wrong_count) for cell in copied]
        return Wrong("content-wrong", "Data arrived wrong in a process", "words", cases)

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
        """Of several processes by themselves, and of one owner for them; ``None`` where one is no figure."""
        apart, _ = self.both
        own, owners = (trial and trial.bytes_per_second for trial in self.both)
        if not (own and owners and apart) or apart.processes < 2 or not (own.is_known and owners.is_known):
            return None
        return own, owners

    @property
    def is_owner_slower(self) -> bool:
        """By more than the same rate, and by more than both may be off."""
        return self.rates is not None and _is_faster(*self.rates)

    @property
    def beside_bytes(self) -> int:
        """What the processes take beside page tables: their contexts; on the host model the memory itself."""
        apart, _ = self.both
        return 0 if apart is None else apart.bytes if self.run.lab == "host" else max(apart.context_bytes or 0, 0)

    def saves_little(self, saved: int) -> bool:
        """Whether one owner saves little beside what the processes take anyway."""
        return bool(self.beside_bytes) and costing((self.beside_bytes + saved) / self.beside_bytes) == "note"


of = Registrations
"""All that a run measured, as verdict, headline, tables, findings and charts ask for it."""


def tables(shared: Registrations) -> tuple[Table, ...]:
    """All trials; then, of several GPUs, what was taken on each, and memory of one opened on another one."""
    known: tuple[Sequence[Any], ...] = (shared.trials, shared.on_gpus, shared.opened)
    words = zip(known, TABLES.items(), strict=True)
    return tuple(every_combination(group, note, title) for group, (title, note) in words)


def headline(shared: Registrations) -> Iterator[Quantity]:
    """Page tables of both strategies, and the owner's rate before that of all; then page tables on several GPUs."""
    where = "GPU memory for page tables" if shared.run.lab == "cuda" else "Page tables"
    known, unknown = [trial for trial in shared.both if trial], "some of them did not pin, or no meter could be read"
    for trial in known:
        yield quantity(
            f"{where}, {trial.title}", trial.table_bytes, "bytes", reason=unknown, key=f"{trial.strategy}.page_tables"
        )
    for trial in reversed(known):
        name, rate = f"Copy rate of all together, {trial.title}", trial.bytes_per_second
        key, reason = f"{trial.strategy}.rate", "no round was completed"
        yield measured(name, rate, RATE, key=key) if rate else quantity(name, None, RATE, reason=reason, key=key)
    for table in shared.on_every_gpu:
        name, key = f"Page tables of {table.processes} processes, GPU {table.device}", f"gpu_{table.device}.page_tables"
        yield quantity(name, table.table_bytes, "bytes", reason=unknown, key=key)


def verdict(shared: Registrations) -> str | None:
    """What every process pays, beside one owner, and at which rate; ``None`` where neither is known."""
    sizes = [trial.table_bytes for trial in shared.both if trial and trial.table_bytes is not None]
    taken, rates, apart = _taken_words(shared), _rates_words(shared), shared.both[0]
    saved = sizes[0] - sizes[1] if len(sizes) == 2 else 0
    saves = f"saves {format_bytes(saved)} of page tables" if saved > 0 else None
    but = ", but " if shared.is_owner_slower else ", and "
    if apart and saves and shared.saves_little(saved) and not shared.is_owner_slower:
        register, kind = ("lock", "page tables") if shared.run.lab == "host" else ("pin", "GPU memory")
        who = f"let {all_of(apart.processes)} processes {register} the shared {format_bytes(apart.bytes)}"
        sentence = f"{who}: one owner saves only {format_bytes(saved)} of {kind}"
    elif apart and (rates or saves):
        copies = rates and f"copies {rates}"
        sentence = f"one owner for {apart.processes} processes {but.join(filter(None, (copies, saves)))}"
    else:
        sentence = taken or pages_words(shared) or ""
    return f"{sentence[0].upper()}{sentence[1:]}." if sentence else None


def pages_words(shared: Registrations) -> str | None:
    """What registering takes on each of several GPUs, on the one where it takes most, and with one GPU a process."""
    known = [table for table in shared.on_every_gpu if (table.table_bytes or 0) > 0]
    if not known:
        return None
    table = max(known, key=lambda table: table.table_bytes or 0)
    own = max(
        (each for each in shared.on_gpus if each.contexts == "own_gpu"),
        key=lambda each: each.table_bytes or 0,
        default=None,
    )
    apart = f", {format_bytes(own.table_bytes)} with {own.processes}, one per GPU" if own and own.table_bytes else ""
    return (
        f"Sharing {format_bytes(table.bytes)} costs each GPU {format_bytes(table.table_bytes)} when "
        f"{format_count(table.processes, 'process')} pin it{apart}"
    )


def _taken_words(shared: Registrations) -> str | None:
    kind, register = ("page tables", "lock") if shared.run.lab == "host" else ("GPU page tables", "register")
    apart, owner = (trial if trial and (trial.table_bytes or 0) >= 0 else None for trial in shared.both)
    if apart and apart.table_bytes is not None:
        several = f"{apart.processes} processes sharing {format_bytes(apart.bytes)} take"
        who = several if apart.processes > 1 else f"a process that {register}s {format_bytes(apart.bytes)} takes"
        return f"{who} {format_bytes(apart.table_bytes)} of {kind}"
    if owner is None or owner.table_bytes is None:
        return None
    return f"one owner of {format_bytes(owner.bytes)} takes {format_bytes(owner.table_bytes)} of {kind}"


def _rates_words(shared: Registrations) -> str | None:
    """How one owner's copies do beside those of all; the rate of one strategy alone answers nothing."""
    if shared.rates is None:
        return None
    apart, owner = shared.rates
    if shared.is_owner_slower:
        return f"at {format_share(ratio(owner, apart))} of their rate"
    return f"{'faster' if _is_faster(owner, apart) else 'as fast'} ({format_bandwidth(owner.median)})"


def _is_faster(first: Summary, second: Summary) -> bool:
    return exceeds(first, second) and ratio(second, first) < 1 - SAME_RATE
