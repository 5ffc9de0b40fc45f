"""Records that are moved out of a spool: each once, also where there was no room for them meanwhile."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pinscope.tracing.spool import RecordFiles
from tests.unit.tracing.test_spool import allocation, kernel, spool


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_buffer_for_which_there_is_no_room_stays_and_is_kept_once_later(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    seen = spool(tmp_path / "spool")
    files = RecordFiles(seen, tmp_path)
    allocations = b"".join(allocation(number) for number in range(100))
    (seen.folder / "buffer.000000.done").write_bytes(kernel(1) + allocations)
    with files_of_at_most(1000), pytest.raises(OSError, match="File too large"):
        files.take()
    assert [len(files.table(name)) for name in ("kernels", "allocations")] == [0, 0]
    files.take()
    assert len(files.table("kernels")) == 1
    assert files.table("allocations")["correlation_id"].tolist() == list(range(100))
    assert files.records == 101


def test_no_end_is_before_its_start(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    seen = spool(tmp_path / "spool")
    (seen.folder / "buffer.000000.done").write_bytes(kernel(1, 50, 20) + kernel(2, 50, 60) + kernel(3, 50, 0))
    files = RecordFiles(seen, tmp_path)
    files.take()
    assert files.table("kernels")["end"].tolist() == [50, 60, 0]


def test_a_kernel_that_cupti_could_not_time_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    seen = spool(tmp_path / "spool")
    (seen.folder / "buffer.000000.done").write_bytes(kernel(1, 0, 0) + kernel(2, 0, 60) + kernel(3, 50, 60))
    files = RecordFiles(seen, tmp_path)
    files.take()
    assert files.table("kernels")["start"].tolist() == [50]
