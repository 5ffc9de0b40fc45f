"""Headroom of control groups: the tightest limit on the way up, both versions, every kind of mount."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinscope.probes.containers import (
    NO_LIMIT,
    GroupHeadrooms,
    Headroom,
    file_system,
    hides_processes,
    memory_headroom,
    virtualization,
)
from pinscope.probes.host_memory import read_group
from tests.data.synthetic_host import SyntheticHost

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

MIB = 2**20
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1_MOUNT = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
V1_UNLIMITED = "9223372036854771712\n"


def v2(folder: str, limit: str, usage: int, inactive: int = 0, **more: str) -> dict[str, str]:
    base = f"/sys/fs/cgroup{folder}"
    return {
        f"{base}/memory.max": f"{limit}\n",
        f"{base}/memory.current": f"{usage}\n",
        f"{base}/memory.stat": f"anon 1\ninactive_file {inactive}\n",
        **{f"{base}/memory.{name}": text for name, text in more.items()},
    }


def v1(folder: str, limit: str, usage: int, inactive: int = 0) -> dict[str, str]:
    base = f"/sys/fs/cgroup/memory{folder}"
    return {
        f"{base}/memory.limit_in_bytes": f"{limit}\n",
        f"{base}/memory.usage_in_bytes": f"{usage}\n",
        f"{base}/memory.stat": f"inactive_file 1\ntotal_inactive_file {inactive}\n",
    }


JOB = {"/proc/self/cgroup": "0::/job\n", "/proc/self/mountinfo": V2_MOUNT}
TIGHTEST: Mapping[str, tuple[Mapping[str, str], Headroom]] = {
    "page cache that can be dropped counts as free": (
        JOB | v2("/job", str(100 * MIB), 60 * MIB, inactive=20 * MIB), Headroom(60 * MIB, 100 * MIB)
    ),
    "a parent may be tighter than the own group": (
        {
            **JOB, "/proc/self/cgroup": "0::/outer/inner/job\n", **v2("/outer", str(80 * MIB), 70 * MIB),
            **v2("/outer/inner", "max", 60 * MIB), **v2("/outer/inner/job", str(100 * MIB), 10 * MIB),
        },
        Headroom(10 * MIB, 80 * MIB),
    ),
    "memory.high binds like a limit": (
        JOB | v2("/job", "max", 10 * MIB, high=f"{50 * MIB}\n"), Headroom(40 * MIB, 50 * MIB)
    ),
    "usage above the limit leaves nothing": (JOB | v2("/job", str(50 * MIB), 51 * MIB), Headroom(0, 50 * MIB)),
    "version 1 walks up, and its unlimited number is no limit": (
        {
            "/proc/self/cgroup": "5:cpu:/\n4:memory,hugetlb:/docker/abc\n0::/\n", "/proc/self/mountinfo": V1_MOUNT,
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": V1_UNLIMITED,
            **v1("/docker", str(200 * MIB), 100 * MIB), **v1("/docker/abc", str(90 * MIB), 60 * MIB, inactive=10 * MIB),
        },
        Headroom(40 * MIB, 90 * MIB),
    ),
    "version 1 without a cgroup namespace: the path is the host's, the mount shows only that part": (
        {
            "/proc/self/cgroup": "4:memory:/docker/abc\n",
            "/proc/self/mountinfo": "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            **v1("", str(90 * MIB), 30 * MIB),
        },
        Headroom(60 * MIB, 90 * MIB),
    ),
    "a group outside the namespace falls back to the mount point": (
        {**JOB, "/proc/self/cgroup": "0::/../../other\n", **v2("", str(90 * MIB), 30 * MIB)},
        Headroom(60 * MIB, 90 * MIB),
    ),
    "with both versions mounted the tighter one counts": (
        {
            "/proc/self/cgroup": "4:memory:/job\n0::/job\n",
            "/proc/self/mountinfo": f"{V1_MOUNT}41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
            **v1("/job", str(90 * MIB), 30 * MIB),
            "/sys/fs/cgroup/unified/job/memory.max": f"{50 * MIB}\n",
            "/sys/fs/cgroup/unified/job/memory.current": "0\n",
        },
        Headroom(50 * MIB, 50 * MIB),
    ),
    "a mount point may have a blank": (
        {
            "/proc/self/cgroup": "0::/\n",
            "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/my\\040groups rw - cgroup2 cgroup2 rw\n",
            "/sys/fs/my groups/memory.max": "100\n", "/sys/fs/my groups/memory.current": "40\n",
        },
        Headroom(60, 100),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TIGHTEST)
def test_the_tightest_limit_counts(plant: Plant, case: str) -> None:
    files, expected = TIGHTEST[case]
    assert memory_headroom(plant(files)).value == expected


def test_no_limit_anywhere_is_no_headroom_with_the_reason(plant: Plant) -> None:
    proc = plant({"/proc/self/cgroup": "0::/job\n", "/proc/self/mountinfo": V2_MOUNT, **v2("/job", "max", 5)})
    assert memory_headroom(proc).reason == NO_LIMIT


def test_other_processes_are_told_by_their_own_groups(plant: Plant) -> None:
    proc = plant({
        "/proc/self/cgroup": "0::/\n",
        "/proc/7/cgroup": "0::/job\n",
        "/proc/8/cgroup": "0::/job\n",
        "/proc/9/cgroup": "0::/../elsewhere\n",
        "/proc/self/mountinfo": V2_MOUNT,
        **v2("/job", str(100 * MIB), 60 * MIB),
    })  # fmt: skip
    groups = GroupHeadrooms(proc)
    assert groups.of(7).value == groups.of(8).value == Headroom(40 * MIB, 100 * MIB)
    assert "outside" in (groups.of(9).reason or "")
    assert "/proc/10/cgroup is not there" in (groups.of(10).reason or "")
    assert memory_headroom(proc).reason == NO_LIMIT


@pytest.mark.parametrize("broken", ["memory.current", "memory.max"])
def test_a_limit_that_cannot_be_judged_says_so(plant: Plant, broken: str) -> None:
    files = v2("/job", "100", 5) | {f"/sys/fs/cgroup/job/{broken}": "lots\n"}
    proc = plant({"/proc/self/cgroup": "0::/job\n", "/proc/self/mountinfo": V2_MOUNT, **files})
    answer = memory_headroom(proc)
    assert answer.value is None
    assert broken in (answer.reason or "")


def test_without_the_files_the_reason_names_them(plant: Plant) -> None:
    assert "/proc/self/cgroup is not there" in (memory_headroom(plant({})).reason or "")


SECOND = {
    "memory.current": "536870912\n", "memory.swap.current": "4096\n",
    "memory.stat": "anon 100\nfile 300000\nshmem 100000\nworkingset_refault_file 7\n",
    "memory.events": "low 0\nhigh 0\nmax 12\noom 1\noom_kill 2\noom_group_kill 0\n",
    "memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 total=0\n",
}  # fmt: skip
FIRST = {
    "memory.usage_in_bytes": "536870912\n",
    "memory.stat": "cache 300000\nrss 5\nshmem 100000\nswap 4096\nworkingset_refault_file 7\n",
    "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
}


def test_both_versions_say_what_a_group_holds_and_whom_it_lost(tmp_path: Path) -> None:
    host = SyntheticHost(tmp_path)
    for folder, files in (("two", SECOND), ("one", FIRST)):
        for name, text in files.items():
            host.write(f"sys/fs/cgroup/{folder}/{name}", text)
    second = read_group("cgroup2", "/sys/fs/cgroup/two", host.proc)
    first = read_group("cgroup", "/sys/fs/cgroup/one", host.proc)
    for group in (second, first):
        assert (group.used_bytes, group.cache_bytes, group.swap_bytes) == (2**29, 200_000, 4096)
        assert (group.refaults, group.kills) == (7, 2)
    assert (second.stalled_seconds, first.stalled_seconds) == (1.5, None)
    assert "version 1" in first.missing["stalled_seconds"]


def test_what_a_kernel_does_not_write_is_missing_with_its_reason(tmp_path: Path) -> None:
    group = read_group("cgroup2", "/sys/fs/cgroup/none", SyntheticHost(tmp_path).proc)
    fields = ("used_bytes", "cache_bytes", "swap_bytes", "refaults", "kills", "stalled_seconds")
    assert all(getattr(group, field) is None and group.missing[field] for field in fields)


MOUNTS = (
    "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /nowhere rw - tmpfs t rw\n3 1 8:2 / /nowhere/data rw - xfs /dev/b rw\n"
    "4 1 0:6 / /twice rw - ext4 /dev/c rw\n5 4 0:7 / /twice rw - tmpfs t rw\n6 1 0:8 / /a\\040b rw - nfs n rw\ntorn\n"
)


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("/nowhere/x", "tmpfs"), ("/nowhere/data/x/y", "xfs"), ("/nowhere/database", "tmpfs"), ("/other", "ext4"),
        ("/twice", "tmpfs"), ("/a b/c", "nfs"),
    ],
)  # fmt: skip
def test_the_nearest_and_last_mount_counts(plant: Plant, folder: str, kind: str) -> None:
    assert file_system(folder, plant({"/proc/self/mountinfo": MOUNTS})).value == kind


HYPERVISOR = {"/proc/cpuinfo": "processor: 0\nflags\t\t: fpu hypervisor lm\n"}
BARE = {"/proc/cpuinfo": "processor: 0\nflags\t\t: fpu lm\n"}
ARM = {"/proc/cpuinfo": "processor: 0\nCPU implementer: 0x41\n"}
DMI = "/sys/class/dmi/id"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (HYPERVISOR, "virtual machine"),
        (HYPERVISOR | {f"{DMI}/sys_vendor": "QEMU\n"}, "QEMU/KVM"),
        (HYPERVISOR | {f"{DMI}/sys_vendor": "Amazon EC2\n", f"{DMI}/product_name": "p5.48xlarge\n"}, "Amazon EC2"),
        (HYPERVISOR | {f"{DMI}/sys_vendor": "Microsoft Corporation\n", f"{DMI}/product_name": "Virtual Machine\n"},
         "Hyper-V"),
        (ARM | {f"{DMI}/sys_vendor": "Google\n"}, "Google Compute Engine"),
        (BARE | {"/.dockerenv": ""}, "Docker container"),
        (HYPERVISOR | {"/run/.containerenv": ""}, "Podman container, virtual machine"),
        (BARE | {"/proc/1/cgroup": "0::/kubepods.slice/kubepods-pod1.slice\n"}, "Kubernetes pod"),
        (BARE | {"/proc/1/cgroup": "4:memory:/docker/abc\n"}, "Docker container"),
        (BARE | {"/run/systemd/container": "systemd-nspawn\n"}, "systemd-nspawn container"),
        (HYPERVISOR | {"/proc/sys/kernel/osrelease": "5.15.167.4-microsoft-standard-WSL2\n"}, "WSL2"),
    ],
)  # fmt: skip
def test_what_shows_itself_is_named(plant: Plant, files: dict[str, str], expected: str) -> None:
    assert virtualization(plant(files)).value == expected


@pytest.mark.parametrize(
    "files",
    [
        {},
        BARE,
        ARM,
        BARE | {f"{DMI}/sys_vendor": "Amazon EC2\n"},
        ARM | {f"{DMI}/sys_vendor": "Amazon EC2\n", f"{DMI}/product_name": "c7g.metal\n"},
        ARM | {f"{DMI}/sys_vendor": "Microsoft Corporation\n", f"{DMI}/product_name": "Surface\n"},
        BARE | {"/proc/1/cgroup": "0::/init.scope\n"},
        BARE | {"/proc/sys/kernel/osrelease": "6.8.0-45-generic\n"},
    ],
)
def test_a_machine_of_its_own_is_no_virtual_one(plant: Plant, files: dict[str, str]) -> None:
    assert virtualization(plant(files)).reason == "no container and no hypervisor shows itself"


@pytest.mark.parametrize(
    ("options", "expected"),
    [("rw", False), ("rw,hidepid=0", False), ("rw,gid=5,hidepid=2", True), ("rw,hidepid=invisible", True),
     ("rw,hidepid=off", False)],
)  # fmt: skip
def test_a_proc_that_hides_processes_is_known_by_its_mount(plant: Plant, options: str, expected: bool) -> None:
    lines = (
        f"20 1 8:1 / / rw - ext4 /dev/sda rw,hidepid=2\n30 20 0:26 / /proc rw,nosuid shared:5 - proc proc {options}\n"
    )
    assert hides_processes(plant({"/proc/self/mountinfo": lines})) is expected


@pytest.mark.parametrize(
    ("capabilities", "users", "hidden"),
    [("000001ffffffffff", "0 0 4294967295", False), ("000001ffffffffff", "0 1000 1", True),
     ("0000000000000000", "0 0 4294967295", True)],
)  # fmt: skip
def test_hidepid_hides_nobody_from_root(plant: Plant, capabilities: str, users: str, hidden: bool) -> None:
    files = {
        "/proc/self/mountinfo": "30 20 0:26 / /proc rw - proc proc rw,hidepid=2\n",
        "/proc/self/status": f"CapEff:\t{capabilities}\n",
        "/proc/self/uid_map": f"         {users}\n",
    }
    assert hides_processes(plant(files)) is hidden
