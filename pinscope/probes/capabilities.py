"""What works on this machine; if not, why not and what to do."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass

from pinscope.probes.host_memory import PIN_COUNTERS_ADVICE, pinned_bytes
from pinscope.probes.installation import Problem, cupy_problem, install_command, install_line
from pinscope.probes.proc import HERE, Proc
from pinscope.records.base import Capability
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
    found = []
    for name, title, rule in _CAPABILITIES:
        problem = rule(host)
        reason, advice = (None, None) if problem is None else (problem.reason, problem.advice)
        found.append(Capability(name=name, title=title, works=problem is None, reason=reason, advice=advice))
    return tuple(found)


def _gpu(host: _Host) -> Problem | None:
    if host.environment.devices:
        return None
    on_bus = gpus_on_bus(host.proc)
    if on_bus:
        return Problem(
            f"an NVIDIA GPU is on the PCI bus ({on_bus[0]}), but the driver does not show it",
            "Install NVIDIA's driver, or load its kernel module: sudo modprobe nvidia",
        )
    return Problem(
        "no NVIDIA GPU is visible on this machine",
        "In a container, start it with its GPUs (docker run --gpus all). "
        "Without a GPU, use the host model and the recorded GPU runs.",
    )


def _driver(host: _Host) -> Problem | None:
    if host.environment.driver is not None:
        return None
    advice = "Install NVIDIA's driver, version 580 or newer for CUDA 13." if gpus_on_bus(host.proc) else None
    return Problem(host.environment.missing.get("driver", _UNKNOWN), advice)


def _nvml(host: _Host) -> Problem | None:
    """NVML works if it gives the driver's CUDA version; the driver's own version is in /proc, too."""
    if host.environment.cuda_driver is not None:
        return None
    advice = "In a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility." if host.environment.driver else None
    return Problem(host.environment.missing.get("cuda_driver", _UNKNOWN), advice)


def _cupy(host: _Host) -> Problem | None:
    problem = cupy_problem(host.environment)
    if problem is None and not host.installed("cupy"):
        return Problem(
            "CuPy's package is there, but Python finds no module cupy",
            f"Run: {install_line(host.environment)} --force-reinstall",
        )
    return problem


def _cuda_lab(host: _Host) -> Problem | None:
    """Needs a GPU, its driver and CuPy: the first that is missing is the reason."""
    return _gpu(host) or _driver(host) or _cupy(host)


def _host_lab(host: _Host) -> Problem | None:
    if not sys.platform.startswith("linux"):
        return Problem(f"the host model needs Linux, and this is {sys.platform}", "Run PinScope on Linux.")
    headroom = host.environment.limits.memlock_headroom_bytes
    if headroom is not None and headroom < _HOST_MODEL_LEAST_BYTES:
        return Problem(f"this process may lock only {format_bytes(headroom)} of memory", MEMLOCK_ADVICE)
    return None


MEMLOCK_ADVICE = (
    "Raise the limit on locked memory: 'ulimit -l unlimited' (as root), memlock in /etc/security/limits.conf, "
    "LimitMEMLOCK=infinity in a service, or docker run --ulimit memlock=-1."
)


def _memlock(host: _Host) -> Problem | None:
    headroom = host.environment.limits.memlock_headroom_bytes
    if headroom is None or headroom >= HOST_MODEL_LOCKED_BYTES:
        return None
    return Problem(
        f"this process may lock {format_bytes(headroom)}; "
        f"the host model's quick runs need {format_bytes(HOST_MODEL_LOCKED_BYTES)}",
        MEMLOCK_ADVICE,
    )


def _pin_counters(host: _Host) -> Problem | None:
    pinned = pinned_bytes(host.proc)
    return None if pinned.reason is None else Problem(pinned.reason, PIN_COUNTERS_ADVICE)


def _huge_pages(host: _Host) -> Problem | None:
    pages = host.environment.huge_pages
    if pages.transparent in ("always", "madvise") or pages.hugetlb_total_pages:
        return None
    return Problem(
        pages.missing.get("transparent", "transparent huge pages are off and no huge pages are reserved"),
        "As root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )


def _postgresql(host: _Host) -> Problem | None:
    if host.installed("psycopg"):
        return None
    return Problem(
        "the PostgreSQL driver psycopg is not installed (SQLite needs none)", f"Run: {install_command('postgresql')}"
    )


_CAPABILITIES: tuple[tuple[str, str, Callable[[_Host], Problem | None]], ...] = (
    ("gpu", "NVIDIA GPU", _gpu),
    ("driver", "NVIDIA driver", _driver),
    ("nvml", "GPU readings (NVML)", _nvml),
    ("cupy", "CuPy", _cupy),
    ("cuda-lab", f"Experiments on a {LAB_TITLES['cuda']}", _cuda_lab),
    ("host-lab", f"Experiments in the {LAB_TITLES['host']}", _host_lab),
    ("memlock", "Enough lockable memory for the host model", _memlock),
    ("pin-counters", "Host total of pinned memory (kernel counters)", _pin_counters),
    ("huge-pages", "Huge pages", _huge_pages),
    ("postgresql", "Runs in PostgreSQL", _postgresql),
)


def gpus_on_bus(proc: Proc) -> tuple[str, ...]:
    """PCI addresses of NVIDIA display devices (also compute-only ones), whether or not a driver is there."""
    folder = "/sys/bus/pci/devices"
    return tuple(
        name
        for name in proc.names(folder)
        if proc.line(f"{folder}/{name}/vendor").value == _NVIDIA_VENDOR
        and (proc.line(f"{folder}/{name}/class").value or "").startswith(_DISPLAY_CLASS)
    )
