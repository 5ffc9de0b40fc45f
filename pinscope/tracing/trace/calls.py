"""What calls of a line cost that need not be so many, or need not hold anything up: pinning, waiting, small copies, and
copies from pinned memory while the GPU stands."""

from __future__ import annotations

from collections.abc import Iterator

from pinscope.analysis.texts import Text, Texts, say
from pinscope.records.run import costing, quantity
from pinscope.tracing.sites import Seen, line_name
from pinscope.tracing.trace.costs import Cost, share_of_time, told, took
from pinscope.tracing.trace.cpu_work import pins_again
from pinscope.tracing.trace.needless import KINDS, needless_copies

NOT_RECORDED = "an earlier version made this trace"
NO_GATHERING = "no run of scatter says how fast pieces are gathered"
_SMALL = (
    "{line} makes {count:,} copies of {median_bytes:bytes}: they hold the CPU for {call_seconds:seconds}[, gathered "
    "they would take about {gathered:seconds}]"
)
_SCATTER = "'pinscope run scatter' measures which way is fastest here."
_IDLE = (
    "That is {share}. The waits themselves took {call_seconds:seconds}. {where} What the CPU did between a wait and "
    "the next kernel counts, such as loading data. Idle time of copies counts [twice, here and at the copies' line: "
    "{twice}][at the copies' line only{once}]."
)
_EARLIER = "what the CPU does between the wait and the next kernel in another process, as a DataLoader's workers do"
TEXTS: Texts = {
    "pinned-memory-in-a-loop": Text(
        "a line pins memory ten times or more, which takes a hundredth of the time",
        "{line} pins memory {count:,} times: {call_seconds:seconds} in {call}, {share}",
        "{where}",
        "Pin a buffer once and use it again: pinning costs more than the copy that it speeds up.",
    ),
    "waits-for-the-gpu": Text(
        "a line waits ten times or more, and compute stands idle afterwards for a hundredth of the time, the longest "
        "such time not counted; not where copies to the host are asynchronous, or managed memory is used",
        "After each of {count:,} waits of {line} the GPU idled: {idle_seconds:seconds} in all",
        _IDLE,
        "Ask for results less often: .item(), .cpu(), print() of a tensor and synchronize() wait until everything "
        "before them is done, and only then can the next work be issued; without these waits the program would take "
        f"at most {{spared:seconds}} less. Or do {_EARLIER}.",
    ),
    "waits-for-the-gpu/late": Text(
        "the same, where the waits hold the CPU for less than half as long",
        "At {line} the CPU waits {count:,} times for the GPU, which idles {idle_seconds:seconds} in all after these "
        "waits (fewer waits save at most {spared:seconds})",
        _IDLE,
        "Fewer waits save at most {spared:seconds}: the GPU had mostly finished before, and then the CPU was late. Do "
        f"{_EARLIER}; larger batches and CUDA graphs let it issue the same work by fewer calls.",
    ),
    "many-small-copies": Text(
        "a line makes 1,000 copies or more, of 64 KiB at most (median), which hold the CPU for a hundredth of the time",
        _SMALL,
        "{where}",
        f"Collect them in one pinned buffer and copy that. {_SCATTER}",
    ),
    "many-small-copies/as-long": Text(
        "the same, where gathering them takes as long",
        _SMALL,
        "{where}",
        f"Gathering them with one thread would take as long. {_SCATTER}",
    ),
}
REUSE_CODE = """\
# Once, before the loop. CuPy: cupyx.empty_pinned(shape, dtype), cupy.cuda.Event()
buffer = torch.empty(shape, dtype=dtype, pin_memory=True)
copied = torch.cuda.Event()
for batch in batches:
    copied.synchronize()                              # the last copy has left the buffer
    buffer.copy_(batch)
    on_gpu = buffer.to("cuda", non_blocking=True)
    copied.record()
"""


def pinning_again(seen: Seen) -> Iterator[Cost]:
    """Pinning memory again and again."""
    for row in pins_again(seen):
        whole, held, line = seen.seconds_from_first(row), row["call_seconds"], line_name(row)
        finding = say(
            TEXTS,
            "pinned-memory-in-a-loop",
            quantity("Allocations", row["count"], "count"),
            quantity("Bytes asked for", row["bytes"], "bytes"),
            quantity("Bytes held", row["held_bytes"], "bytes", reason=NOT_RECORDED),
            quantity("Most at once", row["peak_bytes"], "bytes", reason=NOT_RECORDED),
            quantity("Time in the calls", held, "seconds"),
            quantity("Not released at the end", row["left_count"], "count"),
            severity=costing(whole / max(whole - held, 1e-9)),
            code=REUSE_CODE,
            **told(row, share=share_of_time(seen, row, held)),
        )
        saved = held * (1 - 1 / row["count"])
        advice = f"Pin once at {line}, not {row['count']:,} times: it took {took(seen, row, held)}."
        yield Cost(row, "pinned-memory-in-a-loop", held, saved, "pin once, use it again", advice, finding)


