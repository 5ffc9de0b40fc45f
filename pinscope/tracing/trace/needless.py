"""What a trace says of copies that need not be: of data that is where it goes already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Text, Texts, say
from pinscope.records.run import Table, quantity
from pinscope.tracing.sites import MOST_SHOWN, MOSTLY, Seen, Site, headed_table
from pinscope.tracing.trace.costs import Cost, blocked, told, took

MOST_TOLD = 3
"""Of each kind; the table has all."""
KINDS: Mapping[str, tuple[str, str, str]] = {
    "brought_back": ("data-brought-back", "keep the host's copy", "Copy nothing back that {} brings unchanged"),
    "sent_again": ("data-sent-again", "keep it on the GPU", "Keep on the GPU what {} sends again"),
}
"""Kind of row → rule, what to change in a few words, and as a sentence begins."""
_AGAIN = "{line} sends the same data again, by samples: about {times:,} of {count:,} copies, {bytes:bytes}"
_SAMPLED = (
    "{where} 512 bytes of each of {sampled:,} copies were looked at; without these copies the program would take at "
    "most {saved:seconds} less."
)
NEEDLESS_TEXTS: Texts = {
    "data-brought-back": Text(
        "a line copies to the host what a copy of the same bytes had brought to the same memory of the GPU, by samples "
        "of both; of a twentieth of the bytes of large copies, or for a hundredth of the time",
        "{line} brings back unchanged, by samples, what {sender} sent: about {bytes:bytes} each way",
        _SAMPLED,
        "If nothing on the GPU writes to it, keep the host's copy and drop the GPU's, instead of copying it back: in "
        "PyTorch parameter.data = kept.",
    ),
    "data-sent-again": Text(
        "a line copies to the GPU what it had copied before, by samples; of a twentieth of the bytes of large copies, "
        "or for a hundredth of the time",
        _AGAIN,
        _SAMPLED,
        "If the program does not change it, copy it once and keep it on the GPU, or as much of it as fits there.",
    ),
    "data-sent-again/accelerate": Text(
        "the same, where accelerate's hooks copy",
        _AGAIN,
        _SAMPLED,
        "accelerate's hooks copy weights that are offloaded at each call. A device_map with more of them on the GPU "
        "(dispatch_model; from_pretrained: device_map='auto') sends less.",
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
    def is_most(self) -> bool:
        """Of what the line copies so."""
        return bool(self.row["bytes"] * 2 > self.site.row["bytes"])

    @property
    def seconds(self) -> float:
        """How long the GPU's compute, or of a program without kernels the CPU, stood for them."""
        whole = self.site.row["bytes"]
        return self.site.stands_seconds * self.row["bytes"] / whole if whole else 0.0


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


def needless(seen: Seen) -> Iterator[Cost]:
    """Copies that need not be, as far as samples show; what is saved at most is not what is known to be saved."""
    for kind, (rule, to_do, begins) in KINDS.items():
        for place, each in enumerate(needless_copies(seen, kind)):
            row, site = each.row, each.site
            is_accelerate = kind == "sent_again" and "/accelerate/" in (site.row["library_file"] or "")
            finding = say(
                NEEDLESS_TEXTS,
                f"{rule}{'/accelerate' if is_accelerate else ''}",
                quantity("Copies that need not be (about)", row["count"], "count"),
                quantity("Their bytes (about)", row["bytes"], "bytes"),
                quantity("Copies looked at", row["sampled_count"], "count"),
                quantity("Saved without them (at most)", each.seconds, "seconds"),
                severity="note",  # what is on the GPU may not fit there, or be written to
                sender=each.sender.name if each.sender else "a line that is left out",
                times=row["count"],
                sampled=row["sampled_count"],
                saved=each.seconds,
                **told(site.row, bytes=row["bytes"]),
            )
            advice = f"{begins.format(site.name)}: {blocked(site)} {took(seen, site.row, each.seconds)}."
            yield Cost(site.row, rule, each.seconds, None, to_do, advice, finding if place < MOST_TOLD else None)


def table_of_needless(seen: Seen) -> Table:
    """By line and kind."""
    sites = {site.row["number"]: site for site in seen.sites}
    rows = [row for row in seen.needless if row["number"] in sites][:MOST_SHOWN]
    return headed_table(
        "Copies that need not be",
        [
            {
                "line": ("text", sites[row["number"]].name),
                "what": ("text", row["kind"].replace("_", " ")),
                "copies": ("count", row["count"]),
                "of": ("count", sites[row["number"]].row["count"]),
                "bytes": ("bytes", row["bytes"]),
                "looked at": ("count", row["sampled_count"]),
                "sent by": ("text", sites[row["sent_by"]].name if row["sent_by"] in sites else None),
            }
            for row in rows
        ],
        "About: by samples of large copies, 512 bytes of each that was looked at. Sent again: to the GPU, as the line "
        "had sent it before. Brought back: to the host, as a copy had brought it to the same memory of the GPU.",
    )
