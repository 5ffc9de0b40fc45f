"""What a framework calls it: the setting by which it pins what a line copies."""

from __future__ import annotations

from pinscope.analysis.texts import Text, Texts
from pinscope.tracing.sites import Seen, Site, line_name

TRAINER = "/transformers/trainer.py"
SWITCH = "pageable-copies/switch"
SWITCH_TEXTS: Texts = {
    SWITCH: Text(
        "the same of batches of a DataLoader that does not pin them, where pinning saves time",
        "{line} makes {copies}[: pinned by {switch} the program would take about {saved:seconds} less, {share}]",
        "{where}[ {slow}][ {others} there likewise.]",
        "Set {switch}. With non_blocking=True, and workers, the batches are copied while the GPU computes.",
    )
}


def switch_of(seen: Seen, site: Site) -> str | None:
    """The setting and where it belongs; ``None`` where the line copies no batches of a loader that leaves them as they
    are, or pinning them saves nothing."""
    loaders = [row for row in seen.loaders if row["number"] == site.row["number"] and not row["pins_batches"]]
    if not loaders or site.row["direction"] != "h2d" or not site.is_pageable or site.saved_in_place == 0:
        return None
    made = max(loaders, key=lambda row: row["count"])
    if (made["library_file"] or "").endswith(TRAINER):
        return "dataloader_pin_memory=True (TrainingArguments)"
    return f"pin_memory=True at {line_name({**made, 'process': None})}"


def to_pin(seen: Seen, site: Site) -> str:
    """What to do so that a line copies from pinned memory, as a sentence begins."""
    switch = switch_of(seen, site)
    return f"Set {switch} for the batches of {site.name}" if switch else f"Pin what {site.name} copies"
