"""SYNTHETIC /proc trees: processes as the kernel would show them, on a host that never was.

The texts have the kernel's form (Linux 6.18); the figures are given by the test. What real hosts show is in
``tests/data/proc``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

from pinscope.probes.proc import Proc

PAGE = 4096
CUDA_FILES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidia0")
BOOTED = 1_700_000_000
_BASE = 0x7F0000000000
_STEP = 2 * 2**20
_ORDINARY, _ALIGNED = "ordinary ", "aligned "


def zero(size: int, inode: int, offset: int = 0, permissions: str = "rw-s") -> tuple[int, str]:
    """A mapping of shared anonymous memory, as cudaHostAlloc makes it: (bytes, the rest of its line)."""
    return size, f"{permissions} {offset:08x} 00:01 {inode:<26} /dev/zero (deleted)"


def ordinary(size: int, inode: int) -> tuple[int, str]:
    """The same of shared anonymous memory that a program mapped by itself: it lies anywhere, with nothing reserved."""
    return size, _ORDINARY + zero(size, inode)[1]


def aligned(size: int, inode: int) -> tuple[int, str]:
    """Ordinary shared memory again, which begins at a multiple of 2 MiB, as huge pages make it."""
    return size, _ALIGNED + zero(size, inode)[1]


def context(gpu: int = 0, inode: int = 900_000) -> list[tuple[int, str]]:
    """What a CUDA context has mapped, as on H200s with driver 580."""
    driver = [56 * 2**20, *[_STEP] * 4, 6_205_440, *[PAGE] * 20]
    pieces = [zero(_STEP, inode + number) for number in range(3)]
    return [
        named(_STEP, f"/dev/nvidia{gpu}"),
        *(named(size, "/dev/nvidiactl") for size in driver),
        named(PAGE, "/dev/nvidiactl", "r--s"),
        named(_STEP, "/dev/nvidia-uvm"),
        *pieces,
        ordinary(_STEP, inode + 3),
    ]


def named(size: int, name: str, permissions: str = "rw-s", inode: int = 610) -> tuple[int, str]:
    """A mapping of another file."""
    return size, f"{permissions} 00000000 00:06 {inode:<26} {name}".rstrip()


def maps_text(mappings: Iterable[tuple[int, str]]) -> str:
    """A /proc/PID/maps with these mappings one after the other, each followed by a gap.

    Shared anonymous memory lies as cudaHostAlloc's does: at a multiple of 2 MiB, with address space reserved up to the
    next one.
    """
    lines, address = [], _BASE
    for size, rest in mappings:
        is_aligned = rest.startswith(_ALIGNED)
        reserved = "/dev/zero (deleted)" in rest and not rest.startswith(_ORDINARY) and not is_aligned
        address = -(-address // _STEP) * _STEP + (0 if reserved or is_aligned else PAGE)
        address += _STEP if is_aligned and address % 2**28 == 0 else 0
        end = address + size
        lines.append(f"{address:012x}-{end:012x} {rest.removeprefix(_ORDINARY).removeprefix(_ALIGNED)}\n")
        address = end + _STEP
        if reserved:
            address += -address % _STEP
            lines.append(f"{end:012x}-{address:012x} ---p 00000000 00:00 0 \n")
    return "".join(lines)


class SyntheticHost:
    """Writes a /proc below a folder.

    Args:
        folder: an empty folder.
        pinned_bytes: the host's total of pinned memory; ``None``: a kernel without these counters.
        pid_namespace: that of the reader; the kernel's initial one by default.
    """

    def __init__(self, folder: Path, pinned_bytes: int | None = 0, pid_namespace: int = 4026531836) -> None:
        self.folder = folder
        self.proc = Proc.below(folder)
        self._pids = itertools.count(1000)
        self.write("proc/meminfo", _MEMINFO)
        self.write("proc/stat", f"cpu  1 2 3\nintr 5\nbtime {BOOTED}\nprocesses 9\n")
        self.write("proc/pressure/memory", _PRESSURE)
        self.write("proc/self/mountinfo", "30 20 0:26 / /proc rw,nosuid - proc proc rw\n")
        self.write("proc/self/status", _STATUS.format(name="python", pid=1, parent=0, user=0, amounts=""))
        self.link("proc/self/ns/pid", f"pid:[{pid_namespace}]")
        counters = ""
        if pinned_bytes is not None:
            counters = f"nr_foll_pin_acquired {7_000_000 + pinned_bytes // PAGE}\nnr_foll_pin_released 7000000\n"
        self.write("proc/vmstat", f"nr_free_pages 1\n{counters}pswpin 0\n")

    def write(self, path: str, text: str) -> None:
        """One file, by its path below the root."""
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def link(self, path: str, target: str) -> None:
        """One symbolic link."""
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    def process(
        self,
        name: str = "python",
        *,
        parent: int = 1,
        user: int = 0,
        started: int = 5000,
        files: Sequence[str] = (),
        mappings: Sequence[tuple[int, str]] | None = None,
        group: str = "0::/user.slice\n",
        pid: int | None = None,
        **amounts: int,
    ) -> int:
        """A process; gives its pid.

        Args:
            name: what the kernel calls it.
            parent: pid.
            user: id.
            started: clock ticks since boot.
            files: what its descriptors point to.
            mappings: from :func:`zero` and :func:`named`; ``None``: there is no ``maps`` to read.
            group: text of its ``cgroup``.
            pid: its own; the next one if not given.
            amounts: bytes by the kernel's names, such as ``VmLck``; RssShmem is the sum of ``mappings`` by default,
                and VmRSS what is locked.
        """
        pid = next(self._pids) if pid is None else pid
        shared = sum(size for size, rest in mappings or () if "/dev/zero" in rest)
        filled = {"VmSize": 20 * 2**20 + sum(size for size, _ in mappings or ()), "RssShmem": shared}
        filled |= {"VmRSS": amounts.get("VmLck", 0)} | amounts
        filled = {"VmPeak": filled["VmSize"]} | dict.fromkeys(_AMOUNTS, 0) | filled
        lines = "".join(f"{key}:\t{filled[key] // 1024:8} kB\n" for key in ("VmPeak", "VmSize", *_AMOUNTS))
        folder = f"proc/{pid}"
        self.write(f"{folder}/status", _STATUS.format(name=name, pid=pid, parent=parent, user=user, amounts=lines))
        self.write(f"{folder}/stat", f"{pid} ({name}) S {parent} " + "0 " * 17 + f"{started} 0 0\n")
        self.write(f"{folder}/cmdline", f"{name}\0train.py\0")
        self.write(f"{folder}/cgroup", group)
        (self.folder / folder / "fd").mkdir()
        for number, target in enumerate(files):
            self.link(f"{folder}/fd/{number}", target)
        if mappings is not None:
            self.write(f"{folder}/maps", maps_text(mappings))
        return pid

    def cuda_process(self, mappings: Sequence[tuple[int, str]], **changes: object) -> int:
        """A process with CUDA's device files open."""
        libraries = [named(25 * 2**20, "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159", "r-xp")]
        return self.process(files=CUDA_FILES, mappings=[*libraries, *mappings], **changes)  # type: ignore[arg-type]


