"""The facts of a report in words: name and text, the same in every format that people read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pinscope.records.budget import Budget
from pinscope.records.environment import Device, Environment, Link
from pinscope.records.finding import Finding, Quantity, Severity
from pinscope.records.run import LAB_TITLES, ExperimentRun, Run, Status
from pinscope.report.device_facts import bus_facts
from pinscope.report.document import Document
from pinscope.units import format_bandwidth, format_bytes, format_seconds, format_share, format_value

Fact = tuple[str, str]

SEVERITY_WORDS: Mapping[Severity, str] = {
    "critical": "✕ Critical",
    "warning": "⚠ Warning",
    "note": "ℹ Note",
    "good": "✓ Good",
}
"""Severity → word with a sign, the worst first: never told by colour alone."""

_UNFINISHED: Mapping[Status, str] = {
    "running": "is still going",
    "failed": "failed",
    "cancelled": "was cancelled",
    "interrupted": "was interrupted",
}


def caveats(run: Run) -> list[str]:
    """What a reader must know before the figures: an unfinished run, and a recording of another machine."""
    found = []
    if run.status in _UNFINISHED:
        found.append(_unfinished(run))
    if run.recording:
        found.append("Recording: a real run that ships with PinScope. It was not measured on your machine.")
    return found


def _unfinished(run: Run) -> str:
    """How the run ended, on what its figures rest, and why."""
    if run.status == "running":
        rests = "the figures come from what it has stored so far"
    elif run.observations:
        rests = "the figures come from what it had stored until then"
    else:
        rests = "nothing was measured until then"
    said = f"This run {_UNFINISHED[run.status]}: {rests}."
    return f"{said} Reason: {run.error.rstrip('.')}." if run.error else said


def by_severity(findings: Iterable[Finding]) -> list[Finding]:
    """Findings, the worst first."""
    order = list(SEVERITY_WORDS)
    return sorted(findings, key=lambda finding: order.index(finding.severity))


def quantity_text(quantity: Quantity) -> str:
    """A quantity's value with its spread, or ``n/a`` and why."""
    text = format_value(quantity.value, quantity.unit)
    if quantity.value is None:
        return f"{text}: {quantity.reason}" if quantity.reason else text
    return f"{text} ± {format_share(quantity.spread)}" if quantity.spread is not None else text


def place(run: Run) -> str:
    """Where a run was measured: the GPU's name, the host model, or the machine as it was."""
    return f"{LAB_TITLES[run.lab]}: {run.gpu.name}" if run.gpu else LAB_TITLES[run.lab]


def size_word(run: Run) -> str | None:
    """``quick`` or ``full``; ``None`` for a kind of run that has no size."""
    if not isinstance(run, ExperimentRun):
        return None
    return "quick" if run.quick else "full"


def version_text(environment: Environment) -> str:
    """PinScope's version and commit."""
    commit = environment.pinscope_commit or f"n/a{_because(environment.missing, 'pinscope_commit')}"
    return f"{environment.pinscope_version}, commit {commit}"


def run_facts(run: Run) -> list[Fact]:
    """What was run, where and when."""
    size = size_word(run)
    return [
        ("Run", run.id),
        ("Experiment", f"{run.experiment}, {size}" if size else run.experiment),
        ("Measured on", place(run)),
        ("Status", run.status),
        ("Started", f"{run.created_at:%Y-%m-%d %H:%M:%S %Z}"),
        ("Took", _took(run)),
        ("Observations", f"{run.observations:,}"),
        *([("Budget", _budget_text(run.budget))] if isinstance(run, ExperimentRun) else []),
        ("Measured by PinScope", version_text(run.environment)),
    ]  # fmt: skip


def _budget_text(budget: Budget) -> str:
    return (
        f"{format_bytes(budget.pinned_bytes)} pinned, {format_bytes(budget.pageable_bytes)} pageable, "
        f"{format_bytes(budget.device_bytes)} device memory"
    )


def _took(run: Run) -> str:
    seconds = (run.finished_at - run.created_at).total_seconds() if run.finished_at else None
    if seconds is not None and seconds < 0:
        return "n/a: the clock was set back meanwhile"
    return format_seconds(seconds)


def parameter_facts(document: Document) -> list[Fact]:
    """Parameters by title, with their units."""
    fields: Mapping[str, Any] = document.parameter_schema.get("properties", {})
    found = []
    for name, value in document.run.params.items():
        described = fields.get(name, {})
        found.append((str(described.get("title", name)), _parameter_text(value, str(described.get("unit", "text")))))
    return found


def _parameter_text(value: Any, unit: str) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_parameter_text(item, unit) for item in value)
    if value is None or isinstance(value, str | int | float):
        return format_value(value, unit)
    return str(value)


