"""The machine, its software and its limits, at this moment."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from datetime import UTC, datetime

import pinscope
from pinscope.probes.capabilities import package_versions, source_commit
from pinscope.probes.containers import virtualization
from pinscope.probes.gpu import Nvml, read_devices, with_details
from pinscope.probes.host_memory import read_limits, read_nodes
from pinscope.probes.proc import HERE, Answer, Proc, count_in_both, ranges
from pinscope.records.environment import Device, Environment, HugePages, KernelModule

VERSION_FILE = "/proc/driver/nvidia/version"
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_USUAL_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - where the daemon listens by default (NVIDIA's MPS documentation)
_DAEMON = "nvidia-cuda-mps"
"""Beginning of the names of the control daemon and its servers; the kernel keeps 15 characters of a name."""
_TAINT_FILE = "/sys/module/nvidia/taint"
_ACTIVE_WORD = re.compile(r"\[(\w+)\]")
_PRETTY_NAME = re.compile(r'^PRETTY_NAME=["\']?(?P<name>[^"\'\n]+)', re.MULTILINE)
_KERNEL_MODULE = re.compile(r"Kernel Module.*?\s(?P<version>[0-9]+\.[0-9.]+)\s")
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")


def capture_environment(proc: Proc = HERE, nvml: Nvml | None = None) -> Environment:
    """Read everything about this machine that a run must carry.

    Args:
        proc: where /proc and /sys are read.
        nvml: what tells about GPUs; NVML by default.
    """
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
        cpus=_processors(proc),
        numa_nodes=nodes.then(len).note(missing, "numa_nodes"),
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        huge_pages=read_huge_pages(proc),
        limits=read_limits(proc),
        virtualization=virtualization(proc).note(missing, "virtualization"),
        python=platform.python_version(),
        packages=packages,
        driver=_driver(driver, proc).note(missing, "driver"),
        cuda_driver=cuda.note(missing, "cuda_driver"),
        devices=devices.note(missing, "devices") or (),
        nodes=nodes.note(missing, "nodes") or (),
        kernel_module=kernel_module(proc).note(missing, "kernel_module"),
        mps=multi_process_service(proc).note(missing, "mps"),
        confidential_computing=confidential.note(missing, "confidential_computing"),
        missing=missing,
    )


def capture_devices(proc: Proc = HERE, nvml: Nvml | None = None) -> tuple[Device, ...]:
    """The GPUs alone, at this moment; none where the driver does not show them."""
    with nvml or Nvml() as gpus:
        return _devices(gpus, proc).value or ()


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


def _processors(proc: Proc) -> int:
    """Processors that are online and that this process may run on."""
    allowed = proc.fields("/proc/self/status").text("Cpus_allowed_list").then(ranges, "not a list").value
    online = proc.line("/sys/devices/system/cpu/online").then(ranges, "not a list").value
    if allowed is None:
        return len(os.sched_getaffinity(0))
    return count_in_both(allowed, online or allowed) or len(os.sched_getaffinity(0))


def read_huge_pages(proc: Proc = HERE) -> HugePages:
    """Which huge pages this machine gives, and how many are free."""
    missing: dict[str, str] = {}
    path = "/sys/kernel/mm/transparent_hugepage/enabled"
    meminfo = proc.fields("/proc/meminfo")
    return HugePages(
        transparent=proc.line(path).then(_active_word, f"{path} marks no word").note(missing, "transparent"),
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


def _driver(answer: Answer[str], proc: Proc) -> Answer[str]:
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
