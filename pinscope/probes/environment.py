"""The machine, its software and its limits at this moment; what works on it, and if not, why not and what to do."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Literal

import pinscope
from pinscope.probes.containers import virtualization
from pinscope.probes.gpu import Nvml, read_devices, with_details
from pinscope.probes.host_memory import PIN_COUNTERS_ADVICE, pinned_bytes, read_limits, read_nodes
from pinscope.probes.proc import HERE, Answer, Proc
from pinscope.probes.process import ending_with_this
from pinscope.records.base import Capability
from pinscope.records.environment import Device, Environment, HugePages, KernelModule
from pinscope.records.run import LAB_TITLES
from pinscope.units import format_bytes

Extra = Literal["cuda12", "cuda13", "dashboard", "fleet", "postgresql", "torch", "trace12", "trace13"]
_ROOT = Path(pinscope.__file__).resolve().parent.parent


def install_command(extra: Extra, root: Path = _ROOT) -> str:
    """Installs what the extra names: from the clone that PinScope runs from, else the packages by their own names."""
    if (root / "pyproject.toml").is_file():
        return f"{_pip('install')} -e {shlex.quote(f'{root}[{extra}]')}"
    required = (line.partition(";") for line in metadata.requires("pinscope") or ())
    return f"{_pip('install')} {shlex.join(package.strip() for package, _, when in required if extra in when)}"


def needed_extra(module: str) -> Extra | None:
    """The extra that brings a module which is not installed here; ``None``: none of PinScope's."""
    package = module.partition(".")[0]
    ours = ("google", "jinja2", "markupsafe", "pandas", "plotly", "starlette", "streamlit")  # google: protobuf
    if package in ("cryptography", "dask", "distributed"):
        return "fleet"
    return "dashboard" if package in ours else None


def uninstall_command(*packages: str) -> str:
    """Removes packages."""
    return f"{_pip('uninstall')} {shlex.join(packages)}"


def _pip(what: str) -> str:
    """The ``pip`` of a shell may be another Python's. Environments that uv makes have none."""
    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip") is None:
        return f"uv pip {what} --python {python}"
    return f"{python} -m pip {what}"


COMMIT_VARIABLE = "PINSCOPE_COMMIT"
"""Environment variable that names the commit where the source travels without its repository (container images)."""

_PACKAGES = (
    "numpy",
    "psutil",
    "nvidia-ml-py",
    "cupy",
    "cupy-cuda11x",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "cupy-cuda14x",
    "cuda-toolkit",
    "nvidia-cuda-runtime",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-nvrtc-cu12",
    "torch",
    "numba",
    "nvidia-cuda-cupti",
    "nvidia-cuda-cupti-cu12",
)
_COMMIT = re.compile(r"[0-9a-f]{7,64}(-dirty)?")
_GIT_SECONDS = 10


def package_versions() -> dict[str, str]:
    """Versions of the installed packages that shape a measurement, by distribution name."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def source_commit(checkout: Path = _ROOT, variables: Mapping[str, str] = os.environ) -> Answer[str]:
    """The commit that this source is, with ``-dirty`` if tracked files were changed since."""
    given = variables.get(COMMIT_VARIABLE)
    if given is not None:
        return Answer(given) if _COMMIT.fullmatch(given) else Answer.missing(f"{COMMIT_VARIABLE} is no commit")
    if not (checkout / ".git").exists():
        return Answer.missing("PinScope does not run from a git checkout")
    try:
        head = _git(checkout, "rev-parse", "HEAD")
        changed = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer.missing(f"git could not be asked: {error}")
    commit = head.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")
    if head.returncode or changed.returncode or not _COMMIT.fullmatch(commit):
        said = (head.stderr or changed.stderr).strip()[:200]
        return Answer.missing(f"git does not name the commit: {said or commit[:200]}")
    return Answer(commit)


def _git(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What git answers, by one process: a child of git's own would not end with this one.

    Without locks: a probe must not stand in the way of somebody's commit.
    """
    return subprocess.run(
        ["git", "--no-optional-locks", *arguments],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=_GIT_SECONDS,
        check=False,
        preexec_fn=ending_with_this(),
    )


