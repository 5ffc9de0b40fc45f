"""A snapshot's figures in words: exact ones bare, estimates with what kind they are, missing ones with the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pinscope.analysis.rules import is_only_locked
from pinscope.records.environment import Link
from pinscope.records.figure import BoundKind, Estimated, Figure, Number, bound_of_sum, figures
from pinscope.records.snapshot import DeviceFigures, GpuUse, Holder, HostTotals, Pressure
from pinscope.report.facts import Fact, link_text
from pinscope.units import format_bandwidth, format_bytes, format_duration, format_share, format_value

SIGNS: Mapping[BoundKind, str] = {"at_least": "≥", "at_most": "≤", "about": "~"}
"""What stands before an estimate."""


def figure_text(figures: Estimated, field: str, unit: str = "bytes", *, because: bool = True) -> str:
    """``8 GiB``, ``≤8 GiB (at most: …)`` or ``n/a (no NVIDIA driver)``.

    Args:
        figures: the record.
        field: name of one of its fields.
        unit: SI unit of the field, as in :func:`pinscope.units.format_value`.
        because: with the words in brackets.
    """
    value = getattr(figures, field)
    text = format_value(value, unit)
    if value is not None and field in figures.estimates:
        text = SIGNS[figures.estimates[field].kind] + text
    note = figures.note(field)
    return f"{text} ({note})" if note and because else text


def _listed(record: Estimated, *chosen: Figure) -> Iterator[Fact]:
    """The figures that are listed as they are; all of the record if none is chosen."""
    for figure in chosen or figures(type(record)):
        if figure.report == "always" or (figure.report == "some" and getattr(record, figure.field)):
            yield figure.label, figure_text(record, figure.field, figure.unit)


def host_facts(host: HostTotals) -> list[Fact]:
    """Everything about the host's memory that its headline leaves out."""
    return [
        ("Memory", f"{format_bytes(host.available_bytes)} available of {format_bytes(host.total_bytes)}"),
        ("Control group", _part_text(host, "cgroup_headroom_bytes", "cgroup_limit_bytes", "{} left of {}")),
        *_listed(host),
        ("Huge pages", _part_text(host, "hugetlb_used_bytes", "hugetlb_pool_bytes", "{} used of {} reserved")),
        ("Tasks stalled for memory", _pressure_text(host)),
    ]


def _part_text(host: HostTotals, part: str, whole: str, words: str) -> str:
    """Two figures in words with a place for each; where the whole is not known, why."""
    if getattr(host, whole) is None:
        return figure_text(host, whole)
    return words.format(figure_text(host, part), format_bytes(getattr(host, whole)))


def _pressure_text(host: HostTotals) -> str:
    pressure: Pressure | None = host.pressure
    if pressure is None:
        return figure_text(host, "pressure")
    some, full = format_share(pressure.some_10s_share), format_share(pressure.full_10s_share)
    return f"some {some} of the last 10 s, all at once {full}"


def holder_facts(holder: Holder) -> list[Fact]:
    """One process: who it is, what it holds, and what that takes on each GPU."""
    return [
        ("Command", holder.command or figure_text(holder, "command", "text")),
        ("User", figure_text(holder, "user", "text")),
        ("Started", _moment(holder.started_at, holder.missing.get("started_at"))),
        ("Container", figure_text(holder, "container", "text")),
        ("Control group", figure_text(holder, "cgroup", "text")),
        *(fact for figure in figures(Holder) for fact in _of_holder(holder, figure)),
        *_gpus(holder),
        *copy_facts(holder),
        *tracing_facts(holder),
    ]


def copy_facts(holder: Holder) -> Iterator[Fact]:
    """What it copied while the probe counted; nothing where nobody did."""
    copies = holder.copies
    if copies is None:
        return
    yield "Copies counted", f"for {format_duration(copies.seconds)}, since {_moment(copies.since, None)}"
    for label, field, direction in (("To GPUs", "to_gpu_bytes", "h2d"), ("From GPUs", "from_gpu_bytes", "d2h")):
        count = sum(each.count for each in copies.sums if each.direction == direction)
        rate = getattr(copies, field) / copies.seconds if copies.seconds else None
        yield label, f"{figure_text(copies, field)} in {count:,} calls, {format_bandwidth(rate)}"
    kinds = (("pinned", "pinned_bytes"), ("pageable", "pageable_bytes"), ("unknown", "unknown_bytes"))
    shown = [f"{word} {figure_text(copies, field, because=False)}" for word, field in kinds if getattr(copies, field)]
    note = copies.estimates.get("pageable_bytes")
    yield "Host memory", (", ".join(shown) or "none copied") + (f" ({note.why})" if note else "")
    sizes: Counter[int] = Counter()
    calls: Counter[str] = Counter()
    for each in copies.sums:
        sizes[each.most_bytes] += each.count
        calls[each.call] += each.count
    if sizes:
        yield "Sizes, at most", ", ".join(f"{format_bytes(size)}: {sizes[size]:,}" for size in sorted(sizes))
        yield "Calls", ", ".join(f"{call}: {count:,}" for call, count in calls.most_common())
    if copies.uncounted_calls:
        yield "Calls of unknown bytes", f"{copies.uncounted_calls:,} (other kinds of copies, and graphs)"


