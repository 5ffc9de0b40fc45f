"""Is this machine as fast as it ought to be? Rules over an environment, each with its numbers and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pinscope.analysis.models import link_below_best, link_evidence, packet_words
from pinscope.analysis.rules import is_well_below_host
from pinscope.probes.containers import WSL2
from pinscope.probes.environment import HOST_MODEL_LOCKED_BYTES, MEMLOCK_ADVICE, cupy_problem, wheels
from pinscope.records.environment import Environment
from pinscope.records.run import Finding, critical, finding, good, known, note, quantity, warning
from pinscope.units import format_bandwidth, format_bytes


def machine_findings(environment: Environment) -> tuple[Finding, ...]:
    """What the environment alone says about pinned memory and copies on this machine."""
    return tuple(finding for rule in _RULES for finding in rule(environment))


def _no_gpu(environment: Environment) -> Iterator[Finding]:
    if environment.devices:
        return
    reason = environment.missing.get("devices", "no GPU was found")
    yield note(
        "no-gpu",
        quantity("GPUs", 0, "count"),
        title="No GPU here: nothing about one can be measured",
        detail=f"GPU experiments cannot run: {reason}.",
        advice="Still at work: the host model (pinscope run EXPERIMENT --lab host), the recorded GPU runs, "
        "imported runs, charts and reports.",
    )


def _link(environment: Environment) -> Iterator[Finding]:
    """Whether the GPU is busy is not asked here."""
    for device in environment.devices:
        link = device.link
        if link is None or link.kind != "pcie":
            continue
        if finding := link_below_best(device.index, link, busy=None):
            yield finding
        elif None not in (link.generation_now, link.width_now, link.generation_max, link.width_max):
            yield good(
                "link-at-best",
                *link_evidence(link),
                title=f"GPU {device.index}: the PCIe link is at its best",
                detail=f"Generation {link.generation_max} × {link.width_max} lanes carry at most "
                f"{format_bandwidth(link.limit_bytes_per_second)} one way{packet_words(link)}.",
            )


def _driver(environment: Environment) -> Iterator[Finding]:
    """Only where a CuPy is installed: a missing one is no finding about the machine."""
    problem = cupy_problem(environment)
    if problem is None or environment.cuda_driver is None or not wheels(environment):
        return
    yield critical(
        "cupy-does-not-fit-driver",
        known("Driver", environment, "driver", "text"),
        quantity("CUDA of the driver", environment.cuda_driver, "text"),
        quantity("CuPy", ", ".join(sorted(wheels(environment))), "text"),
        title="The installed CuPy and the NVIDIA driver do not fit",
        detail=f"GPU experiments cannot run: {problem.reason}.",
        advice=problem.advice or "",
    )


def _transparent_huge_pages(environment: Environment) -> Iterator[Finding]:
    if environment.huge_pages.transparent != "never":
        return
    yield note(
        "thp-off",
        quantity("Transparent huge pages", "never", "text"),
        title="Transparent huge pages are off",
        detail=f"Ordinary memory is then touched and pinned in pages of {format_bytes(environment.page_bytes)}, one "
        "page fault each. The experiment pinning_strategy measures what huge pages gain on a host that has them.",
        advice="As root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled. "
        "Programs that ask for huge pages then get them.",
    )


def _compaction(environment: Environment) -> Iterator[Finding]:
    if environment.huge_pages.defrag != "always":
        return
    yield note(
        "thp-defrag-stalls",
        quantity("Compaction for huge pages", "always", "text"),
        title="Page faults wait while memory is compacted for huge pages",
        detail="On a host whose memory is fragmented, touching much memory, and so pinning it, then takes longer.",
        advice="As root: echo defer+madvise > /sys/kernel/mm/transparent_hugepage/defrag. Only programs that ask for "
        "huge pages then wait for them.",
    )


def _locked_memory(environment: Environment) -> Iterator[Finding]:
    headroom = environment.limits.memlock_headroom_bytes
    if headroom is None or headroom >= HOST_MODEL_LOCKED_BYTES:
        return
    yield finding(
        "note" if environment.devices else "warning",
        "memlock-low",
        quantity("May still be locked", headroom, "bytes"),
        quantity("Wanted by the host model's quick runs", HOST_MODEL_LOCKED_BYTES, "bytes"),
        title=f"Only {format_bytes(headroom)} of memory may be locked",
        detail="The host model locks its pinned buffers with mlock, which RLIMIT_MEMLOCK bounds. "
        "CUDA pins through its driver and is not bound by it.",
        advice=MEMLOCK_ADVICE,
    )


def _control_group(environment: Environment) -> Iterator[Finding]:
    limits = environment.limits
    limit, headroom = limits.cgroup_limit_bytes, limits.cgroup_headroom_bytes
    if limit is None or headroom is None:
        return
    if not is_well_below_host(limit, headroom, limits.host_total_bytes, limits.host_available_bytes):
        return
    yield note(
        "cgroup-below-host",
        quantity("Control group limit", limit, "bytes"),
        quantity("Left in the control group", headroom, "bytes"),
        quantity("Host memory", limits.host_total_bytes, "bytes"),
        quantity("Host memory available", limits.host_available_bytes, "bytes"),
        title=f"The control group leaves {format_bytes(headroom)} "
        f"of the host's {format_bytes(limits.host_available_bytes)}",
        detail="Pinned memory is charged to the control group of the container or service. Programs that size "
        "their buffers from the host's memory are killed when they pass its limit.",
        advice="Size pinned buffers by the smaller figure, or raise the limit (docker run --memory, "
        "resources.limits.memory, MemoryMax=).",
    )


def _numa(environment: Environment) -> Iterator[Finding]:
    nodes = environment.numa_nodes
    if nodes is None or nodes < 2 or not environment.devices:
        return
    near = [device.numa_node for device in environment.devices if device.numa_node is not None]
    command = (
        f"numactl --cpunodebind={near[0]} --membind={near[0]} COMMAND" if near else "numactl --membind=NODE COMMAND"
    )
    yield note(
        "several-numa-nodes",
        quantity("NUMA nodes", nodes, "count"),
        title=f"{nodes} NUMA nodes: memory near the GPU copies best",
        detail="Memory on another node crosses the link between processors on its way to the GPU.",
        advice=f"Allocate and pin on the GPU's node, for example: {command}",
    )


def _wsl(environment: Environment) -> Iterator[Finding]:
    if environment.virtualization is None or WSL2 not in environment.virtualization:
        return
    yield warning(
        "wsl-caps-pinned-memory",
        quantity("Virtualization", environment.virtualization, "text"),
        quantity("Host memory", environment.limits.host_total_bytes, "bytes"),
        title="WSL2 allows far less pinned memory than this machine has",
        detail="Windows bounds how much memory a WSL2 guest may pin; "
        "pinning fails long before the guest's memory is used up.",
        advice="Keep pinned buffers small and reuse them, or measure on native Linux.",
    )


_RULES: tuple[Callable[[Environment], Iterator[Finding]], ...] = (
    _no_gpu,
    _driver,
    _link,
    _numa,
    _control_group,
    _locked_memory,
    _transparent_huge_pages,
    _compaction,
    _wsl,
)
