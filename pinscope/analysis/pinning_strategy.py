"""Arithmetic of pinning strategies: what each took, how long neighbours waited, which one is recommended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Generic, TypeVar

from pinscope.analysis.cells import Label, Value, cells, median
from pinscope.analysis.read_rows import Row, counted, grouped
from pinscope.analysis.statistics import Summary, exceeds, summarize
from pinscope.analysis.texts import Costed, Text, say
from pinscope.records.registration import SHARED_STRATEGIES, STRATEGIES, SharedStrategyName, Strategy, StrategyName
from pinscope.records.run import quantity
from pinscope.units import exact_bytes

USUAL: StrategyName = "host_alloc"
"""What the others are compared with: one cudaHostAlloc."""
IDLE = "idle"
CALLS: Mapping[str, str] = {
    "info": "cudaMemGetInfo",
    "nvml": "NVML",
    "kernel": "kernel",
    "allocation": "cudaMalloc + cudaFree",
}
"""Part of an observation's field → the driver call of a neighbour that it is the longest of."""
PHASES: Mapping[str, str] = {"": "pinned", "release_": "given back"}
"""Beginning of an observation's field → what was done to the memory meanwhile."""
TITLES: Mapping[str, str] = {
    **{name: strategy.title for name, strategy in [*STRATEGIES.items(), *SHARED_STRATEGIES.items()]},
    IDLE: "idle",
}
NEAR = 1.5
"""Strategies within this factor of the fastest are fast."""
GENTLE = 2.0
"""Fast ones whose longest waits are within this factor of the gentlest's are gentle: on three hosts the usual longest
wait of one strategy, thp_pipeline, was 11, 12 and 21 ms."""
FEWEST = 3
"""Waits of three repeats all lie below those of three others by chance once in 20 times; of fewer more often."""
WORTH_IT = 1.5
"""A strategy is recommended over cudaHostAlloc from this many times its speed on."""
FAR = 16
"""A pace says nothing of amounts so many times what was measured: at 4 KiB the strategies' order is reversed."""
SCHEDULING = 0.5
"""From this part of a wait on, a delay without any call of the driver may explain it."""
NOT_PINNED = {
    "not-pinned": Text(
        when="CUDA does not report registered memory as pinned",
        title="CUDA does not treat registered memory as pinned",
        detail="Affected: {affected}. On systems on which the GPU uses the host's page tables, registering does not "
        "page-lock.",
        advice="Pin with cudaHostAlloc here.",
        severity="critical",
    )
}


def not_pinned(measured: Any) -> Iterator[Costed]:
    """The finding on the cells of a run whose memory CUDA does not call pinned, if there are any."""
    if ways := [cell.title for cell in measured.cells if cell.pinned is False]:
        yield say(NOT_PINNED, "not-pinned", quantity("Ways affected", len(ways), "count"), affected="; ".join(ways))


def is_near(nbytes: int, measured_bytes: int) -> bool:
    """Whether what was measured says something of this amount."""
    return measured_bytes <= FAR * nbytes and nbytes <= FAR * measured_bytes


def cause(wait_seconds: float, control_seconds: float | None) -> dict[str, Any]:
    """The delay of a control that makes no call of the driver, named ``busy`` where it explains a wait, else
    ``driver``: then the driver made the call wait."""
    busy = control_seconds is not None and control_seconds >= SCHEDULING * wait_seconds
    return {"busy": control_seconds if busy else None, "driver": None if busy else control_seconds}


@dataclass(frozen=True)
class Wait:
    """The longest wait of a neighbour, or of a call of the process that pins.

    Attributes:
        seconds: how long.
        call: the driver call that waited.
        phase: what was done to the memory meanwhile: of a neighbour one of :data:`PHASES`.
    """

    seconds: float
    call: str
    phase: str

    @property
    def name(self) -> str:
        """The call with its article."""
        return f"{'An' if self.call[0] in 'aeiou' else 'A'} {self.call}"

    @property
    def during(self) -> str:
        """What went on meanwhile, for people."""
        return "while pinning" if self.phase == PHASES[""] else "while freeing"

    @property
    def what(self) -> str:
        """What went on meanwhile, as the subject of a sentence."""
        return "Pinning" if self.phase == PHASES[""] else "Freeing"

    @property
    def words(self) -> str:
        """Which call it was and when, for people."""
        return f"{self.call}, {self.during}"


class Waiting:
    """What calls waited beside it.

    Attributes:
        waits: of each call in each phase the longest over all repeats.
    """

    waits: Sequence[Wait]

    @property
    def longest_wait(self) -> Wait:
        """The longest call of all, while memory was pinned or given back."""
        return max(self.waits, key=lambda wait: wait.seconds)

    def wait(self, phase: str | None = None, call: str | None = None) -> float | None:
        """Seconds of the longest call, of all phases and calls or of one; ``None`` where it was not measured."""
        chosen = (wait for wait in self.waits if phase in (None, wait.phase) and call in (None, wait.call))
        return max((wait.seconds for wait in chosen), default=None)


