"""Which of a run's curves are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pinscope.experiments.bandwidth.arithmetic import Cell, Line

PUBLISHED_STATE = ("4k", "cold")
"""The pageable memory of the published table's program: by malloc, which on Linux has small pages unless huge ones are
always used, and copied once after three more arrays of 16 MiB were written; the processor's caches hold 16 MiB."""
COMPARED = (PUBLISHED_STATE, ("thp", "cold"), ("4k", "warm"), ("thp", "warm"))
"""States of pageable memory in the order in which pinned memory is compared with them; the first that was measured."""
Curves = Mapping[Line, Sequence[Cell]]


def curve_of(
    curves: Curves, memory: str, direction: str, copier: str = "engine", cache: str | None = None
) -> Sequence[Cell]:
    """The curve of a single GPU with these labels; empty if it was not measured.

    Of several states of the memory it is the one that is compared, or that with this ``cache``.
    """
    found = [
        line
        for line in curves
        if (line.memory, line.direction, line.copier, line.devices) == (memory, direction, copier, 1)
        and cache in (None, line.cache)
    ]
    chosen = min(found, key=_rank, default=None)
    return curves[chosen] if chosen else ()


def _rank(line: Line) -> int:
    state = (line.backing, line.cache)
    return COMPARED.index(state) if state in COMPARED else -1 if not line.cache else len(COMPARED)


def compared(curves: Curves) -> dict[Line, Sequence[Cell]]:
    """Of each kind of memory, direction and copier the curve that is compared."""
    return {line: curve for line, curve in curves.items() if curve is curve_of(curves, *_labels(line))}


def _labels(line: Line) -> tuple[str, str, str]:
    return line.memory, line.direction, line.copier
