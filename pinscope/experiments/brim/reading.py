"""What the brim experiment concludes: headline, tables and findings from the rows of a run."""

from __future__ import annotations

from collections.abc import Sequence

from pinscope.analysis.rows import Row
from pinscope.experiments.brim.arithmetic import Climb, climbs
from pinscope.experiments.brim.findings import MARKS, charged, cliff, killed, off, outside, share_of
from pinscope.experiments.brim.verdict import brim_verdict
from pinscope.records.finding import Quantity, Reading, Table, quantity, table
from pinscope.records.run import ExperimentRun


def read_brim_run(run: ExperimentRun, rows: Sequence[Row]) -> Reading:
    """Headline, tables and findings of a brim run; empty parts where nothing was measured yet."""
    found = climbs(rows)
    if not found or not found[0].held:
        return Reading(headline=(), tables=(), findings=())
    victims = {row["swap"]: row["victim"] for row in rows if row["victim"]}
    return Reading(
        verdict=brim_verdict(run, found[0]),
        headline=_headline(found[0]),
        tables=(_marks(found), _steps(found)),
        findings=(
            *(finding for climb in found for finding in (*killed(climb, victims.get(climb.swap)), *cliff(climb))),
            *charged(found[0]),
            *(finding for climb in found for finding in outside(climb)),
        ),
    )


def _headline(climb: Climb) -> tuple[Quantity, ...]:
    """Of the first group: where the others suffer, where they are killed, and what is felt outside."""
    mark, kill = climb.cliff, climb.mark("killed")
    none = "not reached"
    first, last = (share_of(climb, one.bytes if one else None) for one in (mark, kill))
    return (
        quantity("Cliff, share of the group's limit", first, "share", reason=none),
        *([quantity("Step before it, share of the limit", share_of(climb, mark.below_bytes), "share")] if mark else []),
        quantity("Slowest round of work ÷ before pinning", climb.ratio(), "ratio", reason="no round was timed"),
        quantity("Killed at, share of the group's limit", last, "share", reason=none),
        quantity("Round outside, from the cliff on ÷ below it", climb.outside_ratio(), "ratio", reason=none),
        quantity("Group's limit", climb.limit, "bytes"),
        quantity(
            "Cliff off from the group's account, share of its limit",
            off(climb, mark, climb.expected_cliff),
            "share",
            reason=none,
        ),
        quantity("Group and processes gone at the end", climb.gone, "text", reason="the run has not ended"),
    )


def _marks(found: Sequence[Climb]) -> Table:
    return table(
        "Where others suffer",
        {
            "swap": "text",
            "from here on": "text",
            "pinned": "bytes",
            "step before": "bytes",
            "share of the limit": "share",
        },
        [
            (
                "with" if climb.swap else "without",
                MARKS[mark.kind],
                mark.bytes,
                mark.below_bytes,
                share_of(climb, mark.bytes),
            )
            for climb in found
            for mark in climb.marks
        ],
        note="The first line of a group is its cliff. Each lies between the step before and the one named.",
    )


def _steps(found: Sequence[Climb]) -> Table:
    return table(
        "Every step",
        {
            "swap": "text",
            "phase": "text",
            "pinned": "bytes",
            "share of the limit": "share",
            "round inside": "seconds",
            "round outside": "seconds",
            "file in cache": "share",
            "pages from disk": "count",
            "used": "bytes",
            "page cache": "bytes",
            "swapped out": "bytes",
            "refaults": "count",
            "kills": "count",
            "stalled": "share",
            "rounds": "count",
        },
        [
            (
                "with" if climb.swap else "without",
                step.phase,
                step.bytes,
                share_of(climb, step.bytes),
                step.inside.median if step.inside else None,
                step.outside.median if step.outside else None,
                step.cached_share,
                step.faults,
                *(
                    (group.used_bytes, group.cache_bytes, group.swap_bytes, group.refaults, group.kills)
                    if (group := step.group)
                    else (None,) * 5
                ),
                step.stalled_share,
                step.rounds,
            )
            for climb in found
            for step in (climb.before, *climb.held, *([climb.after] if climb.after else ()))
        ],
        note="Rounds: medians. File in cache: the least before a round read it. Pages from disk: of the ordinary "
        "process's memory, in its worst round. Used, page cache, swapped out, refaults and kills: the group's own "
        "account at the end of the step. n/a: not reported here, or not measured.",
    )