_WHEEL = re.compile(r"cupy-cuda(?P<major>[0-9]+)x")
_NEWEST, _OLDEST = 13, 12
"""CUDA major versions that PinScope has an extra for."""
_DRIVERS = {12: "525", 13: "580"}
"""First driver of each CUDA major version (CUDA Compatibility, "Minor Version Compatibility", table 1)."""
_FIRST_GPU_OF_13 = (7, 5)
"""CUDA 13 dropped GPUs of lower compute capability (CUDA 13.0 release notes): Maxwell, Pascal, Volta."""


@dataclass(frozen=True)
class Problem:
    """Why something cannot be used, and what to do."""

    reason: str
    advice: str | None


def cuda_major(environment: Environment) -> int | None:
    """Major version of the newest CUDA that the driver supports; ``None`` without a driver."""
    head = (environment.cuda_driver or "").partition(".")[0]
    return int(head) if head.isascii() and head.isdigit() else None


def wheels(environment: Environment) -> dict[str, int | None]:
    """Installed CuPy distributions and the CUDA major version each is built for (``None``: built from source)."""
    majors: dict[str, int | None] = {}
    for name in environment.packages:
        match = _WHEEL.fullmatch(name)
        if match is not None or name == "cupy":
            majors[name] = int(match["major"]) if match is not None else None
    return majors


def install_line(environment: Environment) -> str:
    """The command that installs the CuPy which fits driver and GPUs (the newest where there is no driver yet)."""
    driver = cuda_major(environment)
    newest = _NEWEST if driver is None else max(_OLDEST, min(_NEWEST, driver))
    return install_command("cuda12" if newest == _OLDEST or _too_old_for_13(environment) else "cuda13")


def _too_old_for_13(environment: Environment) -> list[str]:
    """Names of the GPUs that CUDA 13 no longer supports."""
    names = []
    for device in environment.devices:
        major, _, minor = (device.compute_capability or "").partition(".")
        if major.isdigit() and minor.isdigit() and (int(major), int(minor)) < _FIRST_GPU_OF_13:
            names.append(device.name)
    return names


def cupy_problem(environment: Environment) -> Problem | None:
    """What keeps CuPy from working here, as far as its packages and the driver tell; ``None`` if nothing does."""
    driver = cuda_major(environment)
    installed = wheels(environment)
    install = install_line(environment)
    if driver is not None and driver < _OLDEST:
        return Problem(
            f"the driver {environment.driver or ''} supports CUDA {environment.cuda_driver}; "
            f"CuPy needs CUDA {_OLDEST} or newer",
            f"Install driver {_DRIVERS[_NEWEST]} or newer, then: {install_command('cuda13')}",
        )
    if not installed:
        return Problem("CuPy is not installed", f"Run: {install}")
    remove = uninstall_command(*sorted(installed))
    if len(installed) > 1:
        return Problem(
            f"several CuPy packages are installed ({', '.join(sorted(installed))}) and overwrite one another",
            f"Run: {remove} && {install}",
        )
    name, major = next(iter(installed.items()))
    if driver is not None and major is not None and major > driver:
        return Problem(
            f"{name} needs CUDA {major}, but driver {environment.driver or ''} supports CUDA {environment.cuda_driver}",
            f"Run: {remove} && {install} – or install driver {_DRIVERS.get(major, 'of the newest branch')} or newer",
        )
    if major == _NEWEST and (old := _too_old_for_13(environment)):
        return Problem(f"{name} is for CUDA 13, which no longer supports {old[0]}", f"Run: {remove} && {install}")
    return None


HOST_MODEL_LOCKED_BYTES = 256 * 2**20
"""Locked memory from which the host model's experiments run in their quick size."""
_HOST_MODEL_LEAST_BYTES = 2**20
"""Below this the host model cannot lock even its staging ring and one small buffer."""
_NVIDIA_VENDOR, _DISPLAY_CLASS = "0x10de", "0x03"
_UNKNOWN = "the driver does not say"


def installed(module: str) -> bool:
    """True if a module can be imported, without importing it."""
    return importlib.util.find_spec(module) is not None


@dataclass(frozen=True)
class _Host:
    """What the rules look at."""

    environment: Environment
    proc: Proc
    installed: Callable[[str], bool]


