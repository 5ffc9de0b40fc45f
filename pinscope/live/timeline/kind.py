"""A timeline is a live view that was kept; `pinscope record` makes it."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.kind import AnyKind
from pinscope.analysis.read_rows import Row
from pinscope.live.timeline.findings import no_leak, timeline_findings
from pinscope.live.timeline.reading import headline, tables, timeline_verdict, watched
from pinscope.records.finding import Reading
from pinscope.records.parameters import Inputs, parameter
from pinscope.records.run import Run
from pinscope.records.timeline import TimelineRow


class TimelineParams(Inputs):
    """How the machine was watched."""

    interval_seconds: float = parameter("Interval", "From one sample to the next.", 1.0, unit="seconds")
    for_seconds: float | None = parameter("Asked for", "How long to watch.", None, unit="seconds")
    pids: tuple[int, ...] = parameter("Only these processes", "By their ids.", ())
    probe: bool = parameter("Registered memory followed", "By uprobes on the driver's library; needs root.", False)


class Timeline:
    """Who held pinned memory over a stretch of time, and what it cost each GPU."""

    name = "timeline"
    title = "Timeline"
    question = "Who held pinned memory while this machine was watched, and what grew?"
    Params = TimelineParams
    Observation = TimelineRow

    def read(self, run: Run, rows: Sequence[Row]) -> Reading:
        """Headline, tables and findings; of a timeline without samples only why there are none."""
        seen = watched(run, rows)
        if not seen.host:
            return Reading(headline=(), tables=(), findings=timeline_findings(seen))
        return Reading(
            verdict=timeline_verdict(seen, unlike_a_leak=any(no_leak(seen))),
            headline=tuple(headline(seen)),
            tables=tables(run, seen),
            findings=timeline_findings(seen),
        )


KIND: AnyKind = Timeline()