@dataclass(frozen=True)
class StrategyCell(Waiting):
    """All repeats of one strategy.

    Attributes:
        strategy: its name.
        bytes: how much it pinned.
        chunk_bytes: length of a chunk; ``None`` where all is pinned by one call.
        threads: how many touched.
        total_seconds: until all was pinned.
        touch_seconds, pin_seconds, release_seconds: parts, and giving back (medians); ``None`` where there is none.
        waits: driver calls of neighbours, in both phases, each the longest over all repeats.
        usual_wait_seconds: the median of ``longest_seconds``.
        control_seconds: phase → how late at most a neighbour without driver calls woke; empty where there was none.
        pinned: whether CUDA called all of it pinned, every time.
        copy_bytes_per_second: of one copy within a chunk (median).
        crossing_copies: whether CUDA took a copy across a boundary; ``None`` where there is none.
        longest_seconds: of each repeat the longest driver call of any neighbour, in both phases.
    """

    strategy: Annotated[str, Label("strategy", words=TITLES.__getitem__)]
    bytes: Annotated[int, Label("size", "bytes")]
    chunk_bytes: Annotated[int | None, Label("chunk", "bytes")]
    threads: Annotated[int, Label("threads", "count")]
    total_seconds: Annotated[Summary, Value("total", "seconds", "less")]
    touch_seconds: Annotated[float | None, Value("touching", "seconds", "less", median)]
    pin_seconds: Annotated[float | None, Value("pinning", "seconds", "less", median)]
    release_seconds: Annotated[float | None, Value("give back", "seconds", "less", median)]
    usual_wait_seconds: Annotated[float, Value("usual wait", "seconds", "less")]
    pinned: Annotated[bool | None, Value("CUDA: pinned", "text", make=all)]
    copy_bytes_per_second: Annotated[float | None, Value("copy rate", "bytes/second", "more")]
    crossing_copies: Annotated[bool | None, Value("copies across chunks", "text", make=all)]
    waits: Sequence[Wait] = ()
    longest_seconds: Sequence[float] = ()
    control_seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The strategy for people."""
        return TITLES[self.strategy]

    @property
    def bytes_per_second(self) -> Annotated[float, Value("rate", "bytes/second", "more")]:
        """How fast it pins (median)."""
        return self.bytes / self.total_seconds.median

    @property
    def longest_control(self) -> float | None:
        """How late at most a neighbour without driver calls woke, seconds; ``None`` where there was none."""
        return max(self.control_seconds.values(), default=None)

    def seconds_for(self, nbytes: int) -> float:
        """Seconds to pin this much at the same pace."""
        return nbytes / self.bytes_per_second

    def is_gentler(self, other: StrategyCell) -> bool:
        """Whether neighbours wait clearly less beside it: usually, and in each repeat less than in any of the other."""
        own, others = self.longest_seconds, other.longest_seconds
        usually = NEAR * self.usual_wait_seconds <= other.usual_wait_seconds
        return usually and min(len(own), len(others)) >= FEWEST and max(own) < min(others)


def strategy_cells(rows: Iterable[Row]) -> dict[str, StrategyCell]:
    """Strategy → its repeats, in the order in which they were measured; ``idle`` is among them."""
    rows = counted(rows)
    own = grouped(rows, lambda row: row["strategy"])
    return {cell.strategy: _with_waits(cell, own[cell.strategy]) for cell in cells(StrategyCell, rows)}


def _with_waits(cell: StrategyCell, rows: Sequence[Row]) -> StrategyCell:
    """The cell with what follows from several fields of its rows."""

    def values(field: str) -> list[Any]:
        return [row[field] for row in rows if row.get(field) is not None]

    longest = [_longest(row) for row in rows]
    rates = [row["copy_bytes"] / row["copy_seconds"] for row in rows if row["copy_bytes"] and row["copy_seconds"]]
    controls = {phase: values(f"{begin}neighbour_control_seconds") for begin, phase in PHASES.items()}
    return replace(
        cell,
        waits=_waits(values),
        usual_wait_seconds=summarize(longest).median,
        longest_seconds=longest,
        control_seconds={phase: max(late) for phase, late in controls.items() if late},
        copy_bytes_per_second=summarize(rates).median if rates else None,
    )


def _longest(row: Row) -> float:
    """The longest driver call of any neighbour in one repeat, both phases."""
    fields = (f"{phase}neighbour_{call}_seconds" for phase in PHASES for call in CALLS)
    return max(float(row[field]) for field in fields if row.get(field) is not None)


def _waits(values: Callable[[str], list[Any]]) -> list[Wait]:
    """Of every call in every phase that the run tells."""
    return [
        Wait(max(waited), call, phase)
        for begin, phase in PHASES.items()
        for name, call in CALLS.items()
        if (waited := values(f"{begin}neighbour_{name}_seconds"))
    ]


_Best = TypeVar("_Best")


@dataclass(frozen=True)
class Recommended(Generic[_Best]):
    """What a run recommends: cells, or recipes.

    An array must take any copy, and CUDA refuses one that crosses two registered chunks: so an array is pinned in one
    piece, and the gentler way in chunks is recommended beside it, for data of which each copy stays in its chunk.

    Attributes:
        array: for one array that any copy may use; ``None`` if no such strategy was measured.
        chunks: in chunks side by side; ``None`` likewise.
        gentler_in_chunks: whether neighbours wait clearly less when memory is pinned in chunks.
    """

    array: _Best | None
    chunks: _Best | None
    gentler_in_chunks: bool


def recommend(cells: Mapping[str, StrategyCell]) -> Recommended[StrategyCell]:
    """The best strategy in one piece and in chunks.

    Of each sort the fastest of those that are fast and gentle. Fast: at most ``NEAR`` times the time of the fastest.
    Gentle: of the fast ones, at most ``GENTLE`` times the usual longest wait of the gentlest. A single longest wait is
    chance, so the median over repeats decides; what is shown is the longest of all. In one piece, cudaHostAlloc stays
    unless the best is ``WORTH_IT`` times as fast.
    """
    able = [
        (STRATEGIES[name], cell)
        for name, cell in cells.items()
        if name in STRATEGIES and STRATEGIES[name].makes_array and cell.pinned is not False
    ]
    array = _best([cell for strategy, cell in able if not strategy.chunked])
    usual = cells.get(USUAL)
    if array and usual:
        took, least = usual.total_seconds, array.total_seconds
        array = array if took.median >= WORTH_IT * least.median and exceeds(took, least) else usual
    chunks = _best([cell for strategy, cell in able if strategy.chunked])
    return Recommended(array, chunks, bool(array and chunks and chunks.is_gentler(array)))


def _best(cells: Sequence[StrategyCell]) -> StrategyCell | None:
    if not cells:
        return None
    fastest = min(cell.total_seconds.median for cell in cells)
    fast = [cell for cell in cells if cell.total_seconds.median <= NEAR * fastest]
    gentlest = min(cell.usual_wait_seconds for cell in fast)
    gentle = [cell for cell in fast if cell.usual_wait_seconds <= GENTLE * gentlest]
    return min(gentle, key=lambda cell: cell.total_seconds.median)


DEFAULT_ARRAY: StrategyName = "thp_register"
DEFAULT_CHUNKS: StrategyName = "thp_pipeline"
"""What ``pinned_empty`` takes without and with ``chunk``: as the recorded H200 recommends, which a test holds."""
DEFAULT_SHARED: SharedStrategyName = "memfd"
"""The same with ``shared``: what every host has."""
_IN_SMALL_PAGES: Mapping[str, StrategyName] = {DEFAULT_ARRAY: "touch_register", DEFAULT_CHUNKS: "touch_register_chunks"}
"""Strategy → the nearest one that was measured in 4 KiB pages, for hosts without huge ones."""


def default_strategy(chunked: bool, huge_pages: bool) -> Strategy:
    """What ``pinned_empty`` does unless a strategy is named."""
    name = DEFAULT_CHUNKS if chunked else DEFAULT_ARRAY
    return STRATEGIES[name if huge_pages else _IN_SMALL_PAGES[name]]


@dataclass(frozen=True)
class Recipe:
    """A strategy with its settings.

    Attributes:
        strategy: its name.
        chunk_bytes: length of a chunk; ``None`` where all is pinned by one call.
        threads: how many touch (and register, where several do).
        names_threads: whether their number was chosen; else it is that of the processors.
    """

    strategy: StrategyName | SharedStrategyName
    chunk_bytes: int | None
    threads: int
    names_threads: bool = False

    @classmethod
    def of(cls, cell: StrategyCell, params: Mapping[str, Any]) -> Recipe:
        """What was measured, with the parameters of the run."""
        chosen = bool(params.get("threads"))
        return cls(STRATEGIES[cell.strategy].name, cell.chunk_bytes, cell.threads, chosen)

    @property
    def title(self) -> str:
        """The strategy for people."""
        return TITLES[self.strategy]

    def call(self, nbytes: int) -> str:
        """The call of ``pinscope.pinned_empty`` that pins so much this way."""
        words = [f'"{exact_bytes(nbytes)}"']
        if self.chunk_bytes is not None:
            words.append(f'chunk="{exact_bytes(self.chunk_bytes)}"')
        if self.strategy in SHARED_STRATEGIES:
            words.append('shared="NAME"')
        if self.strategy not in (DEFAULT_SHARED, DEFAULT_ARRAY if self.chunk_bytes is None else DEFAULT_CHUNKS):
            words.append(f'strategy="{self.strategy}"')
        if self.names_threads:
            words.append(f"threads={self.threads}")
        return f"pinscope.pinned_empty({', '.join(words)})"

    def code(self, nbytes: int) -> str:
        """Python code that does so."""
        return f"import pinscope\n\nbuffer = {self.call(nbytes)}\n"


def recipes_of(best: Recommended[StrategyCell], params: Mapping[str, Any]) -> Recommended[Recipe]:
    """The recommended cells as recipes, with the parameters of their run."""
    array, chunks = (Recipe.of(cell, params) if cell else None for cell in (best.array, best.chunks))
    return Recommended(array, chunks, best.gentler_in_chunks)