def capabilities(
    environment: Environment, proc: Proc = HERE, installed: Callable[[str], bool] = installed
) -> tuple[Capability, ...]:
    """Everything that PinScope could use here, whether it works, and if not, why not and what to do."""
    host = _Host(environment, proc, installed)
    results = []
    for name, title, rule in _CAPABILITIES:
        problem = rule(host)
        reason, advice = (None, None) if problem is None else (problem.reason, problem.advice)
        results.append(Capability(name=name, title=title, works=problem is None, reason=reason, advice=advice))
    return tuple(results)


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


def _host_lab(host: _Host) -> Problem | None:
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
    ("cuda-lab", f"Experiments on a {LAB_TITLES['cuda']}", lambda host: _gpu(host) or _driver(host) or _cupy(host)),
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


VERSION_FILE = "/proc/driver/nvidia/version"
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_USUAL_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - where the daemon listens by default (NVIDIA's MPS documentation)
_DAEMON = "nvidia-cuda-mps"
"""Beginning of the names of the control daemon and its servers; the kernel keeps 15 characters of a name."""
_TAINT_FILE = "/sys/module/nvidia/taint"
_ACTIVE_WORD = re.compile(r"\[([\w+]+)\]")
_PRETTY_NAME = re.compile(r'^PRETTY_NAME=["\']?(?P<name>[^"\'\n]+)', re.MULTILINE)
_KERNEL_MODULE = re.compile(r"Kernel Module.*?\s(?P<version>[0-9]+\.[0-9.]+)\s")
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")


def capture_environment(proc: Proc = HERE, nvml: Nvml | None = None) -> Environment:
    """Read everything about this machine that a run must carry."""
    missing: dict[str, str] = {}
    with nvml or Nvml() as gpus:
        devices = _devices(gpus, proc)
        driver = gpus.driver_version()
        cuda = gpus.cuda_version().then(lambda pair: f"{pair[0]}.{pair[1]}")
        confidential = gpus.confidential_computing()
    nodes = read_nodes(proc)
    packages = package_versions()
    if not any(name.startswith("cupy") for name in packages):
        missing["packages.cupy"] = "CuPy is not installed"
    uname, system = os.uname(), _PRETTY_NAME.search(proc.read("/etc/os-release").value or "")
    cpu = proc.fields("/proc/cpuinfo").text("model name")  # on x86; Arm kernels give numbers only
    return Environment(
        captured_at=datetime.now(UTC),
        pinscope_version=pinscope.__version__,
        pinscope_commit=source_commit().note(missing, "pinscope_commit"),
        host=_host(proc),
        machine_id=machine_id(proc),
        os=system["name"].strip() if system is not None else platform.system(),
        kernel=proc.line("/proc/sys/kernel/osrelease").value or uname.release,
        architecture=uname.machine,
        cpu=cpu.then(lambda text: text or None, "it is empty").note(missing, "cpu"),
        cpus=len(os.sched_getaffinity(0)),
        numa_nodes=nodes.then(len).note(missing, "numa_nodes"),
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        huge_pages=read_huge_pages(proc),
        limits=read_limits(proc),
        virtualization=virtualization(proc).note(missing, "virtualization"),
        python=platform.python_version(),
        packages=packages,
        driver=_driver_version(driver, proc).note(missing, "driver"),
        cuda_driver=cuda.note(missing, "cuda_driver"),
        devices=devices.note(missing, "devices") or (),
        nodes=nodes.note(missing, "nodes") or (),
        kernel_module=kernel_module(proc).note(missing, "kernel_module"),
        mps=multi_process_service(proc).note(missing, "mps"),
        confidential_computing=confidential.note(missing, "confidential_computing"),
        missing=missing,
    )


def capture_devices() -> tuple[Device, ...]:
    """The GPUs alone, at this moment; none where the driver does not show them."""
    with Nvml() as gpus:
        return _devices(gpus, HERE).value or ()


def _devices(gpus: Nvml, proc: Proc) -> Answer[tuple[Device, ...]]:
    return read_devices(gpus, proc).then(
        lambda devices: tuple(with_details(gpus, proc, device) for device in devices), "the driver shows no GPU"
    )


def machine_id(proc: Proc = HERE) -> str:
    """16 hexadecimal digits that stay the same on one machine and tell nothing about it.

    From /etc/machine-id; where that is not set (many containers), from the boot, else from the host name.
    machine-id(5) asks for a keyed hash, as the id itself is confidential.
    """
    identity = proc.line("/etc/machine-id").then(lambda text: text if _MACHINE_ID.fullmatch(text) else None, "not set")
    source = identity.value or proc.line("/proc/sys/kernel/random/boot_id").value or _host(proc)
    return hashlib.blake2b(source.encode(), key=b"pinscope", digest_size=8).hexdigest()


def _host(proc: Proc) -> str:
    return proc.line("/proc/sys/kernel/hostname").value or platform.node() or "unknown"


def read_huge_pages(proc: Proc = HERE) -> HugePages:
    """Which huge pages this machine gives, and how many are free."""
    missing: dict[str, str] = {}
    folder = "/sys/kernel/mm/transparent_hugepage"
    meminfo = proc.fields("/proc/meminfo")

    def active(setting: str, field: str) -> str | None:
        path = f"{folder}/{setting}"
        return proc.line(path).then(_active_word, f"{path} marks no word").note(missing, field)

    return HugePages(
        transparent=active("enabled", "transparent"),
        defrag=active("defrag", "defrag"),
        hugetlb_page_bytes=meminfo.amount("Hugepagesize").note(missing, "hugetlb_page_bytes"),
        hugetlb_total_pages=meminfo.amount("HugePages_Total").note(missing, "hugetlb_total_pages"),
        hugetlb_free_pages=meminfo.amount("HugePages_Free").note(missing, "hugetlb_free_pages"),
        missing=missing,
    )


def read_hugetlb_pool(page_bytes: int, proc: Proc = HERE) -> HugePages:
    """The reserved huge pages of one size; of transparent ones nothing is read."""
    missing = {"transparent": "not read"}
    folder = f"/sys/kernel/mm/hugepages/hugepages-{page_bytes // 1024}kB"

    return HugePages(
        transparent=None,
        hugetlb_page_bytes=page_bytes,
        hugetlb_total_pages=proc.number(f"{folder}/nr_hugepages").note(missing, "hugetlb_total_pages"),
        hugetlb_free_pages=proc.number(f"{folder}/free_hugepages").note(missing, "hugetlb_free_pages"),
        missing=missing,
    )


def _active_word(text: str) -> str | None:
    match = _ACTIVE_WORD.search(text)
    return match[1] if match is not None else None


def _driver_version(answer: Answer[str], proc: Proc) -> Answer[str]:
    """NVML's version; a container without NVML still shows that of the kernel module."""
    if answer.value is not None:
        return answer
    match = _KERNEL_MODULE.search(proc.read(VERSION_FILE).value or "")
    return Answer(match["version"]) if match is not None else answer


def kernel_module(proc: Proc) -> Answer[KernelModule]:
    """The open kernel module names itself so; else the licence decides: a proprietary module taints the kernel (P)."""
    version = proc.read(VERSION_FILE)
    if "Open Kernel Module" in (version.value or ""):
        return Answer("open")
    taint = proc.line(_TAINT_FILE)
    if taint.value is not None:
        return Answer("proprietary" if "P" in taint.value else "open")
    return Answer("proprietary") if version.value else Answer(None, version.reason)


def multi_process_service(proc: Proc, variables: Mapping[str, str] = os.environ) -> Answer[bool]:
    """Whether a CUDA program that is started here would share a context with others through MPS.

    It would if the control daemon's pipe is there and the daemon lives. In a container of its own the daemon cannot
    be seen: then a pipe alone says nothing.
    """
    folder = variables.get(PIPE_VARIABLE) or _USUAL_PIPES
    if not proc.exists(f"{folder}/control"):
        return Answer(False)
    return proc.pids().then(
        lambda pids: any((proc.line(f"/proc/{pid}/comm").value or "").startswith(_DAEMON) for pid in pids) or None,
        f"{folder}/control is there, but its daemon cannot be seen; it may have ended",
    )
