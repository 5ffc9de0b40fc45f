"""What memory of the host copies come from: seen in a program before each first copy, under a stand-in for CUPTI."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pinscope.tracing.source_memory import of_site
from tests.unit.tracing.test_recorder import record

SIZE = 8 << 20
MEMORY = f"""
import mmap
SIZE = {SIZE}
def address(of): return ctypes.addressof(ctypes.c_char.from_buffer(of))
def fresh(): return mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
def in_two():
    memory = fresh()
    memory.madvise(mmap.MADV_HUGEPAGE, mmap.PAGESIZE)
    return memory
def touched():
    memory = fresh()
    memory[:] = bytes(SIZE)
    return memory
def shared(): return mmap.mmap(-1, SIZE)
def of_file(cached):
    file = open("weights.bin", "w+b")
    file.write(bytes(SIZE))
    os.fsync(file.fileno())
    if not cached: os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return mmap.mmap(file.fileno(), SIZE, access=mmap.ACCESS_COPY)
"""


def looks(library: Path, folder: Path, program: str) -> list[Any]:
    seen = record(library, folder, f"os.chdir({str(folder)!r})\n{MEMORY}{program}")
    assert (seen.exit_code, seen.stderr) == (0, "")
    assert not (seen.spool.folder / "fault").exists()
    return list(seen.spool.memory())


@pytest.mark.parametrize(
    ("made", "mapping", "untouched", "uncached"),
    [
        ("fresh()", "anonymous", 1.0, None), ("touched()", "anonymous", 0.0, None), ("shared()", "shared", 1.0, None),
        ("of_file(True)", "file", 1.0, 0.0), ("of_file(False)", "file", 1.0, 1.0), ("in_two()", "anonymous", 1.0, None),
    ],
)  # fmt: skip
def test_the_memory_of_a_copy_is_seen_as_it_was_before_the_copy(
    made: str, mapping: str, untouched: float, uncached: float | None, library: Path, tmp_path: Path
) -> None:
    if uncached and os.statvfs(tmp_path).f_fsid == os.statvfs("/dev/shm").f_fsid:
        pytest.skip("files of a file system in memory are never elsewhere")
    (look,) = looks(library, tmp_path, f"m = {made}\ncopy_of(address(m), SIZE, PAGEABLE, DEVICE)")
    seen = of_site([look])
    assert (seen["mapping"], seen["untouched_share"], seen["uncached_share"]) == (mapping, untouched, uncached)
    assert seen["mapped_file"] == (str(tmp_path / "weights.bin") if mapping == "file" else None)


def test_of_a_line_the_first_large_copy_and_the_fourth_are_looked_at(library: Path, tmp_path: Path) -> None:
    program = "m = fresh()\nfor n in range(1000): copy_of(address(m), SIZE if n > 500 else 64, PAGEABLE, DEVICE)"
    first, fourth = looks(library, tmp_path, program)
    assert (first["correlation"], fourth["correlation"]) == (502, 505)


def test_a_program_without_descriptors_left_or_with_a_wrong_address_runs_on(library: Path, tmp_path: Path) -> None:
    program = """
import resource
copy_of(1 << 46, SIZE, PAGEABLE, DEVICE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, 4096))
copy_of(address(fresh()), SIZE, PAGEABLE, DEVICE)
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
"""
    assert looks(library, tmp_path, program) == []


LOOK = {"bytes": 100, "mapping": "file", "path": "/srv/a.bin", "pages": 10, "untouched": 5, "uncached": 0,
        "huge_bytes": None}  # fmt: skip


def test_of_different_memory_that_of_which_most_was_copied_counts() -> None:
    other = {**LOOK, "bytes": 150, "mapping": "anonymous", "path": None, "uncached": None, "huge_bytes": 150}
    assert of_site([LOOK, other])["mapping"] == "anonymous"
    assert of_site([LOOK, other])["huge_share"] == 1.0
    twice = of_site([LOOK, other, {**LOOK, "untouched": 0}])
    assert (twice["mapped_file"], twice["untouched_share"], twice["huge_share"]) == ("/srv/a.bin", 0.25, None)


def test_without_a_look_nothing_is_said() -> None:
    assert of_site([]) == {}
