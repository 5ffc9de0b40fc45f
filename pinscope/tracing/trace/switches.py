"""What a framework calls it: the setting by which it pins what a line copies."""

from __future__ import annotations

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Text, Texts
from pinscope.tracing.sites import Seen, Site, line_name

TRAINER = "/transformers/trainer.py"
SWITCH = "pageable-copies/switch"
SWITCH_TEXTS: Texts = {
    SWITCH: Text(
        "the same of batches that the workers of a DataLoader make and that it does not pin, where pinning saves time",
        "{line} makes {copies}[: pinned by {switch} the program would take about {saved:seconds} less, {share}]",
        "{where}[ {slow}][ {others} there likewise.]",
        "Set {switch}. With non_blocking=True the batches are then copied while the GPU computes.",
    )
}


def _loader(seen: Seen, site: Site) -> Row | None:
    """The DataLoader that most large copies of a line are of; ``None`` where none leaves its batches pageable."""
    made = [row for row in seen.loaders if row["number"] == site.row["number"] and not row["pins_batches"]]
    if not made or site.row["direction"] != "h2d" or not site.is_pageable:
        return None
    most = max(made, key=lambda row: row["count"])
    return most if most["count"] * 2 > site.row["large_count"] else None


def _settings(made: Row) -> tuple[str, str, str]:
    """Names of the settings for pinning and for workers, and where they belong."""
    if (made["library_file"] or "").endswith(TRAINER):
        return "dataloader_pin_memory=True", "dataloader_num_workers", "(TrainingArguments)"
    return "pin_memory=True", "num_workers", f"at {line_name({**made, 'process': None})}"


def switch_of(seen: Seen, site: Site) -> str | None:
    """The setting and where it belongs; ``None`` where the line copies no batches of a loader that leaves them as they
    are, or pinning them is not known to save anything: without workers the loop itself would pin them."""
    made = _loader(seen, site)
    if made is None or not made["workers"] or not site.loader_saved:
        return None
    pins, _, where = _settings(made)
    return f"{pins} {where}"


def batches_words(seen: Seen, site: Site) -> str | None:
    """Of batches that the loop makes itself, whose they are, as a sentence."""
    made = _loader(seen, site)
    if made is None or made["workers"]:
        return None
    pins, workers, where = _settings(made)
    return f"These are batches of a DataLoader without workers: {workers} and {pins} {where} pin them beside the loop."
