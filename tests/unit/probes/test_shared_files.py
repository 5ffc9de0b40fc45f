"""Files that are memory: named once nobody has them, by whatever way they were held before."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.probes import process_scan
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process_scan import AGAIN_SECONDS, LeftFiles, left_files

MIB = 2**20
HOLDS = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); f.close(); print(); input()"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_scan, "LEAST_BYTES", 2 * MIB)


@pytest.fixture
def cache() -> Iterator[Path]:
    path = Path(f"/dev/shm/pinscope-left-{os.getpid()}")
    path.write_bytes(b"x" * 2 * MIB)
    yield path
    path.unlink()


def left(path: Path) -> list[int]:
    return [file.bytes for file in left_files(HERE) if file.path == str(path)]


def test_a_file_is_left_once_no_process_has_it_open_or_mapped(cache: Path) -> None:
    with cache.open("r+b") as file:
        assert left(cache) == []
        mapped = mmap.mmap(file.fileno(), 0)
    assert left(cache) == []
    mapped.close()
    assert left(cache) == [2 * MIB]


def test_a_killed_server_leaves_it(cache: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, cache], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        assert left(cache) == []
        server.kill()
    assert left(cache) == [2 * MIB]


def test_small_and_sparse_files_are_none(cache: Path) -> None:
    os.truncate(cache, MIB)
    assert left(cache) == []
    os.truncate(cache, 64 * MIB)
    assert left(cache) == []


def test_where_not_every_process_could_be_looked_at_nothing_is_said(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_scan.Allowance, "is_spent", True)
    assert left(cache) == []


def test_another_users_file_is_left_to_root(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    assert left(cache) == []


def test_files_of_huge_pages_count_wherever_they_are_mounted(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/7/fd").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("30 1 0:40 / /mnt/huge rw - hugetlbfs none rw,pagesize=2M\n")
    (tmp_path / "mnt/huge/server").mkdir(parents=True)
    file = tmp_path / "mnt/huge/server/kv"
    file.write_bytes(b"x" * 2 * MIB)
    assert [seen.path for seen in left_files(Proc.below(tmp_path))] == ["/mnt/huge/server/kv"]
    (tmp_path / "proc/7/fd/3").symlink_to(file)
    assert left_files(Proc.below(tmp_path)) == ()


def test_a_series_looks_every_30_seconds(cache: Path) -> None:
    now = [100.0]
    known = LeftFiles(clock=lambda: now[0])

    def is_named() -> bool:
        return str(cache) in [file.path for file in known.look(HERE)]

    assert is_named()
    with cache.open():
        assert is_named()
        now[0] += AGAIN_SECONDS
        assert not is_named()
