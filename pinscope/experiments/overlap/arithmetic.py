"""Overlap arithmetic: combinations of the recipe, how much of the copies they hide, and the spans inside a pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pinscope.analysis.conclusions import is_distinct, together
from pinscope.analysis.rows import counted, grouped
from pinscope.analysis.statistics import Summary, summarize

FULL_DEPTH = 2
"""Ring depth of the recipe: double buffering."""


@dataclass(frozen=True, order=True)
class Recipe:
    """One combination of the ingredients."""

    memory: Literal["pageable", "pinned"]
    separate_stream: bool
    depth: int
    events: bool

    @property
    def missing(self) -> tuple[str, ...]:
        """Ingredients left out, in words; empty for the full recipe."""
        absent = {
            "pinned memory": self.memory != "pinned",
            "separate copy stream": not self.separate_stream,
            "double buffering": self.depth < FULL_DEPTH,
            "events": not self.events,
        }
        return tuple(name for name, is_absent in absent.items() if is_absent)

    @property
    def ordered(self) -> bool:
        """Whether something keeps copies and kernels in order: events, or one stream for both."""
        return self.events or not self.separate_stream

    @property
    def label(self) -> str:
        """``full recipe``, ``no events``, ``no pinned memory, no events`` …, with the depth beyond double."""
        words = ", ".join(f"no {name}" for name in self.missing) or "full recipe"
        return f"{words}, ring of {self.depth}" if self.depth > FULL_DEPTH else words


@dataclass(frozen=True)
class PassCell:
    """All counted passes of one recipe, direction and balance. Times in seconds.

    Attributes:
        overlap: share of the shorter side that the pipeline hides, measured against pinned copies and kernels one
            after the other: comparable between recipes, and below 0 where a recipe is slower than that.
        own_overlap: the same against this recipe's own copies: what ran beside what. Copies from pageable memory
            may have kernels beside them and still take several times as long.
        copy_slowdown: how many times as long the recipe's own copies take as pinned ones, with nothing beside them.
        ideal: the most that is possible, 1 − 1/chunks: one copy or kernel at an end has nothing to hide behind.
        corrupted_chunks: over all counted passes.
    """

    recipe: Recipe
    direction: str
    balance: str
    bytes: int
    chunks: int
    device_seconds: Summary
    issue_seconds: Summary
    stall_seconds: Summary
    copy_alone_seconds: float
    compute_alone_seconds: float
    overlap: float
    own_overlap: float
    copy_slowdown: float
    ideal: float
    corrupted_chunks: int
    checked_chunks: int

    @property
    def bytes_per_second(self) -> float:
        """Bytes of the pipeline over its median time."""
        return self.bytes * self.chunks / self.device_seconds.median

    @property
    def serial(self) -> float:
        """The time over that of pinned copies and the kernels one after the other."""
        pinned = self.copy_alone_seconds / self.copy_slowdown
        return self.device_seconds.median / (pinned + self.compute_alone_seconds)

    @property
    def own_serial(self) -> float:
        """The time over that of this recipe's own copies and the kernels one after the other: below 1 they overlap."""
        return self.device_seconds.median / (self.copy_alone_seconds + self.compute_alone_seconds)

    @property
    def least_seconds(self) -> float:
        """The least that a pass can take with pinned copies as they are alone: all but one chunk is hidden."""
        pinned = self.copy_alone_seconds / self.copy_slowdown
        return pinned + self.compute_alone_seconds - self.ideal * min(pinned, self.compute_alone_seconds)


@dataclass(frozen=True)
class Span:
    """One kernel or copy of the pass that was kept as a timeline. Seconds since the pass began."""

    recipe: Recipe
    direction: str
    balance: str
    lane: str
    chunk: int
    start_seconds: float
    end_seconds: float


def overlap_share(copy_alone: float, compute_alone: float, together: float) -> float:
    """(copy + compute − together) ÷ min(copy, compute): 1 when the shorter side is hidden entirely, 0 when none is.

    Negative where the two together take longer than one after the other.
    """
    return (copy_alone + compute_alone - together) / min(copy_alone, compute_alone)


def _recipe(row: Mapping[str, Any]) -> Recipe:
    return Recipe(row["memory"], row["separate_stream"], row["depth"], row["events"])


def passes(rows: Iterable[Mapping[str, Any]]) -> list[PassCell]:
    """Counted passes of a run's rows, grouped; full recipe first, then by what is missing."""
    whole = [row for row in counted(rows) if row["kind"] == "pass"]
    groups = grouped(whole, lambda row: (row["direction"], row["balance"], _recipe(row)))

    def place(cell: PassCell) -> tuple[Any, ...]:
        missing = cell.recipe.missing
        return cell.direction, cell.balance, len(missing), missing, cell.recipe.depth

    return sorted((_pass_cell(*key, group) for key, group in groups.items()), key=place)