def waiting(seen: Seen) -> Iterator[Cost]:
    """Idle compute behind a line's waits."""
    if seen.read_later or seen.program["managed_bytes"]:
        return  # data may be read or written only after a wait: none of them is known to be of no use
    twice = seen.counts_copies_after_waits
    for row in seen.idling:
        idle, held, line = row["idle_seconds"], row["call_seconds"], line_name(row)
        # So much earlier the CPU would come to the next kernel at most, as far as compute stands idle until then.
        spared = min(held, idle)
        comes_late = spared < idle / 2
        finding = say(
            TEXTS,
            f"waits-for-the-gpu{'/late' if comes_late else ''}",
            quantity("Waits", row["count"], "count"),
            quantity("GPU compute idle afterwards", idle, "seconds"),
            quantity("Longest of these times", row["longest_idle_seconds"], "seconds", reason=NOT_RECORDED),
            quantity("CPU held by the waits", held, "seconds"),
            quantity("Saved without these waits (at most)", spared, "seconds"),
            twice=NOT_RECORDED if twice else None,
            once=None if twice else "",
            spared=spared,
            **told(row, share=share_of_time(seen, row, idle)),
        )
        to_do = "launch the next kernel sooner" if comes_late else "wait less often"
        begins = "Launch the next kernel sooner after the waits of" if comes_late else "Wait less often at"
        advice = f"{begins} {line}: the GPU idled {took(seen, row, idle)}."
        yield Cost(row, "waits-for-the-gpu", idle, None, to_do, advice, finding)


def small_copies(seen: Seen) -> Iterator[Cost]:
    """Many small copies."""
    for site in seen.small:
        row, gathered, held = site.row, site.gathered_seconds, site.row["call_seconds"]
        saved = None if gathered is None else max(held - gathered, 0.0)
        finding = say(
            TEXTS,
            f"many-small-copies{'/as-long' if saved == 0 else ''}",
            quantity("Copies", row["count"], "count"),
            quantity("Median size", row["median_bytes"], "bytes"),
            quantity("Bytes", row["bytes"], "bytes"),
            quantity("CPU held by the calls", held, "seconds"),
            quantity("Gathered and copied at once (about)", gathered, "seconds", reason=NO_GATHERING),
            quantity("Rate of gathering from", seen.origin("gathered_from"), "text", reason=NO_GATHERING),
            **told(row, gathered=gathered if saved else None),
        )
        copies = f"the {row['count']:,} small copies of {site.name}"
        to_do, what = "gather them in one copy", f"Gather {copies}"
        if saved == 0:
            to_do, what = "move them another way", f"Move {copies} another way, not gathered"
        advice = f"{what}: they blocked the CPU for {took(seen, row, held)}."
        yield Cost(row, "many-small-copies", held, saved, to_do, advice, finding)


def pinned_copies(seen: Seen) -> Iterator[Cost]:
    """Copies from or to pinned memory for which compute stands, as far as the GPU computes: no more of them can hide.
    Not where most of them need not be."""
    spare = {each.row["number"] for kind in KINDS for each in needless_copies(seen, kind) if each.is_most}
    early = {(row["copy_file"], row["copy_line"]) for row in seen.early_reads}
    computing = max((row["busy_seconds"] for row in seen.devices), default=0.0)
    for site in seen.pinned:
        hidden = min(site.stands_seconds, computing)
        if site.row["number"] not in spare and seen.is_long(site.row, hidden):
            advice = f"Overlap the pinned copies of {site.name}: hides at most {took(seen, site.row, hidden)}."
            to_do = "copy while the GPU computes"
            if (site.row["file"], site.row["line"]) in early:
                to_do = "wait for it before its data is read"
            elif (site.row["call"] or "").startswith("cuGraphLaunch"):
                to_do = "copy beside its kernels, where the graph is made"
            yield Cost(site.row, "pinned-copies", hidden, None, to_do, advice)
