"""Every read of a system file is bounded before it is made, and made in one place."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.probes.proc import (
    MOST_MAPS_BYTES,
    MOST_OPEN_FILES,
    MOST_SYSTEM_FILE_BYTES,
    Allowance,
    Proc,
    list_names,
    most_bytes,
    read_bytes,
    read_links,
)
from pinscope.probes.process_scan import Remembered, read_processes
from tests.data.synthetic_host import CUDA_FILES, SyntheticHost, zero

ROOT = Path(__file__).parents[3]
MIB = 2**20
READERS = {
    "pinscope.probes.proc": "it is where files are read",
    "pinscope.probes.driver_library": "the beginning of a library",
    "pinscope.probes.tracefs": "the kernel's own trace, in pieces",
    "pinscope.live.tracker": "tables of a library",
}
"""Modules of probes/ and live/ that open files, and what."""
OPENING = {"open", "read_text", "read_bytes", "readlink", "listdir", "scandir", "iterdir", "glob", "rglob", "walk"}


def opening_calls(module: Path) -> Iterator[str]:
    """Functions by which a module opens or lists files by itself, called or handed on."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Name) and node.id == "open":
            yield f"line {node.lineno}: open"
        if isinstance(node, ast.Attribute) and node.attr in OPENING:
            owner = ast.unparse(node.value)
            if owner.split(".")[0] != "self":
                yield f"line {node.lineno}: {owner}.{node.attr}"


def test_no_probe_reads_files_but_through_the_bounded_reader() -> None:
    found = {}
    for room in ("probes", "live"):
        for path in sorted((ROOT / "pinscope" / room).rglob("*.py")):
            calls = list(opening_calls(path))
            if calls:
                found[".".join(path.relative_to(ROOT).with_suffix("").parts)] = calls
    assert {name: calls for name, calls in found.items() if name not in READERS} == {}
    assert found.keys() == READERS.keys()  # who opens files no longer is to be struck off


@pytest.mark.parametrize("text", ["open('x')", "Path('x').read_text()", "os.open('x', 0)", "os.listdir('/proc')"])
def test_a_planted_read_is_found(tmp_path: Path, text: str) -> None:
    (tmp_path / "probe.py").write_text(f"def probe():\n    return {text}\n")
    assert len(list(opening_calls(tmp_path / "probe.py"))) == 1


def test_each_file_has_a_limit() -> None:
    assert most_bytes("/proc/17/maps") == MOST_MAPS_BYTES
    assert (
        most_bytes("/proc/17/cmdline") == most_bytes("/proc/17/task/18/comm") == most_bytes("/proc/self/stat") == 2**14
    )
    assert most_bytes("/proc/meminfo") == most_bytes("/sys/fs/cgroup/memory.stat") == MOST_SYSTEM_FILE_BYTES


def test_of_a_file_without_end_as_much_is_read_as_is_allowed(tmp_path: Path) -> None:
    with (tmp_path / "long").open("wb") as file:
        file.truncate(2**40)
    assert read_bytes(str(tmp_path / "long"), 1000) == (bytes(1000), False)
    (tmp_path / "short").write_bytes(bytes(1000))
    assert read_bytes(str(tmp_path / "short"), 1000) == (bytes(1000), True)
    assert read_bytes(str(tmp_path / "short"), 999) == (bytes(999), False)


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert read_bytes(str(tmp_path / "pipe"), 10) == (b"", True)


def test_of_a_folder_without_end_so_many_are_listed(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / str(number)).symlink_to(f"/dev/{number}")
    assert len(list_names(str(tmp_path), 7)) == len(read_links(str(tmp_path), 7)) == 7
    assert len(read_links(str(tmp_path))) == 20


def test_a_file_that_is_too_long_is_missing_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cgroup").write_text("0::/" + "x" * 2**17)
    answer = Proc.below(tmp_path).read("/proc/7/cgroup")
    assert answer.reason == "/proc/7/cgroup is longer than the 64 KiB that are read of it"


def test_one_users_processes_do_not_take_the_turns_of_anothers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = SyntheticHost(tmp_path)
    many = [host.cuda_process([zero(64 * MIB, 10 + number)], user=1000) for number in range(20)]
    one = host.cuda_process([zero(64 * MIB, 1)], user=1001)
    maps = (tmp_path / f"proc/{one}/maps").stat().st_size
    monkeypatch.setattr("pinscope.probes.process_scan.Allowance", lambda: Allowance(maps_bytes=3 * maps - 1))
    found = read_processes(host.proc).value
    assert found is not None
    read = {seen.pid for seen in found.seen if seen.maps is not None and seen.maps.value is not None}
    assert one in read
    assert len(read) == 3
    reasons = {seen.maps.reason for seen in found.seen if seen.pid in set(many) - read and seen.maps is not None}
    assert all(
        reason and reason.endswith("a snapshot reads only so much of other processes' files") for reason in reasons
    )


def test_what_nvml_names_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = SyntheticHost(tmp_path)
    pids = [host.cuda_process([zero(64 * MIB, 10 + number)], user=number) for number in range(9)]
    monkeypatch.setattr("pinscope.probes.process_scan.Allowance", lambda: Allowance(maps_bytes=1))
    found = read_processes(host.proc, {pids[5]}).value
    assert found is not None
    assert [one.pid for one in found.seen if one.maps is not None and one.maps.value is not None] == [pids[5]]


def test_a_process_with_too_many_open_files_is_counted_unless_nvidias_are_among_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_OPEN_FILES >= 1000
    monkeypatch.setattr("pinscope.probes.process_scan.MOST_OPEN_FILES", 4)
    host = SyntheticHost(tmp_path)
    cuda = host.process(files=CUDA_FILES, mappings=[zero(MIB, 1)])
    host.process(files=[f"socket:[{number}]" for number in range(4)], mappings=[zero(MIB, 2)])
    found = read_processes(host.proc).value
    assert found is not None
    assert ([one.pid for one in found.seen], found.skipped, found.closed) == ([cuda], 1, 0)


def test_without_processor_time_left_nothing_more_is_read_and_the_next_snapshot_goes_on_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spent(Allowance):
        asked = 0

        @property
        def is_spent(self) -> bool:
            self.asked += 1
            return self.asked == 2

    host, remembered = SyntheticHost(tmp_path), Remembered()
    pids = [host.process(VmLck=MIB, pid=10 + number) for number in range(4)]
    monkeypatch.setattr("pinscope.probes.process_scan.Allowance", Spent)
    monkeypatch.setattr("pinscope.probes.process_scan._CHECK_EVERY", 2)
    seen = []
    for _ in range(2):
        found = read_processes(host.proc, (), remembered).value
        assert found is not None
        assert found.unread == 2
        seen.append({one.pid for one in found.seen})
    assert seen[0] | seen[1] == set(pids)