def busy_host(folder: Path, processes: int = 500, pieces: int = 6144) -> SyntheticHost:
    """A host with one holder of ``pieces`` × 4 MiB (24 GiB) and many others, each with 20 open files.

    A tenth has shared memory, as database servers do; a tenth has gigabytes of address space, as Java programs do:
    those are the ones that cost more than a glance.
    """
    host = SyntheticHost(folder, pinned_bytes=pieces * 4 * 2**20)
    host.cuda_process([zero(4 * 2**20, inode) for inode in range(1, pieces + 1)])
    for number, target in enumerate(["/dev/null", *(f"socket:[{number}]" for number in range(19))]):
        host.link(f"proc/open/{number}", target)
    for number in range(1, processes):
        shared, size = {0: (2**20, 2**27), 1: (0, 2**31)}.get(number % 10, (0, 2**27))
        pid = host.process(f"server{number}", RssShmem=shared, VmSize=size)
        (folder / f"proc/{pid}/fd").rmdir()
        host.link(f"proc/{pid}/fd", "../open")  # thousands of links of their own would take seconds to write
    return host


_AMOUNTS = ("VmLck", "VmPin", "VmRSS", "RssAnon", "RssFile", "RssShmem", "HugetlbPages")
_STATUS = (
    "Name:\t{name}\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t{pid}\nNgid:\t0\nPid:\t{pid}\nPPid:\t{parent}\n"
    "TracerPid:\t0\nUid:\t{user}\t{user}\t{user}\t{user}\nGid:\t0\t0\t0\t0\nFDSize:\t64\nGroups:\t \nNSpid:\t{pid}\n"
    "Kthread:\t0\n{amounts}CoreDumping:\t0\nThreads:\t1\nSigQ:\t0/515506\n"
    "Cpus_allowed_list:\t0-15\nvoluntary_ctxt_switches:\t11\nnonvoluntary_ctxt_switches:\t0\n"
)
_MEMINFO = (
    "MemTotal:       131981020 kB\nMemFree:        99901676 kB\nMemAvailable:   101357888 kB\n"
    "Buffers:           29764 kB\nCached:         29000000 kB\nSwapCached:            0 kB\n"
    "AnonPages:       2000000 kB\nSlab:             108460 kB\nKernelStack:        4336 kB\n"
    "PageTables:         8796 kB\nVmallocUsed:       88184 kB\nPercpu:             4480 kB\n"
    "Unevictable:      108196 kB\nMlocked:          106440 kB\nShmem:           25165824 kB\n"
    "HugePages_Total:     512\nHugePages_Free:      500\nHugepagesize:       2048 kB\nHugetlb:         1048576 kB\n"
)
_PRESSURE = (
    "some avg10=1.50 avg60=0.25 avg300=0.00 total=2500000\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=1000000\n"
)
