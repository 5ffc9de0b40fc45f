"""What a program's lines cost, each by a rule of its own: what it is, what it takes, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pinscope.analysis.read_rows import Row
from pinscope.tracing.sites import MOSTLY, Seen, Site, line_name
from pinscope.units import format_about, format_seconds, format_share


@dataclass(frozen=True)
class Cost:
    """What a line costs.

    Attributes:
        row: the line.
        seconds: what it costs: the CPU's work for it, and how long the GPU's compute, or of a program without kernels
            the CPU, stood for it.
        saved: what the advice saves; ``None`` where nobody knows.
        advice: what to do and what it is for, a sentence.
    """

    row: Row
    seconds: float
    saved: float | None
    advice: str

    def rank(self, seen: Seen) -> tuple[int, float]:
        """What is known to save a part of the time stands before what may, and that before what saves little."""
        if self.saved is None:
            return 1, self.seconds
        is_much = self.saved >= MOSTLY * seen.seconds_from_first(self.row) > 0
        return (2, self.saved) if is_much else (0, self.seconds)


def ranked(seen: Seen) -> Sequence[Cost]:
    """All that costs something, what to do first first."""
    costs = (cost for costs_of in COSTS for cost in costs_of(seen))
    return sorted(costs, key=lambda cost: cost.rank(seen), reverse=True)


def total_share(seen: Seen) -> float:
    """Of the time: copies, what the CPU does for them, pinning, and idle compute after waits together; of several
    processes that of the one with the largest."""
    sums: dict[int | None, float] = {}
    parts = [
        *((site.row, site.stands_seconds) for site in seen.sites),
        *((row, row["call_seconds"]) for row in seen.allocations),
        *((row, row["idle_seconds"]) for row in seen.waits),
    ]
    for row, seconds in parts:
        sums[row["process"]] = sums.get(row["process"], 0.0) + (seconds or 0.0)
    return max((min(sums[own] / seen.seconds_of(own), 1.0) for own in sums), default=0.0) if seen.seconds else 0.0


def spared_by_not_waiting(row: Row) -> float:
    """Seconds that the program would take less at most if a line did not wait: so much earlier the CPU would come to
    the next kernel, as far as compute stands idle until then."""
    return float(min(row["call_seconds"], row["idle_seconds"]))


def comes_late(row: Row) -> bool:
    """Whether compute stands idle behind a line's waits mostly because the CPU issued the next kernel late, however
    short the waits were."""
    return spared_by_not_waiting(row) < float(row["idle_seconds"]) / 2


def _took(seen: Seen, row: Row, seconds: float) -> str:
    whole = seen.seconds_from_first(row)
    share = f" ({format_share(min(seconds / whole, 1.0))})" if whole else ""
    return f"{format_seconds(seconds)}{share}"


def _stood(seen: Seen, site: Site) -> str:
    blocked = "the GPU idled" if site.row["idle_seconds"] is not None else "the CPU was blocked for"
    return f"{blocked} {_took(seen, site.row, site.stands_seconds)}"


def _pageable(seen: Seen) -> Iterator[Cost]:
    """What pinning the data of a line that copies large pieces would save."""
    for site, _ in seen.accused:
        saved, whole = site.saved_in_place, seen.seconds_from_first(site.row)
        if saved:
            what = "program" if whole == seen.seconds else "loop"
            share = f" ({float(f'{min(100 * saved / whole, 100):.2g}'):g} %)" if whole else ""
            advice = f"Pin what {site.name} copies: the {what} gets {format_about(saved)}{share} shorter."
        elif saved is None:
            advice = f"Pin what {site.name} copies: {_stood(seen, site)}."
        else:
            advice = f"Pinning what {site.name} copies would save nothing: {_stood(seen, site)}."
        yield Cost(site.row, site.stands_seconds, saved, advice)


def _pinned(seen: Seen) -> Iterator[Cost]:
    """Copies from or to pinned memory for which compute stands."""
    for site in seen.pinned:
        if seen.is_long(site.row, site.stands_seconds):
            advice = f"Overlap the pinned copies of {site.name}: {_stood(seen, site)}."
            yield Cost(site.row, site.stands_seconds, None, advice)


def _waits(seen: Seen) -> Iterator[Cost]:
    """Idle compute behind a line's waits."""
    if seen.read_later or (seen.program and seen.program["managed_bytes"]):
        return  # data may be read or written only after a wait: none of them is known to be of no use
    for row in seen.idling:
        to_do = "Launch the next kernel sooner after the waits of" if comes_late(row) else "Wait less often at"
        idle = row["idle_seconds"]
        yield Cost(row, idle, None, f"{to_do} {line_name(row)}: the GPU idled {_took(seen, row, idle)}.")


def _churn(seen: Seen) -> Iterator[Cost]:
    """Pinning memory again and again."""
    for row in seen.churn:
        held = row["call_seconds"]
        advice = f"Pin once at {line_name(row)}, not {row['count']:,} times: it took {_took(seen, row, held)}."
        yield Cost(row, held, held * (1 - 1 / row["count"]), advice)


def _small(seen: Seen) -> Iterator[Cost]:
    """Many small copies."""
    for site in seen.small:
        held, gathered = site.row["call_seconds"], site.gathered_seconds
        what = f"Gather the {site.row['count']:,} small copies of {site.name}"
        advice = f"{what}: they blocked the CPU for {_took(seen, site.row, held)}."
        yield Cost(site.row, held, None if gathered is None else max(held - gathered, 0.0), advice)


COSTS: tuple[Callable[[Seen], Iterator[Cost]], ...] = (_pageable, _pinned, _waits, _churn, _small)
"""The rules; each gives the lines that cost something by it."""
