"""What a snapshot of the host shows to be wrong, or soon to be: rules, each with its numbers and what to do.

What needs several snapshots, such as memory that grows and never comes back, is judged over a timeline, not here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from shlex import quote

from pinscope.analysis import rules
from pinscope.analysis.models import link_below_best, page_table_bytes
from pinscope.records.figure import bound_of_sum
from pinscope.records.run import Finding, Quantity, Severity, finding, known, note, quantity
from pinscope.records.snapshot import DeviceFigures, GpuUse, Holder, HostTotals, MigInstance, Snapshot
from pinscope.records.timeline import HolderSample
from pinscope.units import GIB, format_bytes, format_share


def possible_owners(snapshot: Snapshot) -> list[tuple[Holder, int]]:
    """CUDA processes that can have registered what no holder explains, each with the most that it can have of it.

    Empty where there is little of it, where it may be somebody's who is not seen, and where these cannot have it all.
    """
    host, holders = snapshot.host, snapshot.holders
    other = host.other_pinned_bytes or 0
    again = host.pins_bytes != host.pinned_bytes or any("vm_pin_bytes" in holder.estimates for holder in holders)
    if other < rules.UNEXPLAINED_BYTES or again or snapshot.own_pids:
        return []
    named = {process.pid for device in snapshot.devices for process in device.processes}
    users = [
        holder
        for holder in holders
        if (holder.pid in named if snapshot.devices else holder.cuda and not holder.inherited_from)
    ]
    if named - {holder.pid for holder in users}:
        return []
    if rules.locked_otherwise_bytes(host, holders) >= rules.UNEXPLAINED_BYTES:
        return []
    if any(gap.hides_holders for gap in snapshot.unreadable) and not named:
        return []
    owners = [(holder, min(other, _resident(holder))) for holder in users if not _is_followed(holder)]
    owners = sorted((owner for owner in owners if owner[1] > 0), key=lambda owner: -owner[1])
    return owners if sum(most for _, most in owners) >= other else []


def _is_followed(holder: Holder) -> bool:
    """Whether all that it has registered is known."""
    return holder.registered_bytes is not None and "registered_bytes" not in holder.estimates


def _resident(holder: Holder) -> int:
    """What of it is in memory, less what it has from cudaHostAlloc."""
    return max(0, (holder.rss_bytes or 0) + (holder.hugetlb_bytes or 0) - (holder.host_alloc_bytes or 0))


def who(holder: Holder | HolderSample) -> str:
    return f"{holder.name or 'process'} (pid {holder.pid})"


def ranked(holders: Iterable[Holder], amount: Callable[[Holder], int | None]) -> list[Holder]:
    """Those that have any of it, most first."""
    return sorted(filter(amount, holders), key=lambda holder: amount(holder) or 0, reverse=True)


_PINNED = ("host_alloc_bytes", "registered_bytes")
"""Memory that is only locked (mlock) is not among it: CUDA does not know of it."""


def snapshot_verdict(snapshot: Snapshot) -> str:
    """The process that holds most, how many there are, and what that is of the host's memory."""
    holders, of_host = ranked(snapshot.holders, _pinned_by), _of_the_host(snapshot)
    if not holders:
        owners = possible_owners(snapshot)
        if snapshot.host.pinned_bytes == 0 and "pinned_bytes" not in snapshot.host.estimates:
            return "Nothing is pinned on this host."
        if not of_host:
            return "No process is seen to have pinned memory."
        by = "by no process of this container" if snapshot.own_pids else "by no process that is seen"
        if owners:
            several = f"one of {len(owners)} CUDA processes" if len(owners) > 1 else "the only CUDA process"
            by = f"perhaps by {who(owners[0][0])}, {several}"
        return f"On this host {of_host} is pinned, {by}."
    first = holders[0]
    whole = f"; pinned on the whole host: {of_host}" if of_host else ""
    if len(holders) == 1:
        return f"{who(first)} has {_amount(first)} pinned{whole}."
    return f"{len(holders)} processes have pinned memory, {who(first)} most ({_amount(first)}){whole}."


