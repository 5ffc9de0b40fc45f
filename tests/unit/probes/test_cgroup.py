"""Headroom of control groups: the tightest limit on the way up, both versions, every kind of mount."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.probes.containers import NO_LIMIT, GroupHeadrooms, Headroom, memory_headroom
from pinscope.probes.proc import Proc

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


def test_page_cache_that_can_be_dropped_counts_as_free(plant: Plant) -> None:
    files = v2("/job", str(100 * MIB), 60 * MIB, inactive=20 * MIB)
    proc = plant({"/proc/self/cgroup": "0::/job\n", "/proc/self/mountinfo": V2_MOUNT, **files})
    assert memory_headroom(proc).value == Headroom(60 * MIB, 100 * MIB)


def test_a_parent_may_be_tighter_than_the_own_group(plant: Plant) -> None:
    proc = plant({
        "/proc/self/cgroup": "0::/outer/inner/job\n",
        "/proc/self/mountinfo": V2_MOUNT,
        **v2("/outer", str(80 * MIB), 70 * MIB),
        **v2("/outer/inner", "max", 60 * MIB),
        **v2("/outer/inner/job", str(100 * MIB), 10 * MIB),
    })  # fmt: skip
    assert memory_headroom(proc).value == Headroom(10 * MIB, 80 * MIB)


def test_memory_high_binds_like_a_limit(plant: Plant) -> None:
    files = v2("/job", "max", 10 * MIB, high=f"{50 * MIB}\n")
    proc = plant({"/proc/self/cgroup": "0::/job\n", "/proc/self/mountinfo": V2_MOUNT, **files})
    assert memory_headroom(proc).value == Headroom(40 * MIB, 50 * MIB)


def test_usage_above_the_limit_leaves_nothing(plant: Plant) -> None:
    files = v2("/job", str(50 * MIB), 51 * MIB)
    proc = plant({"/proc/self/cgroup": "0::/job\n", "/proc/self/mountinfo": V2_MOUNT, **files})
    assert memory_headroom(proc).value == Headroom(0, 50 * MIB)


def test_version_1_walks_up_and_its_unlimited_number_is_no_limit(plant: Plant) -> None:
    proc = plant({
        "/proc/self/cgroup": "5:cpu:/\n4:memory,hugetlb:/docker/abc\n0::/\n",
        "/proc/self/mountinfo": V1_MOUNT,
        "/sys/fs/cgroup/memory/memory.limit_in_bytes": V1_UNLIMITED,
        **v1("/docker", str(200 * MIB), 100 * MIB),
        **v1("/docker/abc", str(90 * MIB), 60 * MIB, inactive=10 * MIB),
    })  # fmt: skip
    assert memory_headroom(proc).value == Headroom(40 * MIB, 90 * MIB)


def test_a_container_sees_its_group_as_the_mount_point(plant: Plant) -> None:
    """Version 1 without a cgroup namespace: the path is the host's, the mount shows only that part."""
    mount = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
    proc = plant({
        "/proc/self/cgroup": "4:memory:/docker/abc\n",
        "/proc/self/mountinfo": mount,
        **v1("", str(90 * MIB), 30 * MIB),
    })  # fmt: skip
    assert memory_headroom(proc).value == Headroom(60 * MIB, 90 * MIB)


def test_a_group_outside_the_namespace_falls_back_to_the_mount_point(plant: Plant) -> None:
    files = v2("", str(90 * MIB), 30 * MIB)
    proc = plant({"/proc/self/cgroup": "0::/../../other\n", "/proc/self/mountinfo": V2_MOUNT, **files})
    assert memory_headroom(proc).value == Headroom(60 * MIB, 90 * MIB)


def test_with_both_versions_mounted_the_tighter_one_counts(plant: Plant) -> None:
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    proc = plant({
        "/proc/self/cgroup": "4:memory:/job\n0::/job\n",
        "/proc/self/mountinfo": V1_MOUNT + unified,
        **v1("/job", str(90 * MIB), 30 * MIB),
        "/sys/fs/cgroup/unified/job/memory.max": f"{50 * MIB}\n",
        "/sys/fs/cgroup/unified/job/memory.current": "0\n",
    })  # fmt: skip
    assert memory_headroom(proc).value == Headroom(50 * MIB, 50 * MIB)


def test_a_mount_point_with_a_blank_is_found(plant: Plant) -> None:
    proc = plant({
        "/proc/self/cgroup": "0::/\n",
        "/proc/self/mountinfo": "30 23 0:26 / /sys/fs/my\\040groups rw - cgroup2 cgroup2 rw\n",
        "/sys/fs/my groups/memory.max": "100\n",
        "/sys/fs/my groups/memory.current": "40\n",
    })  # fmt: skip
    assert memory_headroom(proc).value == Headroom(60, 100)


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


@given(
    levels=st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=4
    )
)
def test_headroom_is_the_minimum_over_all_levels(
    levels: list[tuple[int, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = tmp_path_factory.mktemp("groups")
    folder = "".join(f"/g{number}" for number in range(len(levels)))
    files = {"/proc/self/cgroup": f"0::{folder}\n", "/proc/self/mountinfo": V2_MOUNT}
    for number, (limit, usage, inactive) in enumerate(levels):
        files |= v2("".join(f"/g{n}" for n in range(number + 1)), str(limit), usage, inactive)
    for path, text in files.items():
        (top / path.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        (top / path.lstrip("/")).write_text(text)
    expected = min(max(0, limit - usage + min(inactive, usage)) for limit, usage, inactive in levels)
    found = memory_headroom(Proc.below(top)).value
    assert found is not None
    assert found.bytes == expected
