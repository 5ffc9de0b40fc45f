"""How long the calls of a serving loop waited in each way to pin, and which chunk keeps to a limit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pinscope.analysis.rows import Row, Rows, counted, grouped, median, summary
from pinscope.analysis.statistics import Summary, summarize
from pinscope.units import format_bytes

IDLE, TOUCH, AUTO = "idle", "touch", "auto"
CALLS: Mapping[str, str] = {
    "launch": "kernel launch",
    "copy": "asynchronous copy",
    "query": "event record and query",
    "synchronize": "stream synchronize",
}
"""Part of an observation's field → the call, for people."""
ROUND = "round"
TAKEN, GIVEN_BACK = "taken", "given_back"
MEANWHILE: Mapping[str, str] = {TAKEN: "while pinning", GIVEN_BACK: "while giving back"}
"""Phase → what is done to memory that is pinned."""
_TITLES: Mapping[str, str] = {
    IDLE: "no other work",
    TOUCH: "only touching",
    "host_alloc": "one cudaHostAlloc",
    "register": "one registration",
    AUTO: 'chunk="auto"',
}


@dataclass(frozen=True)
class Wait:
    """The longest call.

    Attributes:
        seconds: how long.
        call: which, for people.
        phase: ``taken`` or ``given_back`` (``idle``): what was done to the memory meanwhile.
    """

    seconds: float
    call: str
    phase: str

    @property
    def name(self) -> str:
        """The call with its article."""
        return f"{'an' if self.call[0] in 'aeiou' else 'a'} {self.call}"


@dataclass(frozen=True)
class Cell:
    """All repeats of one way, with one length of a chunk.

    Attributes:
        way: its name.
        chunk_bytes: length of a chunk; ``None`` where there are none. Of ``auto``: the shortest that it found.
        bytes: how much it pinned.
        threads: how many touched.
        seconds: until all was pinned.
        release_seconds: until all was given back (median); ``None`` where nothing was.
        waits: of each call in each phase the longest over all repeats.
        rounds: phase → the longest round.
        typical: (phase, call or ``round``) → median over repeats of the usual one.
        pinned: whether CUDA called it pinned every time; ``None`` where nothing was to be pinned.
    """

    way: str
    chunk_bytes: int | None
    bytes: int
    threads: int
    seconds: Summary
    release_seconds: float | None
    waits: Sequence[Wait]
    rounds: Mapping[str, float]
    typical: Mapping[tuple[str, str], float]
    pinned: bool | None

    @property
    def title(self) -> str:
        """The way for people."""
        return _TITLES[self.way] if self.way in _TITLES else f"chunks of {format_bytes(self.chunk_bytes)}"

    @property
    def longest(self) -> Wait:
        """The longest call of all, while memory was pinned or given back."""
        return max(self.waits, key=lambda wait: wait.seconds)

    @property
    def longest_words(self) -> str:
        """Which call that was; of memory that is pinned also when."""
        meanwhile = f" {MEANWHILE[self.longest.phase]}" if self.way not in (IDLE, TOUCH) else ""
        return f"{self.longest.call}{meanwhile}"

    @property
    def phases(self) -> list[str]:
        """Those that were measured."""
        return list(self.rounds)

    @property
    def pins(self) -> bool:
        """Whether it is a way to pin, and CUDA agrees."""
        return self.way not in (IDLE, TOUCH) and self.pinned is not False

    def wait(self, phase: str | None, call: str | None = None) -> float | None:
        """Seconds of the longest call, of all phases and calls or of one; ``None`` where it was not measured."""
        chosen = (one for one in self.waits if phase in (None, one.phase) and call in (None, one.call))
        return max((one.seconds for one in chosen), default=None)


def cells(rows: Iterable[Row]) -> list[Cell]:
    """Every way with every length of a chunk, in the order measured. One that broke off while pinning is left out."""
    groups = grouped(counted(rows), lambda row: (row["way"], row["chunk_bytes"] if row["way"] == "chunks" else None))
    return [_cell(group) for group in groups.values() if any(row["phase"] != GIVEN_BACK for row in group)]


def _cell(rows: Rows) -> Cell:
    first = rows[0]
    phases = grouped(rows, lambda row: str(row["phase"]))
    taken = [row for row in rows if row["phase"] != GIVEN_BACK]
    return Cell(
        way=first["way"],
        chunk_bytes=min((row["chunk_bytes"] for row in rows if row["chunk_bytes"]), default=None),
        bytes=first["bytes"],
        threads=first["threads"],
        seconds=summarize([row["work_seconds"] for row in taken]),
        release_seconds=median(summary(phases.get(GIVEN_BACK, []), "work_seconds")),
        waits=[
            Wait(max(row[f"{name}_longest_seconds"] for row in group), call, phase)
            for phase, group in phases.items()
            for name, call in CALLS.items()
        ],
        rounds={phase: max(row["round_longest_seconds"] for row in group) for phase, group in phases.items()},
        typical={
            (phase, name): median(summary(group, f"{name}_typical_seconds")) or 0.0
            for phase, group in phases.items()
            for name in (*CALLS, ROUND)
        },
        pinned=all(known) if (known := [row["pinned"] for row in taken if row["pinned"] is not None]) else None,
    )


def of_way(found: Iterable[Cell], way: str) -> Cell | None:
    """The cell of a way that has no chunks to choose."""
    return next((cell for cell in found if cell.way == way), None)


def fastest(found: Iterable[Cell]) -> Cell | None:
    """Of the ways to pin the one that takes least time."""
    return min((cell for cell in found if cell.pins), key=lambda cell: cell.seconds.median, default=None)


def slower(cell: Cell, found: Sequence[Cell]) -> float | None:
    """Its time over that of the fastest way; ``None`` where it is none to pin."""
    best = fastest(found)
    return cell.seconds.median / best.seconds.median if best and cell.pins else None


def registered(found: Iterable[Cell]) -> list[Cell]:
    """Chunks of each length, shortest first, and one registration, which is a chunk as long as all."""
    return sorted((cell for cell in found if cell.way in ("chunks", "register") and cell.pins), key=chunk)


def chunk(cell: Cell) -> int:
    """Length of what one call pins."""
    return cell.chunk_bytes or cell.bytes


def largest_within(found: Iterable[Cell], limit: float) -> Cell | None:
    """Of the registered ones the longest chunk of which no call waited longer than the limit."""
    return max((cell for cell in registered(found) if cell.longest.seconds <= limit), key=chunk, default=None)


def in_one_piece(found: Iterable[Cell]) -> Cell | None:
    """What a program does that does not think of it: of the ways by one call, the one that makes calls wait longest."""
    ways = [cell for cell in found if cell.way in ("host_alloc", "register") and cell.pins]
    return max(ways, key=lambda cell: cell.longest.seconds, default=None)