def gpu_verdict(snapshot: Snapshot, index: int) -> str | None:
    """Who uses a GPU, and which of them holds the most pinned memory; ``None`` where the snapshot does not show it."""
    device = next((device for device in snapshot.devices if device.index == index), None)
    if device is None:
        return None
    users = [holder for holder in snapshot.holders if any(use.index == index for use in holder.gpus)]
    count = max(
        len(users), len(device.processes)
    )  # in a container the driver names processes that nobody can look into
    if not count and not snapshot.own_pids:
        return "No process uses it now."
    if not count:
        used = device.memory_used_bytes
        rest = "" if used is None else f"; of its memory, {format_bytes(used)} are used"
        return f"No process of this container uses it now{rest}."
    words = "A process uses it now" if count == 1 else f"{count} processes use it now"
    holders = ranked(users, _pinned_by)
    if not holders:
        return f"{words}, no pinned memory of {'it' if count == 1 else 'them'} is seen."
    most = "" if len(holders) == 1 else "the most "
    return f"{words}, {who(holders[0])} has {most}pinned memory: {_amount(holders[0])}."


def _amount(holder: Holder) -> str:
    by_kernel = (holder.vm_pin_bytes or 0) >= _pinned_by(holder)
    bound = bound_of_sum(holder.estimates.get(field) for field in (("vm_pin_bytes",) if by_kernel else _PINNED))
    return f"{f'{bound.words} ' if bound else ''}{format_bytes(_pinned_by(holder))}"


def _pinned_by(holder: Holder) -> int:
    """RDMA may pin CUDA's memory again: the larger of the two counts."""
    return max(sum(getattr(holder, field) or 0 for field in _PINNED), holder.vm_pin_bytes or 0)


def _of_the_host(snapshot: Snapshot) -> str:
    host = snapshot.host
    if host.pinned_bytes is None or host.total_bytes <= 0:
        return ""
    share = format_share(host.pinned_bytes / host.total_bytes)
    bound = host.estimates.get("pinned_bytes")
    amount = f"{f'{bound.words} ' if bound else ''}{format_bytes(host.pinned_bytes)}"
    return f"{amount} ({share} of its memory)"


PAGE_BYTES = 4096
"""The page in which host memory was mapped on the GPUs measured; larger ones take less."""
MOST_NAMED = 5
NOBODYS_BYTES = GIB
"""Pins of no process that are worth a note: storage may pin hundreds of MiB for as long as it reads or writes."""
LEFT_SHARE = 0.05
"""Of the host's memory: so much in files that nobody has open is a warning."""
DRIVER_MEMORY_IS = (
    "Write-combined memory, memory of cuMemCreate on the host and host memory pools lie in RAM as pinned memory does, "
    "but in none of the kernel's accounts."
)
PINNED_SHARE_ADVICE = (
    "Pin what is copied often, in buffers that are used again, and give back the rest. 'pinscope run pressure' shows "
    "what pinned memory takes from everybody else here."
)
GROUP_ADVICE = "Pin less, or raise the limit (docker run --memory, resources.limits.memory, MemoryMax=)."
DRIVER_MEMORY_ADVICE = "Count it as pinned when you plan what fits on this host."


def snapshot_findings(snapshot: Snapshot) -> tuple[Finding, ...]:
    """What one snapshot alone shows; empty where nothing is to be said."""
    return tuple(finding for rule in _RULES for finding in rule(snapshot))


def _page_tables(snapshot: Snapshot) -> Iterator[Finding]:
    for device, part in _memories(snapshot):
        uses = [use for pid, use in _uses(snapshot, device) if part is None or _runs_on(pid, part, device)]
        tables = device.page_table_bytes if part is None else sum(use.page_table_bytes or 0 for use in uses)
        total = (part or device).memory_total_bytes
        if tables is None or not total or (severity := rules.page_table_severity(tables / total)) is None:
            continue
        name = f"GPU {device.index}" if part is None else f"GPU {device.index}, MIG instance {part.gpu_instance}"
        yield finding(
            severity,
            "page-tables-of-gpu",
            quantity(f"Page tables{_explained_by(snapshot)}", tables, "bytes"),
            quantity("Its memory" if part else "GPU memory", total, "bytes"),
            quantity("Share of it", tables / total, "share"),
            quantity("Processes with a context", len(uses), "count"),
            *(() if part else [known("Used by no process", device, "unattributed_bytes", "bytes")]),
            title=f"{name}: page tables of pinned memory take {format_bytes(tables)} of its memory",
            detail="A GPU keeps a page table for pinned host memory, 8 bytes a page, for every process, on every GPU "
            "on which the process has a context. No process is charged for it.",
            advice="Pin less, keep contexts only on the GPUs that a process uses (CUDA_VISIBLE_DEVICES), or let one "
            "process own the memory. 'pinscope plan' works out what each of these saves.",
        )


