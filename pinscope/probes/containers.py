"""Control groups and their memory, and whether this machine is a container, WSL or a virtual machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from pinscope.probes.proc import HERE, SYS_PTRACE, Answer, Proc, has_capability, in_initial_user_namespace, whole

IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"})
"""File systems whose files are memory themselves: the kernel cannot drop their pages."""

_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of a mountinfo."""

    kind: str
    """Type of the file system, such as ``ext4``."""
    root: str
    """The part of the file system that is mounted."""
    point: str
    options: str
    """Those of the file system itself, not of this mount."""


def read_mounts(proc: Proc) -> Answer[tuple[Mount, ...]]:
    """All mounts, in their order; lines that make no sense are passed over."""
    return proc.read("/proc/self/mountinfo").then(lambda text: tuple(_mounts(text)))


def _mounts(text: str) -> Iterator[Mount]:
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        front, back = head.split(" "), tail.split(" ")
        if len(front) > 4 and len(back) > 2:
            yield Mount(back[0], _unescaped(front[3]), _unescaped(front[4]), back[2])


def _unescaped(text: str) -> str:
    """mountinfo writes blanks and backslashes in paths as three octal digits."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def file_system(folder: str, proc: Proc = HERE) -> Answer[str]:
    """The type of the file system that ``folder`` is on."""
    path = PurePosixPath(Path(folder).resolve())

    def nearest(mounts: tuple[Mount, ...]) -> str | None:
        above = [mount for mount in mounts if path.is_relative_to(mount.point)]
        # Of several mounts at one place the last lies on top.
        return max(reversed(above), key=lambda mount: len(PurePosixPath(mount.point).parts)).kind if above else None

    return read_mounts(proc).then(nearest, f"no mount holds {folder}")


UNLIMITED = 2**62
"""Version 1 writes "no limit" as the largest page-aligned 63-bit number; nothing above this is a limit."""

NO_LIMIT = "no control group limits the memory of this process"


@dataclass(frozen=True)
class Headroom:
    """What one group leaves: ``bytes`` may still be taken below ``limit_bytes``."""

    bytes: int
    limit_bytes: int


@dataclass(frozen=True)
class _Files:
    """File names of one version."""

    limits: tuple[str, ...]
    usage: str
    reclaimable: str


_VERSIONS = {
    "cgroup": _Files(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    # Above memory.high the kernel throttles: pinned pages cannot be reclaimed, so the process would crawl.
    "cgroup2": _Files(("memory.max", "memory.high"), "memory.current", "inactive_file"),
}


def memory_headroom(proc: Proc) -> Answer[Headroom]:
    """The tightest headroom on the way from this process's groups to the root."""
    return GroupHeadrooms(proc).of("self")


def memory_groups(
    proc: Proc, pid: int | Literal["self"] = "self", mounts: Answer[tuple[Mount, ...]] | None = None
) -> Answer[tuple[tuple[str, str], ...]]:
    """(file system type, folder) of a process's own group that may limit memory, then of each above it."""
    memberships, mounts = proc.read(f"/proc/{pid}/cgroup"), mounts or read_mounts(proc)
    if memberships.value is None or mounts.value is None:
        return Answer.missing(f"control groups are unknown: {memberships.reason or mounts.reason}")
    if pid != "self" and "/.." in memberships.value:
        return Answer.missing("its control group is outside of what can be seen from here")
    return Answer(tuple(_groups(memberships.value, mounts.value)))


class GroupHeadrooms:
    """What control groups leave several processes: each group is read once, so make a new one for each reading."""

    def __init__(self, proc: Proc) -> None:
        self._proc, self._mounts = proc, read_mounts(proc)
        self._known: dict[tuple[tuple[str, str], ...], Answer[Headroom]] = {}

    def of(self, pid: int | Literal["self"]) -> Answer[Headroom]:
        """The tightest headroom on the way from a process's groups to the root."""
        return memory_groups(self._proc, pid, self._mounts).ask(self._tightest)

    def _tightest(self, groups: tuple[tuple[str, str], ...]) -> Answer[Headroom]:
        if groups not in self._known:
            answers = [_headroom(self._proc, *group) for group in groups]
            levels = [answer.value for answer in answers if answer.value is not None]
            reasons = [answer.reason for answer in answers if answer.reason not in (None, NO_LIMIT)]
            tightest = min(levels, key=lambda level: (level.bytes, level.limit_bytes), default=None)
            self._known[groups] = Answer(tightest, None if tightest else (*reasons, NO_LIMIT)[0])
        return self._known[groups]


