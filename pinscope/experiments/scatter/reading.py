"""What a run of many small copies concludes: rates, the best of each way, which of them are as good as the best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import Annotated

from pinscope.analysis.cells import AS_GOOD_WORDS, Label, Value, best_of, cells, clearly_more, every_combination, listed
from pinscope.analysis.columns import Column, Columns
from pinscope.analysis.read_rows import Rows, grouped
from pinscope.analysis.statistics import Summary, are_known, compared, is_distinct, measured
from pinscope.analysis.texts import Wrong
from pinscope.experiments.scatter.ways import WAYS
from pinscope.records.run import VARIES, ExperimentRun, Quantity, Table, quantity
from pinscope.units import format_bandwidth, format_bytes, format_share

ENOUGH = 0.95
"""Of the best rate: what the fewest blocks, or threads, must reach."""
GOOD_ENOUGH = 0.9
"""Of the contiguous copy's rate: what a loop must reach to be good enough."""
TOWARDS: Mapping[str, str] = {"h2d": "to the GPU", "d2h": "from the GPU"}


@dataclass(frozen=True)
class Moved:
    """What was moved, in which way."""

    direction: Annotated[str, Label("direction", words=TOWARDS.get)]
    layout: Annotated[str, Label("layout")]
    bytes: Annotated[int, Label("piece", "bytes")]
    pieces: Annotated[int, Label("pieces", "count")]
    way: Annotated[str, Label("way", words=lambda way: WAYS[way].title)]
    blocks: Annotated[int | None, Label("blocks", "count")]
    threads: Annotated[int | None, Label("CPU threads", "count")]
    sms: Annotated[int | None, Label("multiprocessors", "count")]
    wall_seconds: Annotated[Summary, Value("time", "seconds", "less")]

    @property
    def bytes_per_second(self) -> Annotated[float, Value("rate", "bytes/second", "more")]:
        """From the first call until all pieces are in place."""
        return self.bytes * self.pieces / self.wall_seconds.median

    @property
    def piece_seconds(self) -> Summary:
        """Of one piece, by which ways are compared: older runs moved fewer pieces in some."""
        return replace(self.wall_seconds, median=self.wall_seconds.median / self.pieces)

    @property
    def what(self) -> str:
        """``4,096 scattered pieces of 4 KiB to the GPU``."""
        return f"{self.pieces:,} {self.layout} pieces of {format_bytes(self.bytes)} {TOWARDS[self.direction]}"

    @property
    def phrase(self) -> str:
        """The way inside a sentence."""
        return WAYS[self.way].words

    @property
    def title(self) -> str:
        """The way in tables."""
        return WAYS[self.way].title


@dataclass(frozen=True)
class Cell(Moved):
    """All repeats of one way with one number of blocks or threads."""

    device_seconds: Annotated[Summary, Value("of it on the GPU", "seconds", "less")]
    issue_seconds: Annotated[Summary, Value("thread held", "seconds", "less")]
    call_seconds: Annotated[Summary | None, Value("one call of a loop", "seconds", "less")]

    @property
    def held_share(self) -> float:
        """Of the time, for which calls and own copying hold the program's thread."""
        return min(self.issue_seconds.median / self.wall_seconds.median, 1.0)


@dataclass(frozen=True)
class Load(Moved):
    """A compute load beside one way; ``wall_seconds``: in which all pieces were moved once meanwhile."""

    compute_ratio: Annotated[Summary, Value("compute, times as long", "ratio", "less")]
    """The load's time over that alone."""

    @property
    def longer_share(self) -> Annotated[float, Value("compute longer by", "share", "less")]:
        """By which it took longer than alone; not less than nothing, which noise makes it."""
        return max(self.compute_ratio.median - 1, 0.0)

    @property
    def is_longer(self) -> bool:
        """Whether it did, and not by chance."""
        return self.compute_ratio.median > 1 and is_distinct(self.compute_ratio.median, self.compute_ratio)

    @property
    def longer_words(self) -> str:
        """By how much, as it stands before ``longer``."""
        return format_share(self.longer_share) if self.is_longer else "not measurably"

    @property
    def mover(self) -> str:
        """The way inside a sentence, with its blocks."""
        return f"a kernel of {self.blocks} blocks" if self.blocks else self.phrase