def _memories(snapshot: Snapshot) -> Iterator[tuple[DeviceFigures, MigInstance | None]]:
    """GPUs, or in Multi-Instance mode their parts, each with memory of its own."""
    for device in snapshot.devices:
        yield from ((device, part) for part in device.mig or (None,))


def _uses(snapshot: Snapshot, device: DeviceFigures) -> list[tuple[int, GpuUse]]:
    """Pid and share of each holder with a context on a GPU."""
    return [(holder.pid, use) for holder in snapshot.holders for use in holder.gpus if use.index == device.index]


def _runs_on(pid: int, part: MigInstance, device: DeviceFigures) -> bool:
    """A process on an instance has its page tables in the memory of that one."""
    return any(
        process.pid == pid and process.gpu_instance == part.gpu_instance is not None for process in device.processes
    )


def _explained_by(snapshot: Snapshot) -> str:
    """Whose page tables are known."""
    kinds = ["cudaHostAlloc"]
    kinds += ["driver"] if any(holder.driver_memory_bytes for holder in snapshot.holders) else []
    kinds += ["registered"] if snapshot.probe is not None else []
    return f", {kinds[0]} memory alone" if len(kinds) == 1 else f", {' and '.join(kinds)} memory"


def _memory_of_the_driver(snapshot: Snapshot) -> Iterator[Finding]:
    """What no count of pins has."""
    host = snapshot.host
    holders = ranked(snapshot.holders, lambda holder: holder.driver_memory_bytes)
    held = sum(holder.driver_memory_bytes or 0 for holder in holders)
    if held < rules.DRIVER_BYTES:
        return
    severity = rules.pinned_severity(held, host.available_bytes, max(host.total_bytes, held))
    bound = bound_of_sum(holder.estimates.get("driver_memory_bytes") for holder in holders)
    amount = f"{f'{bound.words} ' if bound else ''}{format_bytes(held)}"
    yield finding(
        severity or "note",
        "driver-memory",
        known("Driver memory of the host, about", host, "driver_memory_bytes", "bytes"),
        quantity("Mapped by holders", held, "bytes"),
        *_by_holder("Driver memory of", holders, lambda holder: holder.driver_memory_bytes),
        title=f"Holders have {amount} of driver memory, which the count of pins lacks",
        detail=DRIVER_MEMORY_IS,
        advice=DRIVER_MEMORY_ADVICE,
    )


def _unexplained(snapshot: Snapshot) -> Iterator[Finding]:
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
        severity = rules.unattributed_severity(rest, sure=not hidden and other is not None)
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
            title=f"GPU {device.index}: {format_bytes(rest)} are used "
            + (
                "that nothing seen in this container explains"
                if snapshot.own_pids
                else "that no process, page table or context explains"
            ),
            detail="The driver hides processes outside this container: the memory may be all theirs."
            if snapshot.own_pids
            else "The driver charges this memory to no process. "
            + ("Some processes could not be looked at: it may be page tables of theirs. " if hidden else "")
            + "It is the driver's own, the display's, or of a process that ended without giving everything back.",
            advice="Run as root, outside of containers, to see all processes."
            if hidden
            else "Look again with 'pinscope live --once' when the programs on this GPU have ended.",
        )


def _unexplained_pins(snapshot: Snapshot) -> Iterator[Finding]:
    """Registered memory leaves no mark: those who can have it are named, with the most that they can have."""
    owners, host = possible_owners(snapshot), snapshot.host
    if not owners or _share_severity(host) is not None:  # which names them
        return
    single = len(owners) == 1
    by = f"{who(owners[0][0])} is the only CUDA process seen" if single else f"{len(owners)} CUDA processes may have it"
    yield note(
        "unexplained-pins",
        known("Pinned, not explained", host, "other_pinned_bytes", "bytes"),
        *_possible(owners),
        title=f"{format_bytes(host.other_pinned_bytes)} is pinned that no holder explains; {by}",
        detail=f"{'It' if single else 'One of them or several'} probably registered that memory, at most all of it: "
        "cudaHostRegister leaves no mark in /proc. Pins of other drivers would look the same.",
        advice="As root, 'pinscope live --probe' shows what it registers from then on."
        if single
        else "As root, 'pinscope live --probe' shows what they register from then on.",
    )


