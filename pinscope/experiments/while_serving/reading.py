"""How long the calls of a serving loop waited in each way to pin: cells, verdict, headline and table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import Annotated

from pinscope.analysis.cells import Label, Value, every_combination
from pinscope.analysis.pinning_strategy import GENTLE, Wait, Waiting
from pinscope.analysis.read_rows import Row, Rows, counted, grouped, median, summary
from pinscope.analysis.statistics import Summary, compared, measured, summarize
from pinscope.experiments.while_serving.ways import CALLS, WAYS
from pinscope.records.run import ExperimentRun, Quantity, Table, quantity
from pinscope.units import format_bytes, format_seconds

USUAL_LIMIT = 0.02
"""Seconds, where a run does not name its limit."""
IDLE, TOUCH, AUTO = "idle", "touch", "auto"
TAKEN, GIVEN_BACK = "taken", "given_back"
MEANWHILE: Mapping[str, str] = {TAKEN: "while pinning", GIVEN_BACK: "while giving back"}
"""Phase → what is done to memory that is pinned."""


@dataclass(frozen=True)
class Cell(Waiting):
    """All repeats of one way, with one length of a chunk.

    Attributes:
        chunk_bytes: length of a chunk; ``None`` where there are none. Of ``auto``: the shortest that it found.
        waits: of each call in each phase (``taken``, ``given_back`` or ``idle``) the longest over all repeats.
        pinned: whether CUDA called it pinned every time; ``None`` where nothing was to be pinned.
    """

    way: str
    title: Annotated[str, Label("way")]
    chunk_bytes: Annotated[int | None, Label("chunk", "bytes")]
    bytes: int
    total_seconds: Annotated[Summary, Value("total", "seconds", "less")]
    release_seconds: Annotated[float | None, Value("give back", "seconds", "less")]
    waits: Sequence[Wait]
    longest_round_seconds: Annotated[float, Value("longest round", "seconds", "less")]
    typical_round_seconds: Annotated[float | None, Value("typical round", "seconds", "less")]
    pinned: bool | None

    @property
    def bytes_per_second(self) -> Annotated[float | None, Value("rate", "bytes/second", "more")]:
        """How fast it pins."""
        return self.bytes / self.total_seconds.median if self.pins else None

    @property
    def taken_wait_seconds(self) -> Annotated[float | None, Value("longest wait, pinning", "seconds", "less")]:
        """Of any call."""
        return self.wait(TAKEN)

    @property
    def given_back_wait_seconds(self) -> Annotated[float | None, Value("longest wait, giving back", "seconds", "less")]:
        """Of any call."""
        return self.wait(GIVEN_BACK)

    @property
    def longest_call(self) -> Annotated[str, Value("of the call", "text")]:
        """Which waited longest."""
        return self.longest_wait.call

    @property
    def longest_words(self) -> str:
        """Which call that was; of memory that is pinned also when."""
        meanwhile = f" {MEANWHILE[self.longest_wait.phase]}" if self.way not in (IDLE, TOUCH) else ""
        return f"{self.longest_wait.call}{meanwhile}"

    @property
    def pins(self) -> bool:
        """Whether it is a way to pin, and CUDA agrees."""
        return self.way not in (IDLE, TOUCH) and self.pinned is not False

    @property
    def piece_bytes(self) -> int:
        """Length of what one call pins."""
        return self.chunk_bytes or self.bytes


def cells_of(rows: Iterable[Row]) -> list[Cell]:
    """Every way with every length of a chunk, in the order measured. One that broke off while pinning is left out."""
    groups = grouped(counted(rows), lambda row: (row["way"], row["chunk_bytes"] if row["way"] == "chunks" else None))
    return [_cell(group) for group in groups.values() if any(row["phase"] != GIVEN_BACK for row in group)]


def _cell(rows: Rows) -> Cell:
    way, taken = rows[0]["way"], [row for row in rows if row["phase"] != GIVEN_BACK]
    phases = grouped(rows, lambda row: str(row["phase"]))
    chunk = min((row["chunk_bytes"] for row in rows if row["chunk_bytes"]), default=None)
    titles = {IDLE: "no other work", "chunks": f"chunks of {format_bytes(chunk)}"}
    known = [row["pinned"] for row in taken if row["pinned"] is not None]
    return Cell(
        way=way,
        title=titles.get(way) or WAYS[way].title,
        chunk_bytes=chunk,
        bytes=rows[0]["bytes"],
        total_seconds=summarize([row["work_seconds"] for row in taken]),
        release_seconds=median(summary(phases.get(GIVEN_BACK, []), "work_seconds")),
        waits=[
            Wait(max(row[f"{name}_longest_seconds"] for row in group), call.title, phase)
            for phase, group in phases.items()
            for name, call in CALLS.items()
        ],
        longest_round_seconds=max(row["round_longest_seconds"] for row in rows),
        typical_round_seconds=median(summary(taken, "round_typical_seconds")),
        pinned=all(known) if known else None,
    )


@dataclass(frozen=True)
class Serving:
    """The cells of a run, and how many seconds a call may wait."""

    cells: Sequence[Cell]
    limit: float

    def way(self, name: str) -> Cell | None:
        """The cell of a way that has no chunks to choose."""
        return next((cell for cell in self.cells if cell.way == name), None)

    @cached_property
    def fastest(self) -> Cell | None:
        """Of the ways to pin the one that takes least time."""
        pinning = (cell for cell in self.cells if cell.pins)
        return min(pinning, key=lambda cell: cell.total_seconds.median, default=None)

    @cached_property
    def registered(self) -> list[Cell]:
        """Chunks of each length, shortest first, and one registration, which is a chunk as long as all."""
        ways = [cell for cell in self.cells if cell.way in ("chunks", "register") and cell.pins]
        return sorted(ways, key=lambda cell: cell.piece_bytes)

    @property
    def largest_within(self) -> Cell | None:
        """Of the registered ones the longest chunk up to which no call waited longer than the limit: a longest wait is
        that of few repeats, so a longer chunk that kept to it beyond a shorter one that did not was lucky."""
        within = takewhile(lambda cell: cell.longest_wait.seconds <= self.limit, self.registered)
        return max(within, key=lambda cell: cell.piece_bytes, default=None)

    @property
    def in_one_piece(self) -> Cell | None:
        """What a program does that does not think of it: of the ways by one call, the one that makes calls wait
        longest."""
        ways = [cell for cell in self.cells if cell.way in ("host_alloc", "register") and cell.pins]
        return max(ways, key=lambda cell: cell.longest_wait.seconds, default=None)

    @property
    def in_chunks(self) -> Cell | None:
        """``chunk="auto"``; where it was not measured, the longest chunk that keeps to the limit."""
        return self.way(AUTO) or self.largest_within

    @property
    def gentle(self) -> Cell | None:
        """The same where one call that pins everything makes calls wait longer than they may, and clearly longer than
        it: what differs by less is chance in longest waits of few repeats."""
        chunks, naive = self.in_chunks, self.in_one_piece
        if chunks is None or naive is None or naive.longest_wait.seconds <= self.limit:
            return None
        return chunks if naive.longest_wait.seconds >= GENTLE * chunks.longest_wait.seconds else None


def of(run: ExperimentRun, rows: Sequence[Row]) -> Serving | None:
    """All that a run measured, and how long a call might wait; ``None``: nothing yet."""
    serving = Serving(cells_of(rows), float(run.params.get("longest_wait", USUAL_LIMIT)))
    return serving if serving.cells else None


def verdict(serving: Serving) -> str | None:
    """How long calls wait in one piece and in chunks; ``None`` where too little is known."""
    if any(cell.pinned is False for cell in serving.cells):
        return "CUDA does not take registered memory as pinned here: pin with cudaHostAlloc, before serving."
    naive, gentle = serving.in_one_piece, serving.gentle
    some = naive or serving.in_chunks
    if some is None:
        return None
    size = format_bytes(some.bytes)
    if naive and naive.longest_wait.seconds <= serving.limit:
        longest = format_seconds(naive.longest_wait.seconds)
        return f"One call may pin {size} while the program serves: its other CUDA calls waited {longest} at most."
    if naive is None or gentle is None:
        waits = f"CUDA calls wait up to {format_seconds(some.longest_wait.seconds)}"
        return f"{waits} while the same process pins {size} ({some.title})."
    how = f"pinscope.pinned_empty({gentle.title})" if gentle.way == AUTO else gentle.title
    less, longest = (format_seconds(cell.longest_wait.seconds) for cell in (gentle, naive))
    return f"While serving, pin {size} by {how}: longest wait {less}, with {naive.title} {longest}."


def headline(serving: Serving) -> Iterator[Quantity]:
    """What calls wait with the chunk that is found at run time, and without; then what it costs."""
    auto = serving.way(AUTO)
    for cell in filter(None, map(serving.way, (AUTO, "host_alloc", "register"))):
        yield quantity(
            f"Longest wait of a call, {cell.title}", cell.longest_wait.seconds, "seconds", key=f"{cell.way}.wait"
        )
    if auto and auto.pins and serving.fastest:
        name = f"Time of {auto.title} against the fastest way"
        yield compared(name, auto.total_seconds, serving.fastest.total_seconds, key="auto.ratio")
        reason = "memory cannot be registered here"
        yield quantity(f"Chunk of {auto.title}", auto.chunk_bytes, "bytes", reason=reason, key="auto.chunk")
        name = f"Time to pin {format_bytes(auto.bytes)}, {auto.title}"
        yield measured(name, auto.total_seconds, "seconds", key="auto.time")


def tables(serving: Serving) -> Iterator[Table]:
    """Every way."""
    yield every_combination(
        serving.cells,
        note="Total, give back and typical round are medians; a longest wait is the longest single call of all "
        f"repeats. The limit is {format_seconds(serving.limit)} for each call. A round is all calls once, and several "
        "of them may wait in it. A program that pins in the thread that serves waits for the total.",
    )
