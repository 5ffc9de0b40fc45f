"""What the driver has of a host's memory and of each GPU's, as one snapshot shows it: rules with their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from pinscope.analysis.page_table_model import page_table_bytes
from pinscope.analysis.rules.gpu_memory import page_table_severity, unattributed_severity
from pinscope.analysis.rules.host_memory import DRIVER_BYTES, MUCH_LOCKED_BYTES, UNEXPLAINED_BYTES, pinned_severity
from pinscope.records.bound import bound_of_sum
from pinscope.records.finding import Finding, Quantity, finding, known, note, quantity
from pinscope.records.snapshot import Holder, Snapshot
from pinscope.records.timeline import HolderSample
from pinscope.units import format_bytes

PAGE_BYTES = 4096
"""The page in which host memory was mapped on the GPUs measured; larger ones take less."""
MOST_NAMED = 5
DRIVER_MEMORY_IS = (
    "Write-combined memory, memory of cuMemCreate on the host and host memory pools lie in RAM as pinned memory does, "
    "but in none of the kernel's accounts."
)
DRIVER_MEMORY_ADVICE = "Count it as pinned when you plan what fits on this host."


def page_tables(snapshot: Snapshot) -> Iterator[Finding]:
    for device in snapshot.devices:
        tables, total = device.page_table_bytes, device.memory_total_bytes
        if tables is None or not total or (severity := page_table_severity(tables / total)) is None:
            continue
        payers = sum(use.index == device.index for holder in snapshot.holders for use in holder.gpus)
        yield finding(
            severity,
            "page-tables-of-gpu",
            quantity(f"Page tables{_explained_by(snapshot)}", tables, "bytes"),
            quantity("GPU memory", total, "bytes"),
            quantity("Share of it", tables / total, "share"),
            quantity("Processes with a context", payers, "count"),
            known("Used by no process", device, "unattributed_bytes", "bytes"),
            title=f"GPU {device.index}: page tables of pinned memory take {format_bytes(tables)} of its memory",
            detail="A GPU keeps a page table for pinned host memory, 8 bytes a page, for every process, on every GPU "
            "on which the process has a context. No process is charged for it.",
            advice="Pin less, keep contexts only on the GPUs that a process uses (CUDA_VISIBLE_DEVICES), or let one "
            "process own the memory. 'pinscope plan' works out what each of these saves.",
        )


def _explained_by(snapshot: Snapshot) -> str:
    """Whose page tables are known."""
    kinds = ["cudaHostAlloc"]
    kinds += ["driver"] if driver_memory(snapshot.holders) else []
    kinds += ["registered"] if snapshot.probe is not None else []
    return f", {kinds[0]} memory alone" if len(kinds) == 1 else f", {' and '.join(kinds)} memory"


def driver_memory(holders: Sequence[Holder]) -> int:
    return sum(holder.driver_memory_bytes or 0 for holder in holders)


def memory_of_the_driver(snapshot: Snapshot) -> Iterator[Finding]:
    """What no count of pins has."""
    host = snapshot.host
    holders = ranked(snapshot.holders, lambda holder: holder.driver_memory_bytes)
    held = driver_memory(holders)
    if held < DRIVER_BYTES:
        return
    severity = pinned_severity(held / max(host.total_bytes, held), host.available_bytes / max(host.total_bytes, 1))
    bound = bound_of_sum(holder.estimates.get("driver_memory_bytes") for holder in holders)
    amount = f"{f'{bound.words} ' if bound else ''}{format_bytes(held)}"
    yield finding(
        severity or "note",
        "driver-memory",
        known("Driver memory of the host, about", host, "driver_memory_bytes", "bytes"),
        quantity("Mapped by holders", held, "bytes"),
        *by_holder("Driver memory of", holders, lambda holder: holder.driver_memory_bytes),
        title=f"Holders have {amount} of driver memory, which the count of pins lacks",
        detail=DRIVER_MEMORY_IS,
        advice=DRIVER_MEMORY_ADVICE,
    )


def unexplained(snapshot: Snapshot) -> Iterator[Finding]:
    """Used by no process, page table or context, also not by what memory that nobody explains may have there."""
    hidden = any(gap.hides_holders for gap in snapshot.unreadable)
    host = snapshot.host
    other = None if host.other_pinned_bytes is None else (host.pins_bytes or 0) - (host.explained_bytes or 0)
    managed = sum(holder.managed_bytes or 0 for holder in snapshot.holders)
    for device in snapshot.devices:
        if device.unattributed_bytes is None or device.page_table_bytes is None or device.mig:
            continue
        registered = page_table_bytes(other or 0, PAGE_BYTES)
        explained = device.page_table_bytes + registered + (device.context_overhead_bytes or 0) + managed
        rest = device.unattributed_bytes - explained
        severity = unattributed_severity(rest, sure=not hidden and other is not None)
        if severity is None:
            continue
        yield finding(
            severity,
            "unattributed-gpu-memory",
            quantity("Used by no process", device.unattributed_bytes, "bytes"),
            quantity(f"Page tables{_explained_by(snapshot)}", device.page_table_bytes, "bytes"),
            quantity(
                "Page tables, all other pinned memory, at most",
                None if other is None else registered,
                "bytes",
                reason=snapshot.host.missing.get("other_pinned_bytes"),
            ),
            quantity("Managed memory of the holders, at most", managed, "bytes"),
            known("The driver's own for contexts, about", device, "context_overhead_bytes", "bytes"),
            title=f"GPU {device.index}: {format_bytes(rest)} are used that no process, page table or context explains",
            detail="The driver charges this memory to no process. "
            + ("Some processes could not be looked at: it may be page tables of theirs. " if hidden else "")
            + "It is the driver's own, the display's, or of a process that ended without giving everything back.",
            advice="Run as root, outside of containers, to see all processes."
            if hidden
            else "Look again with 'pinscope live --once' when the programs on this GPU have ended.",
        )


def only_candidate(snapshot: Snapshot) -> Holder | None:
    """The process that alone can have registered what no holder explains: no other one with CUDA is seen."""
    host, holders = snapshot.host, snapshot.holders
    named = {process.pid for device in snapshot.devices for process in device.processes}
    users = [
        holder
        for holder in holders
        if (holder.pid in named if snapshot.devices else holder.cuda and not holder.inherited_from)
    ]
    if len(users) != 1 or named - {users[0].pid} or snapshot.own_pids:
        return None
    if any(gap.hides_holders for gap in snapshot.unreadable):  # there, who locks memory may pin it (VFIO)
        lockers = any((holder.locked_bytes or 0) >= MUCH_LOCKED_BYTES for holder in holders if holder is not users[0])
        if lockers or not named:
            return None
    holder, other = users[0], host.other_pinned_bytes or 0
    resident = (holder.rss_bytes or 0) + (holder.hugetlb_bytes or 0) - (holder.host_alloc_bytes or 0)
    followed = holder.registered_bytes is not None and "registered_bytes" not in holder.estimates
    again = host.pins_bytes != host.pinned_bytes or any("vm_pin_bytes" in holder.estimates for holder in holders)
    return holder if UNEXPLAINED_BYTES <= other <= resident and not followed and not again else None


def unexplained_pins(snapshot: Snapshot) -> Iterator[Finding]:
    """Registered memory leaves no mark: where only one process can have it, that one is named."""
    candidate, host = only_candidate(snapshot), snapshot.host
    if candidate is None:
        return
    yield note(
        "unexplained-pins",
        known("Pinned, not explained", host, "other_pinned_bytes", "bytes"),
        title=f"{format_bytes(host.other_pinned_bytes)} is pinned that no holder explains; {who(candidate)} is the "
        "only CUDA process seen",
        detail="It probably registered that memory, at most all of it: cudaHostRegister leaves no mark in /proc. Pins "
        "of other drivers would look the same.",
        advice="As root, 'pinscope live --probe' shows what it registers from then on.",
    )


def who(holder: Holder | HolderSample) -> str:
    return f"{holder.name or 'process'} (pid {holder.pid})"


def ranked(holders: Iterable[Holder], amount: Callable[[Holder], int | None]) -> list[Holder]:
    """Those that have any of it, most first."""
    return sorted(filter(amount, holders), key=lambda holder: amount(holder) or 0, reverse=True)


def by_holder(name: str, holders: Sequence[Holder], amount: Callable[[Holder], int | None]) -> Iterator[Quantity]:
    """What each of the first few has, as evidence."""
    return (quantity(f"{name} {who(holder)}", amount(holder), "bytes") for holder in holders[:MOST_NAMED])