def _possible(owners: Sequence[tuple[Holder, int]]) -> Iterator[Quantity]:
    return (quantity(f"At most, by {who(holder)}", most, "bytes") for holder, most in owners[:MOST_NAMED])


def _pins_of_nobody(snapshot: Snapshot) -> Iterator[Finding]:
    """Pins where everybody was looked at and nobody is seen who could have them: the counter alone says no more."""
    host = snapshot.host
    pins, outside = host.other_pinned_bytes or 0, host.driver_memory_bytes
    hidden = snapshot.own_pids or any(gap.hides_holders for gap in snapshot.unreadable)
    users = any(holder.cuda is not False or holder.vm_pin_bytes for holder in snapshot.holders)
    users = users or any(device.processes or "processes" in device.missing for device in snapshot.devices)
    if pins < NOBODYS_BYTES or hidden or users or outside is None:
        return
    if rules.locked_otherwise_bytes(host, snapshot.holders) >= rules.UNEXPLAINED_BYTES:
        return
    gone = outside >= pins
    yield note(
        "pins-of-no-process",
        quantity("Counted as pinned", host.pins_bytes, "bytes"),
        known("In none of the kernel's accounts, about", host, "driver_memory_bytes", "bytes"),
        quantity("Kernel", f"Linux {snapshot.kernel}" if snapshot.kernel else "not known", "text"),
        title=f"{format_bytes(pins)} is counted as pinned, but no process is seen to use CUDA, RDMA, VFIO or io_uring",
        detail=(
            "As much memory is in none of the kernel's accounts: pins may have stayed when a program ended, or another "
            "driver has them."
            if gone
            else "Less memory than that is in none of the kernel's accounts. So the kernel may have lost count of pins "
            "that were released, or another driver has pinned shared memory or huge pages."
        ),
        advice="Look again after the next planned restart, before programs run: that much is not theirs.",
    )


def _left_behind(snapshot: Snapshot) -> Iterator[Finding]:
    """Memory of files that nobody has open is taken until somebody removes them."""
    files = snapshot.left_files
    if not files:
        return
    taken, first = sum(file.bytes for file in files), files[0]
    others = f" and {len(files) - 1} more files" if len(files) > 1 else ""
    outside = " Processes outside this container are not seen." if snapshot.own_pids else ""
    yield finding(
        "warning" if taken >= LEFT_SHARE * snapshot.host.total_bytes else "note",
        "memory-left-behind",
        *(quantity(file.path, file.bytes, "bytes") for file in files[:MOST_NAMED]),
        quantity("Last written", f"{first.modified_at:%Y-%m-%d %H:%M} UTC", "text"),
        title=f"{format_bytes(taken)} of memory lie in {first.path}{others}; no process has "
        f"{'them' if others else 'it'} open",
        detail="A program that is killed leaves such a file behind; its memory is taken until the file is removed."
        f"{outside}",
        advice=f"If no program is to find it again: rm {quote(first.path)}",
    )


def _pinned_share(snapshot: Snapshot) -> Iterator[Finding]:
    host, owners = snapshot.host, possible_owners(snapshot)
    pinned, severity = _pinned(host), _share_severity(host)
    if severity is None:
        return
    share, other = pinned / host.total_bytes, format_bytes(host.other_pinned_bytes)
    yield finding(
        severity,
        "pinned-share-of-ram",
        quantity("Pinned", pinned, "bytes"),
        known("Pinned, at least", host, "pinned_least_bytes", "bytes"),
        quantity("Memory", host.total_bytes, "bytes"),
        quantity("Share of it", share, "share"),
        quantity("Available", host.available_bytes, "bytes"),
        *_by_holder("Held by", [holder for holder in snapshot.holders if _charged_to(holder)], _charged_to),
        *_possible(owners),
        title=f"Up to {format_share(share)} of this host's memory is pinned",
        detail="Pinned memory can be neither swapped nor moved nor reclaimed; "
        f"{format_bytes(host.available_bytes)} are still available to all programs. It is less than that share where "
        "pages are pinned more than once, as the kernel counts each pin."
        + (f" No holder explains {other} of it: CUDA processes may have registered it." if owners else ""),
        advice=PINNED_SHARE_ADVICE,
    )


