"""A snapshot on a real GPU host, against programs whose pinned memory is known."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pinscope.live.holders import snapshot
from pinscope.probes.gpu import Nvml
from pinscope.probes.gpu_figures import read_gpus
from pinscope.records.snapshot import Holder, Snapshot

MIB, GIB = 2**20, 2**30
SIZE = 3 * GIB + 3 * 4096

PROGRAM = """
import os, sys
from cupy.cuda import runtime
import numpy
runtime.free(0)
kind, size = sys.argv[1], int(sys.argv[2])
def say():
    print(os.getpid(), flush=True)
    sys.stdin.readline()
say()
if kind == "register":
    memory = numpy.ones(size, numpy.uint8)
    runtime.hostRegister(memory.ctypes.data, size, 0)
else:
    pointer = runtime.hostAlloc(size, 0)
worker = 0
if kind == "fork":
    worker = os.fork()
    if not worker:
        sys.stdin.read()
        os._exit(0)
say()
if kind == "register":
    runtime.hostUnregister(memory.ctypes.data)
else:
    runtime.freeHost(pointer)
say()
"""


def look() -> Snapshot:
    with Nvml() as nvml:
        return snapshot(gpus=read_gpus(nvml, rates=True))


def holder(found: Snapshot, pid: int) -> Holder:
    return next(one for one in found.holders if one.pid == pid)


@contextmanager
def program(kind: str) -> Iterator[tuple[int, Snapshot, Snapshot]]:
    """A program with a context: its pid, the snapshot before it pinned, and the one after."""
    command = [sys.executable, "-c", PROGRAM, kind, str(SIZE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        before = look()
        child.stdin.write("\n")
        child.stdin.flush()
        assert int(child.stdout.readline()) == pid
        after = look()
        child.stdin.write("\n")
        child.stdin.flush()
        assert int(child.stdout.readline()) == pid
        yield pid, before, after
        child.communicate()


def pinned(found: Snapshot) -> int:
    assert found.host.pinned_bytes is not None
    return found.host.pinned_bytes


@pytest.mark.parametrize("kind", ["alloc", "fork"])
def test_cuda_host_memory_is_right_to_the_page_and_a_fork_adds_nothing(kind: str) -> None:
    with program(kind) as (pid, before, after):
        one, bare = holder(after, pid), holder(before, pid)
        assert one.host_alloc_bytes is not None
        assert bare.host_alloc_bytes is not None
        assert one.host_alloc_bytes - bare.host_alloc_bytes == SIZE
        assert any(each.size_bytes == SIZE for each in one.allocations)
        assert "host_alloc_bytes" not in one.estimates
        assert abs(pinned(after) - pinned(before) - SIZE) <= MIB + SIZE // 1000
        assert after.host.explained_bytes is not None
        assert before.host.explained_bytes is not None
        assert after.host.explained_bytes - before.host.explained_bytes == SIZE
        assert len(one.inherited_by) == (kind == "fork")
        assert abs(pinned(look()) - pinned(before)) <= MIB + SIZE // 1000


def test_registered_memory_is_in_the_rest() -> None:
    with program("register") as (pid, before, after):
        assert holder(after, pid).host_alloc_bytes == holder(before, pid).host_alloc_bytes
        assert after.host.other_pinned_bytes is not None
        assert before.host.other_pinned_bytes is not None
        grown = after.host.other_pinned_bytes - before.host.other_pinned_bytes
        assert abs(grown - SIZE) <= MIB + SIZE // 1000


def test_the_implied_page_tables_explain_what_no_process_has() -> None:
    with program("alloc") as (pid, before, after):
        (use,) = [use for use in holder(after, pid).gpus if use.index == 0]
        assert use.memory_bytes
        unattributed = [found.devices[0].unattributed_bytes for found in (before, after)]
        tables = [found.devices[0].page_table_bytes for found in (before, after)]
        assert None not in (*unattributed, *tables)
        grown, implied = unattributed[1] - unattributed[0], tables[1] - tables[0]  # type: ignore[operator]
        assert abs(grown - implied) <= 4 * MIB


def test_every_figure_of_a_device_is_read_or_says_why_not() -> None:
    for device in look().devices:
        told = {name for name, value in device.model_dump().items() if value is not None}
        assert {"memory_used_bytes", "memory_reserved_bytes", "bar1_used_bytes", "processes_bytes"} <= told
        assert {"rx_bytes_per_second", "tx_share", "busy_share", "sm_clock_hertz", "temperature_celsius"} <= told
        assert set(type(device).model_fields) - told <= device.missing.keys()