def tracing_facts(holder: Holder) -> Iterator[Fact]:
    """How to see which lines copy and pin, or what it copies in all."""
    if holder.python is not False:
        unsure = " (if it is a Python program)" if holder.python is None else ""
        yield "Its lines", f"pinscope trace --attach {holder.pid} --for 10s{unsure}"
    if not holder.python and holder.copies is None:
        yield "Its copies", f"as root: pinscope live --probe --pid {holder.pid}"


def _of_holder(holder: Holder, figure: Figure) -> Iterator[Fact]:
    for label, text in _listed(holder, figure):
        more = _MORE.get(figure.field)
        yield label, text + (more(holder) if more else "")
    if figure.field == "host_alloc_bytes" and holder.allocations:
        yield "Its mappings", _mappings(holder)


def _moment(moment: datetime | None, reason: str | None) -> str:
    if moment:
        return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return f"n/a ({reason})" if reason else "n/a"


def _mappings(holder: Holder) -> str:
    parts = [
        f"{size.count:,} × {format_bytes(size.size_bytes)}" + (" (a power of two)" if size.power_of_two else "")
        for size in holder.allocations
    ]
    note = holder.note("allocations")
    return ", ".join(parts) + (f" ({note})" if note else "")


def _inherited(holder: Holder) -> str:
    text = ""
    if holder.inherited_from:
        text += f", from pid {', '.join(map(str, holder.inherited_from))}"
    if holder.inherited_by:
        text += f"; its own is also mapped by pid {', '.join(map(str, holder.inherited_by))}"
    return text


def _registered(holder: Holder) -> str:
    if holder.registrations is None and holder.registered_bytes is not None:
        return _said(holder)
    return f", in {holder.registrations:,} pieces" if holder.registrations else ""


def _kept(holder: Holder) -> str:
    parts = ", ".join(f"{name} {format_bytes(kept)}" for name, kept in holder.kept_by.items())
    return f": {parts}{_said(holder)}" if parts and "kept_bytes" not in holder.estimates else ""


def _said(holder: Holder) -> str:
    return f" (exact, said by the process at {_moment(holder.said_at, None)})"


def _resident(holder: Holder) -> str:
    parts = (("private", "rss_anon_bytes"), ("files", "rss_file_bytes"), ("shared", "rss_shmem_bytes"))
    return ": " + ", ".join(f"{name} {figure_text(holder, field, because=False)}" for name, field in parts)


_MORE: Mapping[str, Callable[[Holder], str]] = {
    "inherited_bytes": _inherited,
    "registered_bytes": _registered,
    "kept_bytes": _kept,
    "rss_bytes": _resident,
}
"""Figure of a holder → what is said after it."""


def _gpus(holder: Holder) -> list[Fact]:
    if not holder.gpus:
        reason = holder.missing.get("gpus")
        return [("GPUs", f"n/a ({reason})" if reason else "no context on any")]
    facts = [(f"GPU {use.index}", _use_text(use)) for use in holder.gpus]
    notes = {use.note("page_table_bytes") for use in holder.gpus}
    return [*facts, *(("Page tables", note) for note in sorted(filter(None, notes)))]


def _use_text(use: GpuUse) -> str:
    tables = figure_text(use, "page_table_bytes", because=False)
    return f"memory {figure_text(use, 'memory_bytes')}, page tables {tables}"


def device_facts(device: DeviceFigures) -> list[Fact]:
    """One GPU: memory, link, load."""
    return [
        ("Memory", _device_memory(device)),
        *_listed(device),
        ("BAR1", f"{figure_text(device, 'bar1_used_bytes')} of {figure_text(device, 'bar1_total_bytes')}"),
        ("Link", _link(device.link) if device.link else figure_text(device, "link", "text")),
        ("Busy", _busy(device)),
        ("Clocks", f"SM {_clock(device, 'sm_clock_hertz')}, memory {_clock(device, 'memory_clock_hertz')}"),
        *(
            (
                f"MIG {'n/a' if part.gpu_instance is None else part.gpu_instance}",
                f"{format_bytes(part.memory_used_bytes)} used of {format_bytes(part.memory_total_bytes)}",
            )
            for part in device.mig
        ),
    ]


