"""Copies of a line from or to pageable memory: what pinning would save, what memory of the host they use, what a copy
out of a mapped file waits for beside its transfer, and by which setting a framework pins them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from pinscope.analysis.read_rows import Row
from pinscope.analysis.texts import Costed, Text, Texts, say
from pinscope.records.run import Quantity, costing, quantity
from pinscope.tracing.sites import Seen, Site, line_name
from pinscope.tracing.source_memory import reads_new_pages_of_a_file
from pinscope.tracing.trace.costs import Cost, saves, share_of_time, stood, told
from pinscope.tracing.trace.cpu_work import REMEDIES, is_hidden
from pinscope.units import format_about, format_seconds

TRAINER = "/transformers/trainer.py"
HALF = 0.5
"""Of the pages, or bytes: what most of them are is said of all."""
_COPIES = "{line} makes {copies}[: {into} the program would take about {saved:seconds} less, {share}]"
_PLACE = "{where}[ {slow}][ {batches}][ {others} there likewise.]"
_MADE_THERE = (
    "Refill a buffer only once its copy is done. On a stream of its own the copy can run while the GPU computes. The "
    "saving holds where the data is made in pinned memory. Where it must be copied there first, that takes CPU time; "
    "DataLoader(pin_memory=True) with workers does it in a thread of its own."
)
TEXTS: Texts = {
    "pageable-copies": Text(
        "large copies of a line come from pageable memory and cost a thousandth of the time, or are a twentieth of the "
        "bytes of large copies; not where pinning would save nothing",
        _COPIES,
        _PLACE,
        f"Copy from pinned memory; with non_blocking=True the call returns at once. {_MADE_THERE}",
    ),
    "pageable-copies/asynchronous": Text(
        "the same, where the line asks for non_blocking=True",
        _COPIES,
        _PLACE,
        "Copy from pinned memory: from pageable memory non_blocking=True has hardly any effect, from pinned memory the "
        f"call returns at once. {_MADE_THERE}",
    ),
    "pageable-copies/to-host": Text(
        "the same of copies to the host",
        _COPIES,
        _PLACE,
        "Copy into pinned memory that is allocated once and used again; wait for the copy before you read it.",
    ),
    "pageable-copies/switch": Text(
        "the same of batches that the workers of a DataLoader make and that it does not pin, where pinning saves time",
        "{line} makes {copies}[: pinned by {switch} the program would take about {saved:seconds} less, {share}]",
        "{where}[ {slow}][ {others} there likewise.]",
        "Set {switch}. With non_blocking=True the batches are then copied while the GPU computes.",
    ),
    "pageable-copies/mapped-file": Text(
        "the same of copies out of a mapped file that take longer than staging",
        "{line} copies out of {file}, a mapped file: {faults} take about {spent:seconds}[; pinning saves about "
        "{saved:seconds}]",
        "{where}[ {others} there likewise.]",
        "Read the file in large pieces into pinned memory and copy from there, one piece while the next is read. "
        "Where it must stay mapped, read ahead: madvise(MADV_WILLNEED) or posix_fadvise before the first copy.",
    ),
}
PIN_CODE = """\
# PyTorch, batches of a DataLoader: copied from pinned memory, while the GPU computes
loader = DataLoader(dataset, ..., pin_memory=True)
batch = batch.to("cuda", non_blocking=True)

# PyTorch, a tensor that is copied again and again: pin it once
tensor = tensor.pin_memory()

# CuPy: an array in pinned memory, filled in place
array = cupyx.empty_pinned(shape, dtype)
device.set(array, stream=stream)
"""
TO_HOST_CODE = """\
# Once, before the loop. CuPy: cupyx.empty_pinned(shape, dtype)
buffer = torch.empty(shape, dtype=dtype, pin_memory=True)
for result in results:
    buffer.copy_(result, non_blocking=True)           # CuPy: result.get(out=buffer, blocking=False)
    torch.cuda.current_stream().synchronize()         # just before the data is read
