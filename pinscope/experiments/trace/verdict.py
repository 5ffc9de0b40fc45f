"""The verdict of a trace: the line that pinning would help most, with its figures, or that none is left."""

from __future__ import annotations

from pinscope.experiments.trace.arithmetic import Seen, Site
from pinscope.units import format_bytes, format_seconds


def trace_verdict(seen: Seen) -> str | None:
    """At most three sentences; ``None`` while the program runs."""
    if seen.program is None:
        return None
    if not seen.program["copies"]:
        return "The program copied nothing to or from a GPU."
    if seen.pageable:
        return " ".join(filter(None, (_worst(seen, seen.pageable[0]), _others(seen))))
    if seen.pinned:
        count = sum(site.row["large_count"] for site in seen.pinned)
        size = sum(site.row["bytes"] for site in seen.pinned)
        copies = f"All {count:,} large copies use" if count > 1 else "The one large copy uses"
        return f"{copies} pinned memory, {format_bytes(size)} together.{_idle(seen)}"
    return f"None of {seen.program['copies']:,} copies is a large one between host and GPU: pinning would not help."


def _worst(seen: Seen, site: Site) -> str:
    way = "from" if site.row["direction"] == "h2d" else "to"
    what = "GPU compute stood idle" if site.row["idle_seconds"] is not None else "the CPU was held"
    stood = f"{format_seconds(site.stands_seconds)} of {format_seconds(seen.seconds)}"
    first = f"{site.name} copied {format_bytes(site.row['bytes'])} {way} pageable memory; {what} {stood} for it."
    saved = site.saved_in_place
    return first if saved is None else f"{first} Pinning it would save about {format_seconds(saved)}."


def _others(seen: Seen) -> str:
    others = seen.pageable[1:]
    if not others:
        return ""
    lines = f"{len(others)} more {'lines copy' if len(others) > 1 else 'line copies'} pageable memory"
    saved = [site.saved_in_place for site in others if site.saved_in_place is not None]
    return f"{lines}: about {format_seconds(sum(saved))} more." if saved and sum(saved) else f"{lines}."


def _idle(seen: Seen) -> str:
    idle = sum(site.row["idle_seconds"] or 0.0 for site in seen.pinned)
    if all(site.row["idle_seconds"] is None for site in seen.pinned):
        return ""
    return f" GPU compute stood idle {format_seconds(idle)} of {format_seconds(seen.seconds)} for them."
