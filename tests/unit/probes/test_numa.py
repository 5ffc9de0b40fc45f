"""NUMA nodes from sysfs, and real system calls on this machine's memory."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pinscope.lab.backing import OwnMemory, touch
from pinscope.probes import numa
from pinscope.probes.host_memory import read_limits
from pinscope.probes.numa import BIND, MOST_NODES, bound_nodes, node_mask, page_nodes, read_nodes, system_call
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


def test_memory_that_is_not_there_lies_nowhere() -> None:
    assert page_nodes([0]).value == (None,)


def test_a_bound_thread_says_so_and_its_memory_lies_there(bound: int) -> None:
    assert bound_nodes() == (bound,)
    with OwnMemory(64 * mmap.PAGESIZE) as memory:
        touch(memory)
        assert page_nodes([memory.address]).value == (bound,)


def test_threads_that_are_started_inherit_the_binding(bound: int) -> None:
    found: list[tuple[int, ...]] = []
    thread = threading.Thread(target=lambda: found.append(bound_nodes()))
    thread.start()
    thread.join()
    assert found == [(bound,)]


def test_a_thread_that_is_not_bound_says_nothing() -> None:
    assert bound_nodes() == ()


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


def test_a_processor_whose_calls_are_not_known_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa.platform, "machine", lambda: "riscv128")
    assert page_nodes([0]).reason == "PinScope does not know the number of move_pages on riscv128"
