"""The ordinary process as a real one: what it feels, and what happens when it dies, hangs or loses its file."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from pinscope.errors import MeasurementFailed
from pinscope.experiments.pressure.ways import Workers, ordinary
from pinscope.lab.child_processes import fault_nanoseconds, folder_for
from pinscope.probes.containers import IN_MEMORY, file_system
from pinscope.probes.proc import Proc
from tests.data.waiting import until

MIB = 2**20


def others() -> list[psutil.Process]:
    """The ordinary processes of this test."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            found += [child] if "pinscope.lab.child_processes" in child.cmdline() else []
    return found


def bystander(
    folder: str | None, file: int, sample: int, seconds: float, check: Callable[[], None], grace: float = 60.0
) -> Workers:
    """Beside a run."""
    child = ordinary("the ordinary process beside the run", folder, file_bytes=file, sample_bytes=sample)
    return Workers({"ordinary": child}, seconds, check, grace)


def its_file(process: psutil.Process) -> Path:
    """The nameless file, through its descriptor."""
    descriptors = Path(f"/proc/{process.pid}/fd").iterdir()
    return next(path for path in descriptors if "(deleted)" in str(path.readlink()))


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Workers]:
    with bystander(str(tmp_path), 8 * MIB, MIB, 0.2, lambda: None, grace=2.0) as started:
        yield started
    assert others() == []


def test_it_touches_every_page_and_reads_its_file_from_the_cache(tmp_path: Path) -> None:
    with bystander(str(tmp_path), 8 * MIB, MIB, 5.0, lambda: None) as beside:  # time for all, on any machine
        felt = beside.feel()
        assert list(tmp_path.iterdir()) == []  # the file has no name
    assert felt["fault_pages"] == MIB // os.sysconf("SC_PAGE_SIZE")
    assert 0 < felt["fault_median_seconds"] <= felt["fault_longest_seconds"] < 1
    assert felt["file_cached_bytes"] == felt["read_bytes"] == 8 * MIB
    assert (felt["read_seconds"] or 0) > 0


def test_it_tells_that_its_file_was_dropped_from_the_cache(beside: Workers, tmp_path: Path) -> None:
    if file_system(str(tmp_path)).value in IN_MEMORY:
        pytest.skip("the temporary folder is in memory: its files cannot leave the cache")
    with its_file(others()[0]).open("rb") as file:
        os.posix_fadvise(file.fileno(), 4 * MIB, 0, os.POSIX_FADV_DONTNEED)
    first, second = beside.feel(), beside.feel()
    assert (first["file_cached_bytes"] or 0) <= 4 * MIB  # a little more may go: caches drop whole folios
    assert second["file_cached_bytes"] == 8 * MIB  # the first round read it again


def test_fresh_memory_is_touched_no_longer_than_allowed() -> None:
    ticks = iter(range(0, 10**12, 10**6))  # each look at this clock takes a millisecond
    taken = fault_nanoseconds(MIB, 0.02, lambda: next(ticks))
    assert 8 <= len(taken) <= 12
    assert set(taken) == {10**6}


def test_one_that_hangs_is_named_after_its_time(beside: Workers) -> None:
    others()[0].suspend()
    with pytest.raises(MeasurementFailed, match=r"the ordinary process beside the run did not answer within 2\.2 s"):
        beside.feel()
    others()[0].kill()  # leaving without an error would wait for it to end by itself


def test_a_file_that_shrinks_under_it_ends_the_run(beside: Workers) -> None:
    os.truncate(its_file(others()[0]), 2 * MIB)
    with pytest.raises(MeasurementFailed, match=r"broke off while .*: its file has become shorter"):
        beside.feel()


def test_a_folder_that_is_gone_ends_the_run_in_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(MeasurementFailed, match="broke off while getting ready: FileNotFoundError") as caught,
        bystander(str(tmp_path / "gone"), MIB, MIB, 0.2, lambda: None),
    ):
        pass
    assert "\n" not in str(caught.value)
    assert others() == []


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """A starter that is killed cannot tidy up: the kernel ends its child."""
    read, write = os.pipe()
    starter = os.fork()
    if starter == 0:  # pragma: no cover - the other process
        try:
            with bystander(str(tmp_path), MIB, MIB, 0.2, lambda: None):
                os.write(write, json.dumps([child.pid for child in others()]).encode())
                time.sleep(60)
        finally:
            os._exit(1)
    (pid,) = json.loads(os.read(read, 1000))
    os.kill(starter, signal.SIGKILL)
    os.waitpid(starter, 0)
    os.close(read)
    os.close(write)
    until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie")


def test_a_file_goes_where_the_cache_can_drop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / {} rw - tmpfs t rw\n"
    monkeypatch.setattr("tempfile.tempdir", "/fast")
    for name in ("proc/self", "fast", "var/tmp"):
        (tmp_path / name).mkdir(parents=True)
    mountinfo = tmp_path / "proc/self/mountinfo"
    proc = Proc.below(tmp_path)

    mountinfo.write_text(mounts.format("/elsewhere"))
    assert folder_for(MIB, proc) == ("/fast", "")
    mountinfo.write_text(mounts.format("/fast"))
    assert folder_for(MIB, proc) == ("/var/tmp", "")
    folder, reason = folder_for(2**60, proc)
    assert folder is None
    assert reason.startswith("/fast is in memory itself (tmpfs); /var/tmp has ")
