"""NUMA nodes from sysfs, and real system calls on this machine's memory."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinscope.lab.backing import OwnMemory, touch
from pinscope.probes.gpu import read_devices
from pinscope.probes.host_memory import (
    BIND,
    MOST_NODES,
    bound_nodes,
    iommu,
    link_errors,
    max_payload,
    node_mask,
    page_nodes,
    read_limits,
    read_nodes,
    sysfs_folder,
    system_call,
)
from pinscope.records.environment import PCIE
from tests.data.gpu_fake import FakeGpu, FakeNvml
from tests.data.link_limits import pcie_limits
from tests.data.synthetic_gpu import SYSFS, configuration_space, on_bus
from tests.data.synthetic_nodes import GIB, TWO_SOCKETS, WITH_EXPANDER, Node, host

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

HERE = [node.number for node in read_nodes().value or () if node.memory_bytes]


@pytest.fixture
def bound() -> Iterator[int]:
    """This thread's memory is bound to the last node with memory."""
    asked = system_call("set_mempolicy", ctypes.c_long(BIND), node_mask(HERE[-1]), ctypes.c_ulong(MOST_NODES + 1))
    if asked.reason is not None:
        pytest.skip(f"this system binds no memory: {asked.reason}")
    yield HERE[-1]
    system_call("set_mempolicy", ctypes.c_long(0), ctypes.c_void_p(None), ctypes.c_ulong(0))


def test_nodes_have_their_processors_and_their_memory(tmp_path: Path) -> None:
    nodes = read_nodes(host(tmp_path, WITH_EXPANDER)).value
    assert nodes is not None
    assert [node.number for node in nodes] == [0, 1, 2, 3]
    assert [node.processors for node in nodes] == ["0-15,32-47", "16-31,48-63", "", "64-65"]
    assert [node.memory_bytes for node in nodes] == [256 * GIB, 256 * GIB, 128 * GIB, 0]
    assert [node.available_bytes for node in nodes] == [120 * GIB, 200 * GIB, 128 * GIB, 0]


def test_the_only_node_has_all_the_memory_of_the_host(tmp_path: Path) -> None:
    """A virtual machine that grows on demand counts in the node's file what is there so far."""
    proc = host(tmp_path, [Node("0-3", 8 * GIB, 7 * GIB)])
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal: {64 * 2**20} kB\nMemAvailable: {63 * 2**20} kB\n")
    (node,) = read_nodes(proc).value or ()
    assert (node.memory_bytes, node.available_bytes) == (64 * GIB, 63 * GIB)


@pytest.mark.parametrize("text", ["", "x", "0-2000", "0-999999999", "-1"])
def test_a_list_that_is_none_is_a_reason(plant: Plant, text: str) -> None:
    nodes = read_nodes(plant({"/sys/devices/system/node/online": text}))
    assert nodes.value is None
    assert "/sys/devices/system/node/online" in (nodes.reason or "")


def test_touched_pages_lie_on_a_node_and_untouched_ones_nowhere() -> None:
    page = mmap.PAGESIZE
    with OwnMemory(64 * page, "4k") as memory:
        ctypes.memset(memory.address, 1, 32 * page)
        found = page_nodes([memory.address, memory.address + 31 * page, memory.address + 32 * page])
    assert found.value is not None, found.reason
    assert found.value[0] in HERE
    assert found.value[1:] == (found.value[0], None)


def test_a_bound_thread_says_so_and_its_memory_lies_there(bound: int) -> None:
    assert bound_nodes() == (bound,)
    with OwnMemory(64 * mmap.PAGESIZE) as memory:
        touch(memory)
        assert page_nodes([memory.address]).value == (bound,)


def test_limits_are_those_of_the_node_to_which_the_thread_is_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = host(tmp_path, TWO_SOCKETS)
    assert (read_limits(proc).node, read_limits(proc).host_total_bytes) == (None, 512 * GIB)
    monkeypatch.setattr("pinscope.probes.host_memory.bound_nodes", lambda: (1,))
    limits = read_limits(proc)
    assert (limits.node, limits.host_total_bytes, limits.host_available_bytes) == (1, 256 * GIB, 200 * GIB)
    assert "node" not in limits.missing


