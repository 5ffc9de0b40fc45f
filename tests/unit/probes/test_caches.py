"""Last-level caches as /sys shows them: each once, however many processors share it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.probes.host_memory import last_level_cache_bytes
from pinscope.probes.proc import Proc


def cache(root: Path, processor: int, level: str, size: str, shared: str) -> None:
    folder = root / f"sys/devices/system/cpu/cpu{processor}/cache/index{level}"
    folder.mkdir(parents=True)
    for name, text in (("level", level), ("size", size), ("shared_cpu_list", shared)):
        (folder / name).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("shared", "expected"), [(("0-1", "0-1"), 300 * 2**20), (("0", "1"), 600 * 2**20)], ids=["one", "one each"]
)
def test_each_last_level_cache_counts_once(tmp_path: Path, shared: tuple[str, str], expected: int) -> None:
    for processor in (0, 1):
        cache(tmp_path, processor, "1", "48K", str(processor))
        cache(tmp_path, processor, "3", "307200K", shared[processor])
    assert last_level_cache_bytes(Proc.below(tmp_path)).value == expected


def test_a_machine_that_shows_no_caches_says_so(tmp_path: Path) -> None:
    assert "no caches" in (last_level_cache_bytes(Proc.below(tmp_path)).reason or "")


def test_what_is_no_size_is_left_out(tmp_path: Path) -> None:
    cache(tmp_path, 0, "2", "2M", "0")
    cache(tmp_path, 0, "3", "much", "0")
    assert last_level_cache_bytes(Proc.below(tmp_path)).value == 2 * 2**20