@dataclass(frozen=True)
class Pieces:
    """All cells of one direction, layout and size."""

    cells: Sequence[Cell]

    @cached_property
    def ways(self) -> Mapping[str, Cell]:
        """Way → its cell; of several blocks or threads the fewest that nearly reach the best."""
        return {way: _fewest(group) for way, group in grouped(self.cells, lambda cell: cell.way).items()}

    @cached_property
    def ranked(self) -> list[Cell]:
        """The cell of each way that can move scattered pieces, the fastest first."""
        movers = (cell for cell in self.ways.values() if "reference" not in WAYS[cell.way].kinds)
        return sorted(movers, key=lambda cell: -cell.bytes_per_second)

    @cached_property
    def winners(self) -> list[Cell]:
        """The fastest of them and those that are as good, the simplest first; last what varies too much to tell."""
        order = sorted(WAYS, key=lambda name: "simplest" not in WAYS[name].kinds)
        return best_of(self.ranked, lambda cell: cell.piece_seconds, lambda cell: order.index(cell.way))

    @property
    def winner_titles(self) -> str | None:
        """These for a table; ``None`` where the first varies too much to tell."""
        known = self.winners[0].wall_seconds.is_known
        return " or ".join(cell.title for cell in self.winners) if known else None

    @property
    def loop(self) -> Cell | None:
        """The loop of copies."""
        return self.ways.get("loop")

    @property
    def contiguous(self) -> Cell | None:
        """One copy of as much."""
        return self.ways.get("contiguous")

    @property
    def loop_share(self) -> float | None:
        """The loop's rate over that of the contiguous copy; ``None`` where it varies too much to tell."""
        loop, contiguous = self.ways["loop"], self.ways["contiguous"]
        known = are_known(loop.wall_seconds, contiguous.wall_seconds)
        return loop.bytes_per_second / contiguous.bytes_per_second if known else None


def _fewest(cells: Sequence[Cell]) -> Cell:
    alike = [cell for cell in cells if cell.wall_seconds.is_known] or cells
    best = max(cell.bytes_per_second for cell in alike)
    good = [cell for cell in alike if cell.bytes_per_second >= ENOUGH * best]
    return min(good, key=lambda cell: cell.blocks or cell.threads or 0)


@dataclass(frozen=True)
class Scatter:
    """A run.

    Attributes:
        area: bytes of pinned memory in which the pieces lie.
    """

    cells: Sequence[Cell]
    loads: Sequence[Load]
    rows: Rows
    area: int = 2**30

    @classmethod
    def of(cls, rows: Rows, area: int = area) -> Scatter:
        """Of its rows."""
        columns = Columns.of(rows)
        loads = columns.where("kind", "compute")
        ratios = loads.column("together_seconds").values / loads.column("alone_seconds").values
        measured = cells(Load, loads.having("compute_ratio", Column.of(ratios.tolist())))
        return cls(cells(Cell, columns.where("kind", "move")), measured, rows, area)

    @property
    def wrong(self) -> Wrong:
        """Words that did not arrive, or changed between the pieces."""
        some = any(Columns.of(self.rows).column("wrong_words").distinct)
        cases = [
            (f"{WAYS[row['way']].title}, pieces of {format_bytes(row['bytes'])} {row['direction']}", row["wrong_words"])
            for row in (self.rows if some else ())
        ]
        return Wrong("scatter-wrong", "Pieces arrived wrong", "words of 8 bytes", cases)

    @cached_property
    def cases(self) -> Mapping[tuple[str, str, int], Pieces]:
        """Direction, layout and size → its cells."""
        groups = grouped(self.cells, lambda cell: (cell.direction, cell.layout, cell.bytes))
        return {case: Pieces(group) for case, group in groups.items()}

    @cached_property
    def first(self) -> Pieces:
        """The smallest pieces of the first direction and layout."""
        first = self.cells[0].direction, self.cells[0].layout
        return self.cases[*first, min(size for *case, size in self.cases if tuple(case) == first)]

    @cached_property
    def loop_shares(self) -> Mapping[tuple[str, str, int], float | None]:
        """Direction, layout and size → of the loop's rate against a contiguous copy, where both were measured."""
        return {case: pieces.loop_share for case, pieces in self.cases.items() if pieces.loop and pieces.contiguous}

    @cached_property
    def loop_suffices(self) -> Mapping[tuple[str, str], int | None]:
        """Direction and layout, where it can be told of the largest size → the least size from which on a loop reaches
        90 % of a contiguous copy; ``None`` if it never does."""
        shares = self.loop_shares
        groups = grouped(shares, lambda case: case[:2])
        falling = {kind: sorted(cases, reverse=True) for kind, cases in groups.items()}
        return {
            kind: min(takewhile(lambda case: (shares[case] or 0.0) >= GOOD_ENOUGH, cases), default=(None,))[-1]
            for kind, cases in falling.items()
            if shares[cases[0]] is not None
        }


