"""What works on this machine; if not, why not and what to do."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass

from pinscope.probes.cupy_wheel import cupy_problem, install_line
from pinscope.probes.installation import install_command
from pinscope.probes.proc import HERE, Proc
from pinscope.records.capability import Capability
from pinscope.records.environment import Environment
from pinscope.records.run import LAB_TITLES
from pinscope.units import format_bytes

HOST_MODEL_LOCKED_BYTES = 256 * 2**20
"""Locked memory from which the host model's experiments run in their quick size."""
_HOST_MODEL_LEAST_BYTES = 2**20
"""Below this the host model cannot lock even its staging ring and one small buffer."""
_NVIDIA_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"
_UNKNOWN = "the driver does not say"


def installed(module: str) -> bool:
    """True if a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@dataclass(frozen=True)
class _Host:
    """What the rules look at."""

    environment: Environment
    proc: Proc
    installed: Callable[[str], bool]


def capabilities(
    environment: Environment, proc: Proc = HERE, installed: Callable[[str], bool] = installed
) -> tuple[Capability, ...]:
    """Everything that PinScope could use here, whether it works, and if not, why not and what to do.

    Args:
        environment: of this machine.
        proc: where /proc and /sys are read.
        installed: tells whether a Python module can be imported.
    """
    host = _Host(environment, proc, installed)
    return tuple(
        rule(host)
        for rule in (
            _gpu,
            _driver,
            _nvml,
            _cupy,
            _cuda_lab,
            _host_lab,
            _memlock,
            _pin_counters,
            _huge_pages,
            _postgresql,
        )
    )


def _gpu(host: _Host) -> Capability:
    name, title = "gpu", "NVIDIA GPU"
    if host.environment.devices:
        return Capability(name=name, title=title, works=True)
    on_bus = gpus_on_bus(host.proc)
    if on_bus:
        return Capability(
            name=name, title=title, works=False,
            reason=f"an NVIDIA GPU is on the PCI bus ({on_bus[0]}), but the driver does not show it",
            advice="Install NVIDIA's driver, or load its kernel module: sudo modprobe nvidia",
        )  # fmt: skip
    return Capability(
        name=name, title=title, works=False,
        reason="no NVIDIA GPU is visible on this machine",
        advice="In a container, start it with its GPUs (docker run --gpus all). "
        "Without a GPU, use the host model and the recorded GPU runs.",
    )  # fmt: skip


def _driver(host: _Host) -> Capability:
    name, title = "driver", "NVIDIA driver"
    if host.environment.driver is not None:
        return Capability(name=name, title=title, works=True)
    return Capability(
        name=name, title=title, works=False,
        reason=host.environment.missing.get("driver", _UNKNOWN),
        advice="Install NVIDIA's driver, version 580 or newer for CUDA 13." if gpus_on_bus(host.proc) else None,
    )  # fmt: skip


def _nvml(host: _Host) -> Capability:
    """NVML answers if it tells the driver's CUDA version; the driver's own version is in /proc, too."""
    name, title = "nvml", "GPU readings (NVML)"
    if host.environment.cuda_driver is not None:
        return Capability(name=name, title=title, works=True)
    advice = "In a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility." if host.environment.driver else None
    reason = host.environment.missing.get("cuda_driver", _UNKNOWN)
    return Capability(name=name, title=title, works=False, reason=reason, advice=advice)


def _cupy(host: _Host) -> Capability:
    name, title = "cupy", "CuPy"
    problem = cupy_problem(host.environment)
    if problem is not None:
        return Capability(name=name, title=title, works=False, reason=problem.reason, advice=problem.advice)
    if not host.installed("cupy"):
        return Capability(
            name=name, title=title, works=False,
            reason="CuPy's package is there, but Python finds no module cupy",
            advice=f"Run: {install_line(host.environment)} --force-reinstall",
        )  # fmt: skip
    return Capability(name=name, title=title, works=True)


def _cuda_lab(host: _Host) -> Capability:
    """Needs a GPU, its driver and CuPy: the first that is missing is the reason."""
    name, title = "cuda-lab", f"Experiments on a {LAB_TITLES['cuda']}"
    for need in (_gpu(host), _driver(host), _cupy(host)):
        if not need.works:
            return Capability(name=name, title=title, works=False, reason=need.reason, advice=need.advice)
    return Capability(name=name, title=title, works=True)


def _host_lab(host: _Host) -> Capability:
    name, title = "host-lab", f"Experiments in the {LAB_TITLES['host']}"
    if not sys.platform.startswith("linux"):
        return Capability(
            name=name, title=title, works=False,
            reason=f"the host model needs Linux, and this is {sys.platform}", advice="Run PinScope on Linux.",
        )  # fmt: skip
    headroom = host.environment.limits.memlock_headroom_bytes
    if headroom is not None and headroom < _HOST_MODEL_LEAST_BYTES:
        return Capability(
            name=name, title=title, works=False,
            reason=f"this process may lock only {format_bytes(headroom)} of memory", advice=MEMLOCK_ADVICE,
        )  # fmt: skip
    return Capability(name=name, title=title, works=True)


MEMLOCK_ADVICE = (
    "Raise the limit on locked memory: 'ulimit -l unlimited' (as root), memlock in /etc/security/limits.conf, "
    "LimitMEMLOCK=infinity in a service, or docker run --ulimit memlock=-1."
)


def _memlock(host: _Host) -> Capability:
    name, title = "memlock", "Enough lockable memory for the host model"
    headroom = host.environment.limits.memlock_headroom_bytes
    if headroom is None or headroom >= HOST_MODEL_LOCKED_BYTES:
        return Capability(name=name, title=title, works=True)
    return Capability(
        name=name, title=title, works=False,
        reason=f"this process may lock {format_bytes(headroom)}; "
        f"the host model's quick runs want {format_bytes(HOST_MODEL_LOCKED_BYTES)}",
        advice=MEMLOCK_ADVICE,
    )  # fmt: skip


def _pin_counters(host: _Host) -> Capability:
    name, title = "pin-counters", "Host total of pinned memory (kernel counters)"
    counters = host.proc.fields("/proc/vmstat")
    for key in ("nr_foll_pin_acquired", "nr_foll_pin_released"):
        answer = counters.amount(key)
        if answer.reason is not None:
            return Capability(
                name=name, title=title, works=False, reason=answer.reason,
                advice="Use Linux 5.7 or newer; sandboxed kernels such as gVisor have no such counters.",
            )  # fmt: skip
    return Capability(name=name, title=title, works=True)


def _huge_pages(host: _Host) -> Capability:
    name, title = "huge-pages", "Huge pages"
    pages = host.environment.huge_pages
    if pages.transparent in ("always", "madvise") or pages.hugetlb_total_pages:
        return Capability(name=name, title=title, works=True)
    reason = pages.missing.get("transparent", "transparent huge pages are off and no huge pages are reserved")
    return Capability(
        name=name, title=title, works=False, reason=reason,
        advice="As root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )  # fmt: skip


def _postgresql(host: _Host) -> Capability:
    name, title = "postgresql", "Runs in PostgreSQL"
    if host.installed("psycopg"):
        return Capability(name=name, title=title, works=True)
    return Capability(
        name=name, title=title, works=False,
        reason="the PostgreSQL driver psycopg is not installed (SQLite needs none)",
        advice=f"Run: {install_command('postgresql')}",
    )  # fmt: skip


def gpus_on_bus(proc: Proc) -> tuple[str, ...]:
    """PCI addresses of NVIDIA display devices (also compute-only ones), whether or not a driver is there."""
    folder = "/sys/bus/pci/devices"
    return tuple(
        name
        for name in proc.names(folder)
        if proc.line(f"{folder}/{name}/vendor").value == _NVIDIA_VENDOR
        and (proc.line(f"{folder}/{name}/class").value or "").startswith(_DISPLAY_CLASS)
    )
