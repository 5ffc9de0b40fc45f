"""Containers and hypervisors that show themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinscope.probes.containers import has_own_pids, hides_processes, virtualization

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

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
        ({"/proc/sys/kernel/osrelease": "4.4.0-19041-Microsoft\n"}, "WSL1"),
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


def test_a_machine_that_does_not_tell_its_namespace_has_the_hosts_pids(plant: Plant) -> None:
    assert not has_own_pids(plant({}))
    assert not hides_processes(plant({}))
