"""What a trace says of copies that need not be: of data that is where it goes already, and of one block in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Costed, Text, Texts, say
from pinscope.records.run import Quantity, Table, costing, quantity
from pinscope.tracing.sites import MOSTLY, Seen, Site, headed_table

MOST_TOLD = 3
"""Of each kind; the table has all."""
MOST_SHOWN = 100
"""Rows of the table."""
_WORDS = {"sent_again": "sent again", "brought_back": "brought back", "in_pieces": "in pieces"}
_ONE_VALUE = " They are of one value each, so that it may have changed between them."
_AGAIN = "{line} sends the same data to the GPU again, about {times:,} of {count:,} times: {bytes:bytes}"
_AGAIN_BY = (
    "{where} Samples of the host's memory are as they were before; without these copies the program would take at most "
    "{saved:seconds} less."
)
_KEEP = "Copy it once and keep it on the GPU, or as much of it as fits there."
_BACK_BY = (
    "{where} Samples of what was sent and of what came back are equal; without the copies back the program would take "
    "about {saved:seconds} less."
)
_DROP = "Keep the host's copy and drop the GPU's, instead of copying it back: in PyTorch parameter.data = kept."
NEEDLESS_TEXTS: Texts = {
    "data-brought-back": Text(
        "a line copies to the host what a copy of the same bytes had brought to the same memory of the GPU, by samples "
        "of both; of a twentieth of the bytes of large copies, or for a hundredth of the time",
        "{line} brings back about {times:,} times unchanged what {sender} had sent: {bytes:bytes} each way",
        _BACK_BY,
        _DROP,
    ),
    "data-brought-back/one-value": Text(
        "the same, where samples are of one value",
        "{line} may bring back unchanged what {sender} had sent: {bytes:bytes} each way in {times:,} copies",
        _BACK_BY + _ONE_VALUE,
        f"If so: {_DROP[:1].lower()}{_DROP[1:]}",
    ),
    "data-sent-again": Text(
        "a line copies to the GPU what was copied before, by samples; of a twentieth of the bytes of large copies, or "
        "for a hundredth of the time",
        _AGAIN,
        _AGAIN_BY,
        _KEEP,
    ),
    "data-sent-again/one-value": Text(
        "the same, where samples are of one value",
        "{line} may send the same data to the GPU again, {times:,} of {count:,} times: {bytes:bytes}",
        _AGAIN_BY + _ONE_VALUE,
        f"If so: {_KEEP[:1].lower()}{_KEEP[1:]}",
    ),
    "data-sent-again/accelerate": Text(
        "the same, where accelerate's hooks copy",
        _AGAIN,
        _AGAIN_BY,
        "accelerate's cpu_offload copies all weights at each call: dispatch_model with a device_map (from_pretrained: "
        "device_map='auto') keeps on the GPU what fits.",
    ),
}


@dataclass(frozen=True)
class Needless:
    """Copies of a line that need not be.

    Attributes:
        row: as it was added up.
        site: all copies of the line of that kind.
        sender: of what was brought back, the site that had sent it.
    """

    row: Row
    site: Site
    sender: Site | None = None

    @property
    def seconds(self) -> float:
        """How long the GPU's compute, or of a program without kernels the CPU, stood for them."""
        whole = self.site.row["bytes"]
        return self.site.stands_seconds * self.row["bytes"] / whole if whole else 0.0

    @property
    def is_of_one_value(self) -> bool:
        """Most samples are, so that they say less."""
        return bool((self.row["uniform_count"] or 0) * 2 > self.row["count"])


def needless_copies(seen: Seen, kind: str) -> tuple[Needless, ...]:
    """Of one kind, those that copy or cost a part of the whole; the most bytes first. What is brought back is sent
    again, too, and told once."""
    sites = {site.row["number"]: site for site in seen.sites}
    back = {row["sent_by"] for row in seen.needless if row["kind"] == "brought_back"}
    rows = [
        row
        for row in seen.needless
        if row["kind"] == kind and row["number"] in sites and not (kind == "sent_again" and row["number"] in back)
    ]
    large = sum(site.row["bytes"] for site in (*seen.pinned, *seen.pageable))
    told = [Needless(row, sites[row["number"]], sites.get(row["sent_by"])) for row in rows]
    worth = [each for each in told if each.row["bytes"] >= MOSTLY * large or seen.is_long(each.site.row, each.seconds)]
    return tuple(sorted(worth, key=lambda each: -each.row["bytes"]))


def in_pieces(seen: Seen, site: Site) -> bool:
    """Whether most copies of a line are pieces of one block."""
    return any(
        row["kind"] == "in_pieces" and row["number"] == site.row["number"] and row["count"] * 2 > site.row["count"]
        for row in seen.needless
    )


def needless_findings(seen: Seen, where: Callable[[Row], str]) -> Iterator[Costed]:
    """Of each line that copies what need not be copied.

    Args:
        seen: the trace.
        where: names the line itself.
    """
    for back in needless_copies(seen, "brought_back")[:MOST_TOLD]:
        whole = seen.seconds_from_first(back.site.row)
        yield say(
            NEEDLESS_TEXTS,
            f"data-brought-back{'/one-value' if back.is_of_one_value else ''}",
            *_figures(back),
            quantity("Saved without the copies back (about)", back.seconds, "seconds"),
            severity=costing(whole / (whole - back.seconds) if 0 < back.seconds < whole else 1.0),
            line=back.site.name,
            sender=back.sender.name if back.sender else "a line that is left out",
            times=back.row["count"],
            bytes=back.row["bytes"],
            saved=back.seconds,
            where=where(back.site.row),
        )
    for again in needless_copies(seen, "sent_again")[:MOST_TOLD]:
        is_accelerate = "/accelerate/" in (again.site.row["library_file"] or "")
        variant = "/one-value" if again.is_of_one_value else "/accelerate" if is_accelerate else ""
        yield say(
            NEEDLESS_TEXTS,
            f"data-sent-again{variant}",
            *_figures(again),
            quantity("Saved without them (at most)", again.seconds, "seconds"),
            severity="note",
            line=again.site.name,
            times=again.row["count"],
            count=again.site.row["count"],
            bytes=again.row["bytes"],
            saved=again.seconds,
            where=where(again.site.row),
        )


def _figures(each: Needless) -> Iterator[Quantity]:
    yield quantity("Copies that need not be (about)", each.row["count"], "count")
    yield quantity("Their bytes (about)", each.row["bytes"], "bytes")
    yield quantity("Of them with samples of one value", each.row["uniform_count"], "count", reason="not recorded")


def table_of_needless(seen: Seen) -> Table:
    """By line and kind."""
    sites = {site.row["number"]: site for site in seen.sites}
    rows = [row for row in seen.needless if row["number"] in sites][:MOST_SHOWN]
    return headed_table(
        "Copies that need not be",
        [
            {
                "line": ("text", sites[row["number"]].name),
                "what": ("text", _WORDS[row["kind"]]),
                "copies": ("count", row["count"]),
                "of": ("count", sites[row["number"]].row["count"]),
                "bytes": ("bytes", row["bytes"]),
                "sent by": ("text", sites[row["sent_by"]].name if row["sent_by"] in sites else None),
            }
            for row in rows
        ],
        "About: by samples of large copies. Sent again: to the GPU, as it was sent before. Brought back: to "
        "the host, as a copy had brought it to the same memory of the GPU. In pieces: each begins where the one before "
        "ended, on both sides, so that one copy would do.",
    )
