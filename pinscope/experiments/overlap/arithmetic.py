"""Overlap arithmetic: combinations of the recipe, how much of the copies they hide, and the spans inside a pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
    groups: dict[tuple[str, str, Recipe], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["kind"] == "pass" and not row["warmup"]:
            groups.setdefault((row["direction"], row["balance"], _recipe(row)), []).append(row)
    found = [_pass_cell(*key, group) for key, group in groups.items()]
    return sorted(
        found,
        key=lambda cell: (
            cell.direction,
            cell.balance,
            len(cell.recipe.missing),
            cell.recipe.missing,
            cell.recipe.depth,
        ),
    )


def _pass_cell(direction: str, balance: str, recipe: Recipe, rows: Sequence[Mapping[str, Any]]) -> PassCell:
    first = rows[0]
    copy_alone, compute_alone = first["copy_alone_seconds"], first["compute_alone_seconds"]
    device_seconds = summarize([row["device_seconds"] for row in rows])
    chunks = first["chunks"]
    return PassCell(
        recipe,
        direction,
        balance,
        first["bytes"],
        chunks,
        device_seconds,
        summarize([row["issue_seconds"] for row in rows]),
        summarize([row["stall_seconds"] for row in rows]),
        copy_alone,
        compute_alone,
        overlap_share(first["pinned_copy_seconds"], compute_alone, device_seconds.median),
        overlap_share(copy_alone, compute_alone, device_seconds.median),
        copy_alone / first["pinned_copy_seconds"],
        1 - 1 / chunks,
        sum(row["corrupted_chunks"] for row in rows),
        chunks * len(rows),
    )


def spans(rows: Iterable[Mapping[str, Any]]) -> list[Span]:
    """The timelines that a run kept."""
    return [
        Span(
            _recipe(row),
            row["direction"],
            row["balance"],
            row["lane"],
            row["chunk"],
            row["start_seconds"],
            row["end_seconds"],
        )
        for row in rows
        if row["kind"] == "span"
    ]