def _pinned(host: HostTotals) -> int:
    return (host.pinned_bytes if host.pinned_bytes is not None else host.explained_bytes) or 0


def _share_severity(host: HostTotals) -> Severity | None:
    """How grave it is that so much of the host's memory is pinned; at least a note where it may be much."""
    if host.total_bytes <= 0 or _beyond_use(host) is not None:
        return None
    least = _pinned(host) if host.pinned_least_bytes is None else host.pinned_least_bytes
    sure, most = (
        rules.pinned_severity(amount, host.available_bytes, host.total_bytes) for amount in (least, _pinned(host))
    )
    return most and (sure or "note")  # it may be the same memory, pinned several times


def _near_group_limit(snapshot: Snapshot) -> Iterator[Finding]:
    """The holders of one group are judged together: it is their sum that meets the limit."""
    groups: dict[tuple[str | int, int], list[Holder]] = {}
    for holder in snapshot.holders:
        if holder.cgroup_limit_bytes and holder.cgroup_headroom_bytes is not None and _charged_to(holder):
            group = holder.container or holder.cgroup or holder.pid
            groups.setdefault((group, holder.cgroup_limit_bytes), []).append(holder)
    for (_, limit), holders in groups.items():
        # Only cudaHostAlloc memory adds up: what several registered, locked or pinned for RDMA may be the same.
        pinned = max(sum(holder.host_alloc_bytes or 0 for holder in holders), *map(_charged_to, holders))
        left = min(holder.cgroup_headroom_bytes or 0 for holder in holders)
        severity = rules.group_severity(pinned, left, limit)
        if severity is None:
            continue
        first, many = holders[0], len(holders) > 1
        where = f" in {first.container}" if first.container else ""
        yield finding(
            severity,
            "holder-near-cgroup-limit",
            quantity(f"Pinned or locked by {'them' if many else 'it'}, at least", pinned, "bytes"),
            quantity("Limit of the control group", limit, "bytes"),
            quantity("Left in the control group", left, "bytes"),
            known("Control group", first, "cgroup", "text"),
            *_by_holder("Held by", holders if many else (), _charged_to),
            title=f"{len(holders)} holders{where} are {format_bytes(left)} below the limit of their control group"
            if many
            else f"{who(first)}{where} is {format_bytes(left)} below the limit of its control group",
            detail="Pinned memory is charged to the control group and cannot be reclaimed. At the limit the kernel "
            "kills a process of the group, or slows it to a crawl where the limit is memory.high.",
            advice=GROUP_ADVICE,
        )


def _beyond_use(host: HostTotals) -> int | None:
    pinned = host.pinned_bytes or 0
    return rules.pinned_twice_bytes(host.pins_bytes or 0, host.total_bytes, host.total_bytes - pinned)


def _pinned_twice(snapshot: Snapshot) -> Iterator[Finding]:
    """More pins than memory in use: pages are there only once, so some of them are pinned more than once."""
    host = snapshot.host
    beyond = _beyond_use(host)
    if beyond is None:
        return
    yield note(
        "memory-pinned-more-than-once",
        quantity("Pinned, each pin counted", host.pins_bytes, "bytes"),
        quantity("Memory in use", host.pinned_bytes, "bytes"),
        known("Shared memory", host, "shmem_bytes", "bytes"),
        *_by_holder("Registered by", ranked(snapshot.holders, _registered), _registered),
        title=f"At least {format_bytes(beyond)} are pinned more than once",
        detail=f"{format_bytes(host.pins_bytes)} of pins stand on {format_bytes(host.pinned_bytes)} of memory in use: "
        "several processes have registered the same memory, for instance. The host holds it once, but every GPU pays "
        f"page tables for each of them, {format_bytes(page_table_bytes(GIB, PAGE_BYTES))} a GiB.",
        advice="Let one process register the memory and copy into the others' GPU buffers through CUDA IPC; 'pinscope "
        "run registration' measures both ways here.",
    )


