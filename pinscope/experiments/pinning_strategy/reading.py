"""What the pinning strategy experiment concludes: verdict, headline and tables; its cells are shared with the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pinscope.analysis import pinning_strategy
from pinscope.analysis.cells import LineStyle, Way, every_combination, of_kind, way
from pinscope.analysis.read_rows import Row
from pinscope.analysis.statistics import compared, measured
from pinscope.analysis.texts import fill
from pinscope.records.registration import STRATEGIES
from pinscope.records.run import ExperimentRun, Quantity, Table, quantity
from pinscope.units import format_bytes, format_seconds

PHRASES: Mapping[str, str] = {
    "host_alloc": "one cudaHostAlloc",
    "host_alloc_chunks": "one cudaHostAlloc for each {chunk:bytes}",
    "register_untouched": "register memory that nobody touched, in 4 KiB pages, once",
    "touch_register": "touch 4 KiB pages with {threads:threads}, then register once",
    "touch_register_chunks": "touch 4 KiB pages with {threads:threads}, then register each {chunk:bytes}",
    "thp_register": "touch huge pages with {threads:threads}, then register once",
    "thp_register_chunks": "touch huge pages with {threads:threads}, then register each {chunk:bytes}",
    "thp_register_threads": "touch huge pages with {threads:threads}, which then register {chunk:bytes} each",
    "thp_pipeline": "touch huge pages with {threads:threads}, and register each {chunk:bytes} once touched",
}
WAYS: Mapping[str, Way] = {name: way(strategy.title, PHRASES[name]) for name, strategy in STRATEGIES.items()}
"""The strategies. Their phrase says what a program does, with places for its threads and chunks."""
NEIGHBOURS: Mapping[str, Way] = {
    "info": way(pinning_strategy.CALLS["info"], style=LineStyle("issue"), kinds="context"),
    "nvml": way(pinning_strategy.CALLS["nvml"], style=LineStyle("issue", "triangle-down")),
    "kernel": way(pinning_strategy.CALLS["kernel"], style=LineStyle("compute", "square"), kinds="context"),
    "allocation": way(pinning_strategy.CALLS["allocation"], style=LineStyle("issue", "diamond"), kinds="context"),
    "control": way("no driver calls", style=LineStyle("reference", "x")),
}
"""What processes on the same GPU do again and again. The control makes no call: it says how late it woke, which is
waiting for a processor. Those of the kind ``context`` need a CUDA context each."""
WITH_CONTEXT = of_kind(NEIGHBOURS, "context")


def phrase(cell: pinning_strategy.StrategyCell) -> str:
    """What a program does that pins this way."""
    return fill(WAYS[cell.strategy].phrase, {"threads": cell.threads, "chunk": cell.chunk_bytes})


@dataclass(frozen=True)
class Pinnings:
    """The strategies of a run."""

    run: ExperimentRun
    rows: Sequence[Row]

    @cached_property
    def by_name(self) -> dict[str, pinning_strategy.StrategyCell]:
        """With the neighbours idle."""
        return pinning_strategy.strategy_cells(self.rows)

    @property
    def cells(self) -> list[pinning_strategy.StrategyCell]:
        """The same."""
        return list(self.by_name.values())

    @cached_property
    def strategies(self) -> list[pinning_strategy.StrategyCell]:
        """Without the neighbours idle."""
        return [cell for cell in self.cells if cell.strategy != pinning_strategy.IDLE]

    @property
    def idle(self) -> pinning_strategy.StrategyCell | None:
        """The neighbours while nothing is pinned."""
        return self.by_name.get(pinning_strategy.IDLE)

    @cached_property
    def recommended(self) -> pinning_strategy.Recommended[pinning_strategy.StrategyCell]:
        """In one piece and in chunks."""
        return pinning_strategy.recommend(self.by_name)

    @property
    def best(self) -> pinning_strategy.StrategyCell | None:
        """What is recommended, else the fastest that pins, also in separate places."""
        pinned = [cell for cell in self.strategies if cell.pinned is not False]
        fastest = min(pinned, key=lambda cell: cell.total_seconds.median, default=None)
        return self.recommended.array or self.recommended.chunks or fastest

    @property
    def usual(self) -> pinning_strategy.StrategyCell | None:
        """One cudaHostAlloc."""
        return self.by_name.get(pinning_strategy.USUAL)

    @property
    def chunks(self) -> pinning_strategy.StrategyCell | None:
        """What is recommended in chunks, where that is gentler or nothing is in one piece."""
        best = self.recommended
        return best.chunks if best.gentler_in_chunks or not best.array else None


def of(run: ExperimentRun, rows: Sequence[Row]) -> Pinnings | None:
    """All that a run measured; ``None``: no strategy yet."""
    pinnings = Pinnings(run, rows)
    return pinnings if pinnings.strategies else None


def verdict(pinnings: Pinnings) -> str | None:
    """How to pin fast and how long that takes; ``None`` where no strategy was measured."""
    best, usual = pinnings.best, pinnings.usual
    if best is None:
        return "CUDA does not take memory as pinned that was registered: pin with cudaHostAlloc."
    size, seconds = format_bytes(best.bytes), format_seconds(best.total_seconds.median)
    array, chunks = pinnings.recommended.array, pinnings.chunks
    in_chunks = format_seconds(chunks.total_seconds.median) if chunks and array else None
    if best is usual:
        return f"One cudaHostAlloc pins {size} in {seconds}{f', gentler chunks take {in_chunks}' if in_chunks else ''}."
    instead = f", cudaHostAlloc {format_seconds(usual.total_seconds.median)}" if usual else ""
    what = f"{size} in one piece" if best is array else f"pinning {size}"
    takes = "takes " if not instead or best is not array else ""  # a sentence has 20 words
    how = phrase(best)
    if in_chunks:
        how, what, seconds = (
            how.replace(", then register", ", register").removesuffix(" once").rstrip(","),
            f"{size} whole",
            f"{seconds}, in chunks {in_chunks}",
        )
    return f"{how[:1].upper()}{how[1:]}: {what} {takes}{seconds}{instead}."


def headline(pinnings: Pinnings) -> Iterator[Quantity]:
    """How long the recommended way takes, what it is, and what others wait, in one piece and in chunks."""
    array, usual, chunks = pinnings.recommended.array, pinnings.usual, pinnings.chunks
    if array:
        way = "one cudaHostAlloc" if array is usual else "the recommended way"
        yield measured(
            f"Time to pin {format_bytes(array.bytes)}, {way}", array.total_seconds, "seconds", key="one_piece.time"
        )
        if usual and array is not usual:
            name = "Recommended way, times faster than one cudaHostAlloc"
            yield compared(name, usual.total_seconds, array.total_seconds, key="one_piece.gain")
        yield quantity("Recommended in one piece", array.title, "text", key="one_piece.strategy")
        yield longest_wait(f"{array.longest_wait.during} in one piece", array, "one_piece.wait")
    if chunks:
        yield quantity("Recommended in chunks", chunks.title, "text", key="chunks.strategy")
        yield longest_wait(f"{chunks.longest_wait.during} in chunks", chunks, "chunks.wait")


def longest_wait(during: str, cell: pinning_strategy.StrategyCell, key: str | None = None) -> Quantity:
    """The longest wait of both phases."""
    name = f"Longest driver call of another process {during}"
    return quantity(name, cell.longest_wait.seconds, "seconds", key=key)


def tables(pinnings: Pinnings) -> Iterator[Table]:
    """Each strategy."""
    yield every_combination(
        pinnings.strategies,
        note="Medians. Usual wait: of each repeat the longest driver call of another process. Copies at: one copy "
        "to the device within a chunk. Copies across chunks: whether CUDA takes one that crosses a boundary; n/a "
        "in one piece, and where chunks are separate allocations. Recommended, in one piece and in chunks: of the "
        f"strategies within {pinning_strategy.NEAR:g} times the fastest, the fastest of those whose usual wait is "
        f"within {pinning_strategy.GENTLE:g} times the shortest; cudaHostAlloc unless that is "
        f"{pinning_strategy.WORTH_IT:g} times as fast.",
    )