def test_a_call_that_the_kernel_refuses_says_why() -> None:
    asked = system_call("set_mempolicy", ctypes.c_long(BIND), node_mask(MOST_NODES - 1), ctypes.c_ulong(MOST_NODES + 1))
    assert asked.value is None
    assert (asked.reason or "").startswith("set_mempolicy: ")
    assert bound_nodes() == ()


ON_METAL = "flags\t\t: fpu sse\n"
IN_A_MACHINE = "flags\t\t: fpu sse hypervisor\n"


@pytest.mark.parametrize("written", ["0000:1B:00.0", "00000000:1b:00.0", "0000:1b:00.0"])
def test_an_address_is_found_however_it_is_written(written: str) -> None:
    assert sysfs_folder(written) == SYSFS


@pytest.mark.parametrize(("code", "payload"), [(0, 128), (1, 256), (2, 512), (5, 4096)])
def test_the_packet_size_is_read_from_the_express_capability(plant: Plant, code: int, payload: int) -> None:
    assert max_payload(plant(on_bus(code)), SYSFS).value == payload


@pytest.mark.parametrize("code", [0, 2])
def test_the_link_limit_follows_the_packet_size(plant: Plant, h200: FakeGpu, code: int) -> None:
    with FakeNvml(gpus=[h200]) as nvml:
        devices = read_devices(nvml, plant(on_bus(code))).value
    assert devices is not None
    link = devices[0].link
    assert link is not None
    assert link.limit_bytes_per_second == PCIE[5].payload_bytes_per_second(16, 128 << code)
    assert (link.limit_bytes_per_second < pcie_limits(5, 16)[1]) == (code == 0)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (configuration_space()[:64], "only root may read all of"),
        (b"\xff" * 256, "the device does not answer"),
        (bytes(256), "no PCI Express capability"),
        (configuration_space(express=0x05), "no PCI Express capability"),
        (configuration_space(payload_code=7), "the device does not answer"),
        (configuration_space(express=0x05)[:0x61] + b"\x40" + bytes(0x9E), "go round in a circle"),
        (b"", "ends before"),
    ],
)
def test_a_packet_size_that_cannot_be_read_says_why(plant: Plant, content: bytes, why: str) -> None:
    proc = plant({"/proc/cpuinfo": ON_METAL, f"{SYSFS}/config": content})
    found = max_payload(proc, SYSFS)
    assert found.value is None
    assert why in (found.reason or "")


def test_the_packet_size_that_a_hypervisor_shows_is_told_but_not_used(plant: Plant) -> None:
    proc = plant({**on_bus(0), "/proc/cpuinfo": IN_A_MACHINE})
    found = max_payload(proc, SYSFS)
    assert found.value is None
    assert found.reason == "the configuration space, made up by a hypervisor (virtual machine), says 128 B"


@pytest.mark.parametrize(
    ("kind", "meaning"), [("DMA", "translating"), ("DMA-FQ", "translating"), ("identity", "passthrough")]
)
def test_an_iommu_is_named_by_what_it_does(plant: Plant, kind: str, meaning: str) -> None:
    assert iommu(plant({f"{SYSFS}/iommu_group/type": f"{kind}\n"}), SYSFS).value == meaning


def test_a_device_in_no_group_has_no_iommu_and_one_that_is_not_there_is_not_known(plant: Plant) -> None:
    proc = plant({f"{SYSFS}/config": b""})
    assert iommu(proc, SYSFS).value == "off"
    assert iommu(proc, f"{SYSFS}9").reason == f"{SYSFS}9 is not there"


def test_where_the_kernel_counts_no_errors_it_says_so(plant: Plant) -> None:
    found = link_errors(plant({f"{SYSFS}/config": b""}), SYSFS, "fatal")
    assert "no Advanced Error Reporting" in (found.reason or "")
