"""How much memory may be taken: host, control group, locked memory, shared memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from pinscope.probes.host_memory import memlock_headroom, read_limits
from pinscope.probes.proc import HERE

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

ROOT = Path(__file__).parents[3]
IPC_LOCK = "CapEff:\t0000000000004000\n"
NO_CAPABILITY = "CapEff:\t0000000000000000\n"
ALL_USERS = "         0          0 4294967295\n"
ROOTLESS = "         0       1000          1\n"


def limits_file(soft: str) -> str:
    return (
        "Limit                     Soft Limit           Hard Limit           Units\n"
        f"Max locked memory         {soft:20} unlimited            bytes\n"
        "Max address space         unlimited            unlimited            bytes\n"
    )


def status(capability: str = NO_CAPABILITY, locked: str = "VmLck:\t  1024 kB\n") -> str:
    return f"Name:\tpython\n{locked}{capability}"


def test_what_is_locked_already_is_taken_off_the_limit(plant: Plant) -> None:
    proc = plant({"/proc/self/status": status(), "/proc/self/limits": limits_file("8388608")})
    assert memlock_headroom(proc).value == 7 * 2**20


def test_more_locked_than_the_limit_leaves_nothing(plant: Plant) -> None:
    proc = plant({"/proc/self/status": status(), "/proc/self/limits": limits_file("65536")})
    assert memlock_headroom(proc).value == 0


def test_an_unlimited_process_has_no_headroom_figure_but_a_reason(plant: Plant) -> None:
    proc = plant({"/proc/self/status": status(), "/proc/self/limits": limits_file("unlimited")})
    assert memlock_headroom(proc).reason == "no limit: RLIMIT_MEMLOCK is unlimited"


def test_the_lock_capability_lifts_the_limit(plant: Plant) -> None:
    proc = plant({
        "/proc/self/status": status(IPC_LOCK),
        "/proc/self/limits": limits_file("65536"),
        "/proc/self/uid_map": ALL_USERS,
    })  # fmt: skip
    assert memlock_headroom(proc).reason == "no limit: this process has CAP_IPC_LOCK"


def test_in_a_rootless_container_the_lock_capability_does_not_count(plant: Plant) -> None:
    proc = plant({
        "/proc/self/status": status(IPC_LOCK),
        "/proc/self/limits": limits_file("8388608"),
        "/proc/self/uid_map": ROOTLESS,
    })  # fmt: skip
    assert memlock_headroom(proc).value == 7 * 2**20


@pytest.mark.parametrize("capability", ["", "CapEff:\tnonsense\n", "CapEff:\t-1\n"])
def test_an_unreadable_capability_lifts_nothing(plant: Plant, capability: str) -> None:
    proc = plant({"/proc/self/status": status(capability), "/proc/self/limits": limits_file("8388608")})
    assert memlock_headroom(proc).value == 7 * 2**20


def test_without_the_locked_amount_the_limit_itself_is_the_upper_bound(plant: Plant) -> None:
    proc = plant({"/proc/self/status": status(locked=""), "/proc/self/limits": limits_file("8388608")})
    assert memlock_headroom(proc).value == 8 * 2**20


def test_without_the_limits_file_the_limit_of_this_process_is_asked_for(plant: Plant) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    answer = memlock_headroom(plant({"/proc/self/status": status(locked="")}))
    assert answer.value == (None if soft == resource.RLIM_INFINITY else soft)


LOCKS_WHAT_IT_MAY = """
import ctypes, mmap, os, resource
from pinscope.probes.host_memory import memlock_headroom
from pinscope.probes.proc import HERE
resource.setrlimit(resource.RLIMIT_MEMLOCK, (2**20, 2**20))
if os.geteuid() == 0:
    os.setuid(65534)
libc = ctypes.CDLL(None, use_errno=True)
memory = mmap.mmap(-1, 2**21)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
lock = lambda nbytes: libc.mlock(ctypes.c_void_p(start), ctypes.c_size_t(nbytes)) == 0
page = mmap.PAGESIZE
assert lock(64 * page)
headroom = memlock_headroom(HERE).value
print(headroom, lock(64 * page + headroom + page), lock(64 * page + headroom))
"""


def test_the_kernel_lets_a_process_lock_exactly_its_headroom() -> None:
    """As an ordinary user, in a child: 64 pages are locked already, the limit is 1 MiB."""
    done = subprocess.run(
        [sys.executable, "-c", LOCKS_WHAT_IT_MAY], cwd=ROOT, capture_output=True, text=True, check=False
    )
    expected = 2**20 - 64 * resource.getpagesize()
    assert done.stdout == f"{expected} False True\n", done.stderr


def test_host_memory_is_that_of_the_tree(plant: Plant) -> None:
    meminfo = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  600 kB\n"
    limits = read_limits(plant({"/proc/meminfo": meminfo}))
    assert (limits.host_total_bytes, limits.host_available_bytes) == (1000 * 1024, 600 * 1024)


def test_without_meminfo_psutil_answers(plant: Plant) -> None:
    assert read_limits(plant({})).host_total_bytes == psutil.virtual_memory().total


def test_every_missing_limit_says_why(plant: Plant) -> None:
    limits = read_limits(plant({"/proc/self/limits": limits_file("unlimited")}))
    nothing = {name for name, value in limits.model_dump().items() if value is None}
    assert nothing == set(limits.missing)
    assert limits.missing["shm_free_bytes"] == "/dev/shm is not there"


def test_this_machine_has_memory_and_a_bounded_share_of_it_is_available() -> None:
    limits = read_limits(HERE)
    assert 0 < limits.host_available_bytes <= limits.host_total_bytes
    assert limits.shm_free_bytes is None or limits.shm_free_bytes >= 0