def _pass_cell(direction: str, balance: str, recipe: Recipe, rows: Sequence[Mapping[str, Any]]) -> PassCell:
    first = rows[0]
    copy_alone, compute_alone = first["copy_alone_seconds"], first["compute_alone_seconds"]
    device_seconds = summarize([row["device_seconds"] for row in rows])
    chunks = first["chunks"]
    return PassCell(
        recipe=recipe,
        direction=direction,
        balance=balance,
        bytes=first["bytes"],
        chunks=chunks,
        device_seconds=device_seconds,
        issue_seconds=summarize([row["issue_seconds"] for row in rows]),
        stall_seconds=summarize([row["stall_seconds"] for row in rows]),
        copy_alone_seconds=copy_alone,
        compute_alone_seconds=compute_alone,
        overlap=overlap_share(first["pinned_copy_seconds"], compute_alone, device_seconds.median),
        own_overlap=overlap_share(copy_alone, compute_alone, device_seconds.median),
        copy_slowdown=copy_alone / first["pinned_copy_seconds"],
        ideal=1 - 1 / chunks,
        corrupted_chunks=sum(row["corrupted_chunks"] for row in rows),
        checked_chunks=chunks * len(rows),
    )


def spans(rows: Iterable[Mapping[str, Any]]) -> list[Span]:
    """The timelines that a run kept."""
    names = ("direction", "balance", "lane", "chunk", "start_seconds", "end_seconds")
    return [Span(_recipe(row), *(row[name] for name in names)) for row in rows if row["kind"] == "span"]


def balanced(cells: Sequence[PassCell]) -> list[PassCell]:
    """The balanced cells, or all where none is: overlap matters most where neither side is longer."""
    return [cell for cell in cells if cell.balance == "balanced"] or list(cells)


def full_recipe(cells: Sequence[PassCell]) -> list[PassCell]:
    """Those that lack no ingredient, with two buffers; h2d first."""
    full = [cell for cell in cells if not cell.recipe.missing and cell.recipe.depth == FULL_DEPTH]
    return sorted(full, key=lambda cell: cell.direction != "h2d")


@dataclass(frozen=True)
class Lack:
    """A recipe that lacks one ingredient, beside the full one of the same direction and balance.

    Attributes:
        missing: the ingredient.
        cell: without it.
        full: with everything.
    """

    missing: str
    cell: PassCell
    full: PassCell

    @property
    def ratio(self) -> float:
        """How many times as long it takes without."""
        return self.cell.device_seconds.median / self.full.device_seconds.median

    @property
    def uncertainty(self) -> float:
        """How far the ratio may be off, relative to it."""
        return together(self.cell.device_seconds, self.full.device_seconds)

    @property
    def is_distinct(self) -> bool:
        """Whether the ratio is farther from 1 than it may be off."""
        return is_distinct(self.ratio, self.uncertainty)


def lacks(cells: Sequence[PassCell]) -> list[Lack]:
    """Of the balanced cells those that lack one ingredient but events, which cost no time; h2d first."""
    full = {(cell.direction, cell.balance): cell for cell in full_recipe(cells)}
    found = [
        Lack(cell.recipe.missing[0], cell, full[cell.direction, cell.balance])
        for cell in balanced(cells)
        if len(cell.recipe.missing) == 1 and cell.recipe.depth <= FULL_DEPTH and cell.recipe.events
        if (cell.direction, cell.balance) in full
    ]
    return sorted(found, key=lambda lack: lack.cell.direction != "h2d")


def unordered(cells: Sequence[PassCell]) -> dict[tuple[str, str], list[PassCell]]:
    """(Memory, direction) → its cells whose two streams nothing kept in order; pinned memory and h2d first."""
    found = [cell for cell in cells if not cell.recipe.ordered]
    found.sort(key=lambda cell: (cell.recipe.memory != "pinned", cell.direction != "h2d"))
    return grouped(found, lambda cell: (cell.recipe.memory, cell.direction))


def corrupted_shares(cells: Sequence[PassCell]) -> dict[str, float]:
    """Balance → share of the chunks that were corrupted, over all its recipes."""
    return {
        balance.replace("_", "-"): sum(cell.corrupted_chunks for cell in group)
        / sum(cell.checked_chunks for cell in group)
        for balance, group in grouped(cells, lambda cell: cell.balance).items()
    }