"""
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


def pageable(seen: Seen) -> Iterator[Cost]:
    """What pinning the data of a line that copies large pieces would save."""
    for site, others in seen.accused:
        if is_hidden(site):  # the work of its line says why
            continue
        saved = site.saved_in_place
        to_do, pin = _pinned_memory(seen, site)
        to_do += f", in {others + 1:,} processes" if others else ""
        if waits_for_file(site) and site.unexplained_seconds > (saved or 0.0):
            to_do, advice = "read it in pieces into a pinned buffer: spares page faults besides", _file_advice(site)
        elif saved:
            advice = f"{pin}: {saves(seen, site.row, saved)}."
        elif saved is None:
            advice = f"{pin}: {stood(seen, site)}."
        else:
            to_do = "pinning saves nothing"
            advice = f"Pinning what {site.name} copies would save nothing: {stood(seen, site)}."
        finding = None if saved == 0 and not waits_for_file(site) else _finding(seen, site, others)
        yield Cost(site.row, "pageable-copies", site.stands_seconds, saved, to_do, advice, finding)


def _pinned_memory(seen: Seen, site: Site) -> tuple[str, str]:
    """What to do about pageable copies, in a few words and as a sentence begins: where the data must be pinned for them
    to save what is said."""
    if switch := switch_of(seen, site):
        return f"set {switch}", f"Set {switch} for {site.name}"
    if site.loader_saved is not None:
        to_do, begins = REMEDIES["receive"]
        return to_do, begins.format(site.name)
    if site.row["direction"] == "d2h":
        return "copy into pinned memory", f"Pin what {site.name} copies into"
    return REMEDIES["make"][0], f"Pin what {site.name} copies, where it is made"


def _finding(seen: Seen, site: Site, others: int) -> Costed:
    row, saved, waits = site.row, site.saved_in_place, waits_for_file(site)
    whole, to_host, switch = seen.seconds_from_first(row), row["direction"] == "d2h", switch_of(seen, site)
    if waits:
        variant, code = "/mapped-file", FILE_CODE
    elif to_host:
        variant, code = "/to-host", TO_HOST_CODE
    else:
        asks = "non_blocking=True" in (row["source_line"] or "")
        variant, code = "/switch" if switch else "/asynchronous" if asks else "", PIN_CODE
    many = f"{row['count']:,} {'copies' if row['count'] > 1 else 'copy'}"
    copies = f"{many} {'to' if to_host else 'from'} pageable memory"
    into = "into pinned memory" if to_host else "with its data made in pinned memory"
    return say(
        TEXTS,
        f"pageable-copies{variant}",
        quantity("Bytes", row["bytes"], "bytes"),
        quantity("Bandwidth", site.bytes_per_second, "bytes/second", reason="no transfer was seen to its end"),
        quantity("Bandwidth of pinned memory", site.pinned_rate, "bytes/second", reason="no run of bandwidth says it"),
        quantity("That bandwidth from", seen.origin("pinned_from"), "text", reason="no run of bandwidth says it"),
        quantity("CPU held by the calls", row["call_seconds"], "seconds"),
        quantity("GPU compute idle", row["idle_seconds"], "seconds", reason="the program ran no kernel"),
        quantity("Saved if pinned (about)", saved, "seconds", reason="the rate of pinned copies is not known"),
        quantity("Saved if also issued early (of the copies, at most)", site.saved_early, "seconds"),
        *_memory_figures(row),
        severity=costing(whole / (whole - saved) if saved is not None and 0 < saved < whole else 1.0),
        code=code,
        into=into if site.loader_saved is None else "with DataLoader(pin_memory=True)",
        saved=saved or None,
        share=share_of_time(seen, row, saved or 0.0),
        slow=_source_words(site) or None,
        switch=switch,
        batches=_batches_words(seen, site),
        faults=_faults_words(row),
        spent=site.unexplained_seconds,
        others=f"{others:,} more {'processes copy' if others > 1 else 'process copies'}" if others else None,
        **told(row, copies=copies, file=_file_name(row)),
    )


# What memory of the host it is


def waits_for_file(site: Site) -> bool:
    """Whether its copies out of a mapped file take longer than their staging does."""
    return bool(reads_new_pages_of_a_file(site.row) and site.unexplained_seconds)


def _file_name(row: Row) -> str:
    """``weights.bin``"""
    return PurePath(row["mapped_file"] or "").name


def _faults_words(row: Row) -> str:
    """What touching its pages takes, as far as that is known."""
    if row["uncached_share"] is None:
        return "page faults, maybe the disk,"
    return "page faults and the disk" if row["uncached_share"] else "page faults"


def memory_words(row: Row) -> str | None:
    """``file weights.bin, not in memory``, ``new pages``; ``None`` where nobody looked."""
    if row["mapping"] is None:
        return None
    what = {"file": f"file {_file_name(row)}", "shared": "shared memory", "anonymous": ""}[row["mapping"]]
    state = "not in memory" if (row["uncached_share"] or 0) > HALF else ""
    if not state and row["untouched_share"] is not None:
        new = "new pages" if row["mapping"] == "anonymous" else "pages new to the program"
        state = new if _is_new(row) else "touched before"
    huge = "huge pages" if (row["huge_share"] or 0) > HALF else ""
    return ", ".join(filter(None, (what, state, huge)))


def _source_words(site: Site) -> str:
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


def _memory_figures(row: Row) -> tuple[Quantity, ...]:
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


def _file_advice(site: Site) -> str:
    """What to do where a line waits for a mapped file. To read spares page faults, too; how much that is, nobody knows:
    the disk may take as long."""
    saved, spent = site.saved_in_place, site.unexplained_seconds
    staging = f"saves {format_about(saved)}; " if saved else ""
    waits = f"at {site.name} {_faults_words(site.row)} take {format_about(spent)}"
    return f"Read {_file_name(site.row)} into pinned memory: {staging}{waits}."


# What a framework calls it


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


def _batches_words(seen: Seen, site: Site) -> str | None:
    """Of batches that the loop makes itself, whose they are, as a sentence."""
    made = _loader(seen, site)
    if made is None or made["workers"]:
        return None
    pins, workers, where = _settings(made)
    return f"These are batches of a DataLoader without workers: {workers} and {pins} {where} pin them beside the loop."
