"""What a trace looks like: the lines that cost most, and the memory that each copies."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.rows import Row
from pinscope.charts.bars import Part, bars
from pinscope.charts.chart import Chart, alt_text
from pinscope.charts.theme import seconds_unit
from pinscope.experiments.trace.arithmetic import Seen, Site, seen_in
from pinscope.experiments.trace.charts_timeline import draw_whole
from pinscope.records.run import Run
from pinscope.units import format_bytes, format_seconds

GIB, MIB = 2**30, 2**20
MOST_BARS = 10
SAVED = "saved if pinned"
"""Name of the bars of what pinning would save."""

draw_attached = draw_whole
"""The chart that needs the single events."""


def draw(run: Run, rows: Sequence[Row]) -> list[Chart]:
    """The charts of a trace; none where nothing was copied between host and GPU."""
    seen = seen_in(run, rows)
    shown = [site for site in seen.sites if site.row["direction"] in ("h2d", "d2h")][:MOST_BARS]
    if not shown:
        return []
    return [_time(seen, shown), _bytes(sorted(shown, key=lambda site: -site.row["bytes"]))]


def _time(seen: Seen, sites: Sequence[Site]) -> Chart:
    names = [site.title for site in sites]
    held = {name: float(site.row["call_seconds"] or 0.0) for name, site in zip(names, sites, strict=True)}
    idle = {
        name: float(site.row["idle_seconds"])
        for name, site in zip(names, sites, strict=True)
        if site.row["idle_seconds"] is not None
    }
    known = [(name, site) for name, site in zip(names, sites, strict=True) if site.saved_in_place is not None]
    saved = {name: site.saved_in_place or 0.0 for name, site in known}
    parts = [
        Part("CPU held by the calls", "issue", held),
        *([Part("GPU compute idle", "stall", idle)] if idle else []),
        *([Part(SAVED, "pinned", saved)] if any(saved.values()) else []),
    ]
    scale, unit = seconds_unit(max([*held.values(), *idle.values()]))
    figure = bars(names, parts, f"Time ({unit})", format_seconds, scale=scale, side_by_side=True)
    reasons = ["" if saved[name] else site.unsaved_word or "nothing" for name, site in known]
    figure.update_traces(text=reasons, textposition="outside", cliponaxis=False, selector={"name": SAVED})
    return Chart(
        "trace-time",
        "What each line's copies cost",
        "By what pinning them would save, then by bytes. CPU held: how long the calls took. GPU compute idle: no "
        "kernel ran while the copies were issued and ran; no moment counts twice. Waits are in a table of their own. "
        f"From the first copy or kernel to the last it took {format_seconds(seen.seconds)}.",
        figure,
        alt_text(
            "CPU held, GPU compute idle, and what pinning would save, of each line",
            [
                (name, ", ".join(format_seconds(part.values[name]) for part in parts if name in part.values))
                for name in names
            ],
        ),
    )


def _bytes(sites: Sequence[Site]) -> Chart:
    names = [site.title for site in sites]
    kinds = [kind for kind in ("pageable", "pinned", "managed") if any(kind == site.host_memory for site in sites)]
    parts = [
        Part(
            kind,
            kind,
            {
                name: float(site.row["bytes"])
                for name, site in zip(names, sites, strict=True)
                if site.host_memory == kind
            },
        )
        for kind in kinds
    ]
    scale, unit = (GIB, "GiB") if sites[0].row["bytes"] >= GIB else (MIB, "MiB")
    figure = bars(names, parts, f"Copied ({unit})", format_bytes, scale=scale)
    return Chart(
        "trace-bytes",
        "What each line copies",
        "Bytes between host and GPU, by the kind of host memory. CUPTI says pinned for registered memory too.",
        figure,
        alt_text(
            "Copied by each line",
            [(name, format_bytes(site.row["bytes"])) for name, site in zip(names, sites, strict=True)],
        ),
    )