def memory_paths(memberships: str) -> dict[str, str]:
    """File system type of each hierarchy that may limit memory → a process's group in it."""
    paths = {}
    for line in memberships.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path and number == "0":
            paths["cgroup2"] = path
        elif path and "memory" in controllers.split(","):
            paths["cgroup"] = path
    return paths


def _groups(memberships: str, mounts: Sequence[Mount]) -> Iterator[tuple[str, str]]:
    """(file system type, folder) of each group on the way up, for every hierarchy that may limit memory."""
    paths = memory_paths(memberships)
    for mount in filter(_limits_memory, mounts):
        if mount.kind in paths:
            for folder in _chain(paths[mount.kind], mount):
                yield mount.kind, folder


def _limits_memory(mount: Mount) -> bool:
    return mount.kind == "cgroup2" or (mount.kind == "cgroup" and "memory" in mount.options.split(","))


def _chain(path: str, mount: Mount) -> Iterator[str]:
    """Folders from the process's group up to the mount point.

    A mount may show only a part of the hierarchy. A group outside that part – ``/..`` in a namespace – cannot be seen;
    then the mount point is the nearest group that can.
    """
    parts, root = _parts(path), _parts(mount.root)
    visible = ".." not in parts and parts[: len(root)] == root
    inside = parts[len(root) :] if visible else []
    for depth in range(len(inside), -1, -1):
        yield "/".join((mount.point.rstrip("/"), *inside[:depth]))


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in {"", "."}]


def _headroom(proc: Proc, kind: str, folder: str) -> Answer[Headroom]:
    """What one group leaves; missing with ``NO_LIMIT`` if it sets no limit."""
    files = _VERSIONS[kind]
    limits = []
    for name in files.limits:
        path = f"{folder}/{name}"
        if not proc.exists(path):
            continue  # The root of version 2 has none.
        text = proc.line(path)
        limit = whole(text.value or "")
        if limit is not None and limit < UNLIMITED:
            limits.append(limit)
        elif limit is None and text.value != "max":
            return Answer.missing(text.reason or f"{path} is not a number")
    if not limits:
        return Answer.missing(NO_LIMIT)
    usage = proc.number(f"{folder}/{files.usage}")
    if usage.value is None:
        return Answer.missing(f"the control group has a limit, but its usage is unknown: {usage.reason}")
    limit = min(limits)
    statistics = proc.fields(f"{folder}/memory.stat")
    reclaimable = statistics.amount(files.reclaimable).value or 0
    return Answer(Headroom(max(0, limit - usage.value + min(reclaimable, usage.value)), limit))


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
    """``WSL2`` in Windows' subsystem for Linux, which names Microsoft in its kernel release; version 1 has no CUDA."""
    return WSL2 if "microsoft" in (proc.line("/proc/sys/kernel/osrelease").value or "") else None


def has_own_pids(proc: Proc) -> bool:
    """True in a container whose processes have numbers of their own, so that those outside cannot be seen.

    The kernel gives the initial namespaces fixed inode numbers (include/uapi/linux/nsfs.h, PROC_PID_INIT_INO before).
    """
    namespace = proc.link("/proc/self/ns/pid").value
    return namespace is not None and namespace != f"pid:[{_INITIAL_PID_NAMESPACE}]"


def hides_processes(proc: Proc) -> bool:
    """True if /proc is mounted so that this process sees only those of its own user (hidepid in proc(5))."""
    options = (
        mount.options for mount in read_mounts(proc).value or () if (mount.kind, mount.point) == ("proc", "/proc")
    )
    # Whom it may trace, it sees.
    return _HIDEPID.search(next(options, "")) is not None and not (
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