def environment_facts(environment: Environment) -> list[Fact]:
    """The machine, its software and its limits; what is missing says why."""
    huge, limits = environment.huge_pages, environment.limits
    packages = ", ".join(f"{name} {version}" for name, version in environment.packages.items())
    return [
        ("Host", environment.host),
        ("System", f"{environment.os}, kernel {environment.kernel}, {environment.architecture}"),
        ("Processor", f"{_or_why(environment.cpu, 'cpu', environment.missing)}; {environment.cpus} usable"),
        ("NUMA nodes", _numa(environment)),
        ("Virtualization", _or_why(environment.virtualization, "virtualization", environment.missing, "none seen")),
        ("Page size", format_bytes(environment.page_bytes)),
        ("Transparent huge pages", _or_why(huge.transparent, "transparent", huge.missing)),
        ("Huge page pool", _huge_pool(environment)),
        ("Memory", f"{format_bytes(limits.host_available_bytes)} available of {format_bytes(limits.host_total_bytes)}"),
        ("Control group headroom", _limit(limits.cgroup_headroom_bytes, "cgroup_headroom_bytes", limits.missing)),
        ("Lockable memory", _limit(limits.memlock_headroom_bytes, "memlock_headroom_bytes", limits.missing)),
        ("Shared memory free", _limit(limits.shm_free_bytes, "shm_free_bytes", limits.missing, "n/a")),
        ("Driver", _or_why(environment.driver, "driver", environment.missing)),
        ("CUDA of the driver", _or_why(environment.cuda_driver, "cuda_driver", environment.missing)),
        *_driver_state(environment),
        ("Python", f"{environment.python}; {packages}" if packages else environment.python),
        *(fact for device in environment.devices for fact in _gpu(device)),
    ]  # fmt: skip


def _numa(environment: Environment) -> str:
    if not environment.nodes:
        return _or_why(environment.numa_nodes, "numa_nodes", environment.missing)
    told = (
        f"node {node.number}: processors {node.processors or 'none'}, "
        f"{format_bytes(node.available_bytes)} available of {format_bytes(node.memory_bytes)}"
        for node in environment.nodes
    )
    return f"{len(environment.nodes)}; {'; '.join(told)}"


def _driver_state(environment: Environment) -> list[Fact]:
    """What a run of an older version did not record is left out."""
    switch = {True: "on", False: "off", None: None}
    states: Mapping[str, tuple[str, str | None]] = {
        "Kernel module": ("kernel_module", environment.kernel_module),
        "Multi-Process Service": ("mps", switch[environment.mps]),
        "Confidential computing": ("confidential_computing", switch[environment.confidential_computing]),
    }
    return [
        (name, _or_why(text, field, environment.missing))
        for name, (field, text) in states.items()
        if text is not None or field in environment.missing
    ]


def _gpu(device: Device) -> list[Fact]:
    bus = "; ".join(f"{name}: {text}" for name, text in bus_facts(device))
    return [(f"GPU {device.index}", _device(device)), *([(f"GPU {device.index} on its bus", bus)] if bus else [])]


def _because(missing: Mapping[str, str], name: str) -> str:
    return f" ({missing[name]})" if missing.get(name) else ""


def _or_why(value: object, name: str, missing: Mapping[str, str], unknown: str = "n/a") -> str:
    return f"{unknown}{_because(missing, name)}" if value is None else str(value)


def _limit(value: int | None, name: str, missing: Mapping[str, str], unknown: str = "no limit") -> str:
    """A limit in bytes; where there is none, the reason says more than the word."""
    return missing.get(name, unknown) if value is None else format_bytes(value)


def _huge_pool(environment: Environment) -> str:
    huge = environment.huge_pages
    if huge.hugetlb_total_pages is None:
        return f"n/a{_because(huge.missing, 'hugetlb_total_pages')}"
    free = "n/a" if huge.hugetlb_free_pages is None else f"{huge.hugetlb_free_pages:,}"
    return f"{free} free of {huge.hugetlb_total_pages:,} pages of {format_bytes(huge.hugetlb_page_bytes)}"


def _device(device: Device) -> str:
    memory = f"{format_bytes(device.memory_free_bytes)} free of {format_bytes(device.memory_total_bytes)}"
    parts = [device.name, memory]
    parts.append(f"compute capability {_or_why(device.compute_capability, 'compute_capability', device.missing)}")
    parts.append(f"NUMA node {_or_why(device.numa_node, 'numa_node', device.missing)}")
    parts.append(f"PCI {_or_why(device.pci_bus_id, 'pci_bus_id', device.missing)}")
    parts.append(_link(device.link) if device.link else f"link n/a{_because(device.missing, 'link')}")
    return "; ".join(parts)


def _link(link: Link) -> str:
    """``PCIe Gen5 x16 now, Gen5 x16 at best, at most 57.6 GB/s of payload each way``."""
    limit = f"at most {format_bandwidth(link.limit_bytes_per_second)} of payload each way"
    if link.kind == "nvlink-c2c":
        return f"NVLink-C2C, {limit}"
    now, best = (
        f"Gen{_unknown(generation)} x{_unknown(width)}"
        for generation, width in ((link.generation_now, link.width_now), (link.generation_max, link.width_max))
    )
    return f"PCIe {now} now, {best} at best, {limit}"


def _unknown(value: int | None) -> str:
    return "?" if value is None else str(value)