def _device_memory(device: DeviceFigures) -> str:
    if device.memory_total_bytes is None:
        return figure_text(device, "memory_total_bytes")
    reserved = figure_text(device, "memory_reserved_bytes", because=False)
    used, total = figure_text(device, "memory_used_bytes"), format_bytes(device.memory_total_bytes)
    return f"{used} used of {total}; {reserved} reserved by driver and firmware"


def _link(link: Link) -> str:
    """What it is now, and what it is at best where that is more."""
    now, best = link_text(link), link_text(link, at_best=True)
    return now if now == best else f"{now}; at best {best}"


def _busy(device: DeviceFigures) -> str:
    kernels = figure_text(device, "busy_share", "share")
    return f"kernels {kernels}, memory {figure_text(device, 'memory_busy_share', 'share')}"


def _clock(device: DeviceFigures, field: str) -> str:
    hertz = getattr(device, field)
    return figure_text(device, field) if hertz is None else f"{hertz / 1e6:,.0f} MHz"


def share_text(record: HostTotals | DeviceFigures, field: str) -> str | None:
    """``12.5 % of memory``, of a GPU ``0.1 % of its memory`` or ``47.9 % of the link``; ``None`` where not known.

    Some containers show a host without any memory.
    """
    value = getattr(record, field)
    if field.endswith("_bytes_per_second"):
        share = getattr(record, field.replace("_bytes_per_second", "_share"), None)
        return None if share is None else f"{format_share(share)} of the link"
    whole, words = (
        (record.total_bytes, "memory") if isinstance(record, HostTotals) else (record.memory_total_bytes, "its memory")
    )
    if value is None or whole is None or whole <= 0:
        return None
    return f"{format_share(value / whole)} of {words}"


_OWN, _ON_GPUS = figures(Holder), figures(GpuUse)
COLUMNS: Mapping[str, Figure] = {figure.column: figure for figure in (*_OWN, *_ON_GPUS)}
"""Figures of a holder by the name of their column; the last ones are sums over its GPUs."""
ON_GPUS = frozenset(figure.column for figure in _ON_GPUS)


@dataclass(frozen=True)
class HolderRow:
    """One holder in a line.

    Attributes:
        holder: its record.
        growing: it takes more and more and gives nothing back.
        only_locked: all that it holds is locked with mlock, which is not pinned.
        gpus: indices of those on which it has a context.
        amounts: of each of :data:`COLUMNS`; ``None`` where not known.
        signs: what stands before those of them that are estimates.
    """

    holder: Holder
    growing: bool
    only_locked: bool
    gpus: tuple[int, ...]
    amounts: Mapping[str, Number]
    signs: Mapping[str, str]

    def text(self, name: str) -> str:
        """One of the amounts in words, such as ``≤8 GiB``; ``-`` for what it has on GPUs where it is on none."""
        amount = self.amounts[name]
        if amount is not None and name in ON_GPUS and not self.gpus:
            return "-"
        sign = "" if amount is None else self.signs.get(name, "")
        return sign + format_value(amount, COLUMNS[name].unit)


def holder_rows(holders: Iterable[Holder], growing: Collection[int] = ()) -> list[HolderRow]:
    """One row a holder, in their order.

    Args:
        holders: of a snapshot.
        growing: pids of those that grow.
    """
    return [_row(holder, holder.pid in growing) for holder in holders]


def _row(holder: Holder, growing: bool) -> HolderRow:
    bounds = dict(holder.estimates)
    amounts: dict[str, Number] = {figure.column: getattr(holder, figure.field) for figure in _OWN}
    for figure in _ON_GPUS:
        parts = [getattr(use, figure.field) for use in holder.gpus]
        unknown = "gpus" in holder.missing or None in parts
        amounts[figure.column] = None if unknown else figure.together(parts) or 0
        bound = bound_of_sum(use.estimates.get(figure.field) for use in holder.gpus)
        bounds |= {figure.column: bound} if bound else {}
    return HolderRow(
        holder=holder,
        growing=growing,
        only_locked=is_only_locked(holder),
        gpus=tuple(use.index for use in holder.gpus),
        amounts=amounts,
        signs={name: SIGNS[bound.kind] for name, bound in bounds.items()},
    )


def gpus_text(indices: Sequence[int]) -> str:
    """``0, 2–5``."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def matching(holders: Sequence[Holder], words: str) -> list[Holder]:
    """Those in whose pid, name, user, container, control group or command every one of the words stands."""
    wanted = words.casefold().split()
    return [holder for holder in holders if all(word in _searched(holder) for word in wanted)]


def _searched(holder: Holder) -> str:
    texts = (str(holder.pid), holder.name, holder.user, holder.container, holder.cgroup, holder.command)
    return "\n".join(text for text in texts if text).casefold()