def of(run: ExperimentRun, rows: Rows) -> Scatter | None:
    """All that a run measured; ``None``: nothing moved yet."""
    scatter = Scatter.of(rows, int(run.params.get("area", Scatter.area)))
    return scatter if scatter.cells else None


def verdict(scatter: Scatter) -> str | None:
    """Of the smallest pieces the best way beside a loop; ``None`` where no two ways were measured."""
    first = scatter.first
    if len(first.ranked) < 2:
        return None
    best, other = first.winners[0], first.loop or first.ranked[-1]
    where = f"{best.layout} over {format_bytes(scatter.area)} {TOWARDS[best.direction].replace('the ', '')}"
    pieces = f"{format_bytes(best.bytes)} pieces {where}"
    if not best.wall_seconds.is_known:
        return f"Measure again: {pieces} vary too much to tell the fastest way."
    if not clearly_more(other.piece_seconds, best.piece_seconds):
        return f"Move {pieces} by {best.phrase} ({_rate(best)}): no way is clearly faster."
    if not other.wall_seconds.is_known:
        return f"Move {pieces} by {best.phrase}: {_rate(best)}, {other.phrase.removesuffix(' of copies')} is slower."
    return f"Move {pieces} by {best.phrase}: {_rate(best)}, {other.phrase.removesuffix(' of copies')} {_rate(other)}."


def _rate(cell: Cell) -> str:
    return format_bandwidth(cell.bytes_per_second)


def headline(scatter: Scatter) -> Iterator[Quantity]:
    """The smallest pieces: the best way beside a loop; then the best way of other cases."""
    first = scatter.first
    if not first.winners:
        return
    best = first.winners[0]
    yield _figure(best, "best")
    if first.loop:
        if best.way != "loop":
            yield compared("Gain over a loop of copies", first.loop.piece_seconds, best.piece_seconds, key="gain")
        yield _figure(first.loop, "loop")
        if first.contiguous:
            kind = best.direction, best.layout
            least = scatter.loop_suffices.get(kind)
            why = "it is not, up to the largest size measured" if kind in scatter.loop_suffices else VARIES
            yield quantity("Size from which a loop is good enough", least, "bytes", reason=why, key="loop.size")
    for (_, _, size), pieces in scatter.cases.items():
        if pieces is not first and size == best.bytes and pieces.winners:
            yield _figure(pieces.winners[0], "best")


def _figure(cell: Cell, way: str) -> Quantity:
    name, key = f"{cell.what} by {cell.phrase}", f"{cell.direction}.{cell.layout}.{way}.rate"
    return measured(name, cell.wall_seconds, "bytes/second", cell.bytes_per_second, key=key)


def _pace(cell: Cell | None) -> float | None:
    return cell.bytes_per_second if cell and cell.wall_seconds.is_known else None


def tables(scatter: Scatter) -> Iterator[Table]:
    """The best way of each case; compute beside the copies."""
    yield listed(
        "Which way wins",
        [(pieces.winners[0], pieces) for pieces in scatter.cases.values() if pieces.winners],
        {
            "direction": ("text", lambda row: TOWARDS[row[0].direction]),
            "layout": ("text", lambda row: row[0].layout),
            "piece": ("bytes", lambda row: row[0].bytes),
            "pieces": ("count", lambda row: row[0].pieces),
            "best way": ("text", lambda row: row[1].winner_titles),
            "its rate": ("bytes/second", lambda row: _pace(row[0])),
            "thread held": ("share", lambda row: row[0].held_share),
            "multiprocessors": ("count", lambda row: row[0].sms),
            WAYS["loop"].title: ("bytes/second", lambda row: _pace(row[1].loop)),
            "thread held by the loop": ("share", lambda row: row[1].loop and row[1].loop.held_share),
            WAYS["contiguous"].title: ("bytes/second", lambda row: _pace(row[1].contiguous)),
        },
        f"{AS_GOOD_WORDS} Figures are of the simplest, which is named first; n/a: repeats vary too much to tell.",
    )
    yield every_combination(
        scatter.loads,
        "The load keeps the arithmetic units of all multiprocessors busy. Meanwhile all pieces are moved over and "
        "over, the next time queued before the last is over, so time and rate are not those of one move alone.",
        "Compute beside the copies",
    )
