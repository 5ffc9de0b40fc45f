"""What memory of the host pageable copies use, and what a copy out of a mapped file waits for beside its transfer."""

from __future__ import annotations

from pathlib import PurePath

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Text, Texts
from pinscope.records.run import Quantity, quantity
from pinscope.tracing.sites import Seen, Site
from pinscope.tracing.source_memory import reads_new_pages_of_a_file
from pinscope.units import format_about, format_seconds, format_share

MAPPED_FILE = "pageable-copies/mapped-file"
NOT_LOOKED_AT = "its memory was not looked at"
TEXTS: Texts = {
    MAPPED_FILE: Text(
        "the same of copies out of a mapped file that take longer than staging",
        "{line} copies out of {file}, a mapped file: {faults} take about {spent:seconds}[; pinning saves about "
        "{saved:seconds}]",
        "{where}[ {others} there likewise.]",
        "Read the file in large pieces into pinned memory and copy from there, one piece while the next is read. "
        "Where it must stay mapped, read ahead: madvise(MADV_WILLNEED) or posix_fadvise before the first copy.",
    )
}
FILE_CODE = """\
# Two pinned buffers, in turn: one is copied while the next piece of the file is read
buffers = [torch.empty(64 << 20, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
copied = [torch.cuda.Event() for _ in buffers]
with open(path, "rb", buffering=0) as file:
    for number, start in enumerate(range(0, size, 64 << 20)):
        buffer, done = buffers[number % 2], copied[number % 2]
        done.synchronize()                            # the last copy has left the buffer
        count = file.readinto(buffer.numpy())
        on_gpu[start : start + count].copy_(buffer[:count], non_blocking=True)
        done.record()
"""


def waits_for_file(site: Site) -> bool:
    """Whether its copies out of a mapped file take longer than their staging does."""
    return bool(reads_new_pages_of_a_file(site.row) and site.unexplained_seconds)


def file_name(row: Row) -> str:
    """``weights.bin``"""
    return PurePath(row["mapped_file"] or "").name


def faults_words(row: Row) -> str:
    """What touching its pages takes, as far as that is known."""
    if row["uncached_share"] is None:
        return "page faults, and maybe the disk,"
    return "page faults and the disk" if row["uncached_share"] else "page faults"


def memory_words(row: Row) -> str | None:
    """``file weights.bin, not in memory``, ``new pages``; ``None`` where nobody looked."""
    if row["mapping"] is None:
        return None
    what = {"file": f"file {file_name(row)}", "shared": "shared memory", "anonymous": ""}[row["mapping"]]
    state = "not in memory" if (row["uncached_share"] or 0) > HALF else ""
    if not state and row["untouched_share"] is not None:
        new = "new pages" if row["mapping"] == "anonymous" else "pages new to the program"
        state = new if _is_new(row) else "touched before"
    huge = "huge pages" if (row["huge_share"] or 0) > HALF else ""
    return ", ".join(filter(None, (what, state, huge)))


HALF = 0.5
"""Of the pages, or bytes: what most of them are is said of all."""


def source_words(site: Site) -> str:
    """What memory a line's copies use, and what they may have waited for beside their staging, as a sentence; empty
    where that is the program's own memory, in use before, and they did not."""
    seconds, row = format_seconds(site.unexplained_seconds), site.row
    if not site.unexplained_seconds:
        is_usual = row["mapping"] in (None, "anonymous") and not (_is_new(row) or (row["huge_share"] or 0) > HALF)
        return "" if is_usual else f"Its memory of the host: {memory_words(row)}."
    if row["mapping"] is None:
        return f"{seconds} may be page faults or reading a mapped file, which pinning alone does not save."
    if _is_new(row):
        return f"{seconds} may be page faults: its memory had not been touched. Pinning alone does not save that."
    return f"{seconds} are not explained by staging: its memory had been touched before. Pinning may not save that."


def _is_new(row: Row) -> bool:
    return (row["untouched_share"] or 0) > HALF


def figures(row: Row) -> tuple[Quantity, ...]:
    """What was seen of its memory, as evidence; nothing where nobody looked."""
    if row["mapping"] is None:
        return ()
    return (
        quantity("Memory of the host", memory_words(row), "text"),
        quantity("Pages not touched before", row["untouched_share"], "share", reason="the kernel does not say it"),
        *(
            (
                quantity(
                    "Pages of the file not in memory", row["uncached_share"], "share", reason="it is another user's"
                ),
            )
            if row["mapping"] == "file"
            else ()
        ),
    )


def file_advice(seen: Seen, site: Site) -> str:
    """What to do where a line waits for a mapped file."""
    whole, spent = seen.seconds_from_first(site.row), site.unexplained_seconds
    share = f" ({format_share(min(spent / whole, 1.0))})" if whole else ""
    where = f"at {site.name} {faults_words(site.row)} take {format_about(spent)}{share}"
    return f"Read {file_name(site.row)} by readinto, not mapped: {where}."
