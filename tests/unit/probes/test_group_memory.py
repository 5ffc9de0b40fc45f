"""The memory of a control group, of both versions, as the kernel writes it."""

from __future__ import annotations

from pathlib import Path

from pinscope.probes.host_memory import read_group
from tests.data.synthetic_host import SyntheticHost

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