def _rounding(snapshot: Snapshot) -> Iterator[Finding]:
    wasting = ranked(snapshot.holders, _rounding_of)
    waste = sum(map(_rounding_of, wasting))
    if not rules.is_much_rounding(waste, snapshot.host.total_bytes):
        return
    silent = [holder for holder in wasting if "kept_bytes" in holder.estimates]
    names = [name for name in rules.GIVES_BACK if any(name in holder.allocators for holder in silent)]
    kept = (
        f" {' and '.join(names)} may also keep memory that is no longer used, at most "
        f"{format_bytes(sum(holder.kept_bytes or 0 for holder in silent))}: "
        f"{' and '.join(rules.GIVES_BACK[name] for name in names)} gives it back."
    )
    yield note(
        "rounding-waste",
        *_by_holder("At most, in", wasting, _rounding_of),
        title=f"Up to {format_bytes(waste)} of pinned memory may be waste: sizes that are powers of two",
        detail="An allocator that rounds requests up to powers of two, as PyTorch's pinned one does, wastes up to "
        "half of each: 20.4 GiB become 32. A program that asked for exactly these sizes wastes nothing, and looks the "
        "same." + (kept if names else ""),
        advice=rules.ROUNDING_ADVICE,
    )


def _rounding_of(holder: Holder) -> int:
    """Half of it may be waste, less of what is kept anyway, of which another finding tells."""
    return max(0, (holder.rounding_bytes or 0) - _exactly_kept(holder) // 2)


def _kept_by_allocators(snapshot: Snapshot) -> Iterator[Finding]:
    """Only the process knows; what it could be at most says nothing of what it is."""
    keeping = ranked(snapshot.holders, _exactly_kept)
    kept = sum(map(_exactly_kept, keeping))
    if not rules.is_much_rounding(kept, snapshot.host.total_bytes):
        return
    first = keeping[0]
    calls = [rules.GIVES_BACK[name] for name in rules.GIVES_BACK if any(holder.kept_by.get(name) for holder in keeping)]
    whose = who(first) if len(keeping) == 1 else f"{len(keeping)} processes"
    yield note(
        "kept-by-allocators",
        *(
            quantity(f"Kept by {name} in {who(holder)}", amount, "bytes")
            for holder in keeping[:MOST_NAMED]
            for name, amount in holder.kept_by.items()
            if amount
        ),
        quantity("Said at", f"{first.said_at:%Y-%m-%d %H:%M:%S} UTC", "text"),
        title=f"{format_bytes(kept)} of pinned memory are kept by allocators and unused, says {whose}",
        detail="Memory that was freed is kept for later requests. The figure is exact: the process itself said it.",
        advice=f"If it is not needed again soon, call {' and '.join(calls)} there.",
    )


def _exactly_kept(holder: Holder) -> int:
    return sum(holder.kept_by.values())


def _links(snapshot: Snapshot) -> Iterator[Finding]:
    for device in snapshot.devices:
        if device.link is not None and device.link.kind == "pcie":
            busy = rules.is_busy(device.busy_share, device.rx_share, device.tx_share)
            finding = link_below_best(device.index, device.link, busy=busy)
            if finding is not None:
                reason = device.missing.get("busy_share")
                used = quantity("GPU busy", device.busy_share, "share", reason=reason)
                yield finding.model_copy(update={"evidence": (*finding.evidence, used)})


def _by_holder(name: str, holders: Sequence[Holder], amount: Callable[[Holder], int | None]) -> Iterator[Quantity]:
    """What each of the first few has, as evidence."""
    return (quantity(f"{name} {who(holder)}", amount(holder), "bytes") for holder in holders[:MOST_NAMED])


def _registered(holder: Holder) -> int | None:
    """What the probe saw it register."""
    return holder.registered_bytes


def _charged_to(holder: Holder) -> int:
    """What is pinned or locked by it, at least; of driver memory it is not known whether a control group pays."""
    locked = None if "locked_bytes" in holder.estimates else holder.locked_bytes
    return rules.held_bytes(holder.host_alloc_bytes, holder.registered_bytes, locked, holder.vm_pin_bytes) or 0


_RULES: tuple[Callable[[Snapshot], Iterator[Finding]], ...] = (
    _pinned_share,
    _near_group_limit,
    _pinned_twice,
    _memory_of_the_driver,
    _page_tables,
    _unexplained,
    _unexplained_pins,
    _pins_of_nobody,
    _left_behind,
    _kept_by_allocators,
    _rounding,
    _links,
)
