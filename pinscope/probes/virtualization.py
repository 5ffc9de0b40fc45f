"""Whether this machine is a container, WSL or a virtual machine, as far as it shows."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pinscope.probes.answer import Answer
from pinscope.probes.cgroup import read_mounts
from pinscope.probes.privileges import SYS_PTRACE, has_capability, in_initial_user_namespace
from pinscope.probes.proc import Proc

WSL2 = "WSL2"

_CONTAINER_FILES: Mapping[str, str] = {"/.dockerenv": "Docker container", "/run/.containerenv": "Podman container"}
_CONTAINER_GROUPS: Mapping[str, str] = {
    "kubepods": "Kubernetes pod",
    "docker": "Docker container",
    "libpod": "Podman container",
    "containerd": "containerd container",
    "lxc": "LXC container",
}
_VENDORS: Mapping[str, str] = {
    "qemu": "QEMU/KVM",
    "kvm": "QEMU/KVM",
    "amazon ec2": "Amazon EC2",
    "google": "Google Compute Engine",
    "microsoft corporation": "Hyper-V",
    "vmware": "VMware",
    "innotek": "VirtualBox",
    "xen": "Xen",
    "openstack": "OpenStack",
}
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
_HIDEPID = re.compile(r"\bhidepid=(?!0|off)")
_GROUP_WORD = re.compile(r"[a-z]+")


def virtualization(proc: Proc) -> Answer[str]:
    """Names of the container and the hypervisor, such as ``Docker container, QEMU/KVM``."""
    wsl = wsl_version(proc)
    names = [name for name in (_container(proc), wsl or hypervisor(proc)) if name]
    if names:
        return Answer(", ".join(names))
    return Answer.missing("no container and no hypervisor shows itself")


def wsl_version(proc: Proc) -> str | None:
    """``WSL1`` or ``WSL2`` in Windows' subsystem for Linux. One short file tells: a live view asks each second.

    WSL names Microsoft in its kernel release; version 1, which is no Linux kernel, with a capital letter.
    """
    release = proc.line("/proc/sys/kernel/osrelease").value or ""
    if "microsoft" in release:
        return WSL2
    return "WSL1" if "Microsoft" in release else None


def has_own_pids(proc: Proc) -> bool:
    """True in a container whose processes have numbers of their own, so that those outside cannot be seen.

    The kernel gives the initial namespaces fixed inode numbers (include/uapi/linux/nsfs.h, PROC_PID_INIT_INO before).
    """
    namespace = proc.link("/proc/self/ns/pid").value
    return namespace is not None and namespace != f"pid:[{_INITIAL_PID_NAMESPACE}]"


def hides_processes(proc: Proc) -> bool:
    """True if /proc is mounted so that this process sees only those of its own user (hidepid in proc(5))."""
    shown = (mount.options for mount in read_mounts(proc).value or () if (mount.kind, mount.point) == ("proc", "/proc"))
    # Whom it may trace, it sees.
    return _HIDEPID.search(next(shown, "")) is not None and not (
        has_capability(SYS_PTRACE, proc) and in_initial_user_namespace(proc)
    )


def _container(proc: Proc) -> str | None:
    for path, name in _CONTAINER_FILES.items():
        if proc.exists(path):
            return name
    words = set(_GROUP_WORD.findall((proc.read("/proc/1/cgroup").value or "").lower()))
    for word, name in _CONTAINER_GROUPS.items():
        if word in words:
            return name
    # systemd-nspawn, LXC and others leave their name here (Container Interface of systemd).
    manager = proc.line("/run/systemd/container").value
    return f"{manager[:40]} container" if manager else None


def hypervisor(proc: Proc) -> str | None:
    """The name of the hypervisor below, as far as it shows.

    x86 processors tell by a flag that there is one; elsewhere only the firmware's names do.
    """
    flags = proc.fields("/proc/cpuinfo").text("flags").value
    if flags is not None and "hypervisor" not in flags.split():
        return None
    folder = "/sys/class/dmi/id"
    vendor = (proc.line(f"{folder}/sys_vendor").value or "").lower()
    product = (proc.line(f"{folder}/product_name").value or "").lower()
    # Cloud vendors put their name on bare metal, too; Microsoft on Surface computers.
    if ".metal" in product or ("microsoft" in vendor and "virtual" not in product):
        return None
    for word, name in _VENDORS.items():
        if word in vendor or word in product:
            return name
    return "virtual machine" if flags is not None else None
