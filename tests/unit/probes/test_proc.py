"""The reader of system files: text or a reason, never an exception."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.probes.proc import (
    MOST_FILE_BYTES,
    MOST_OPEN_FILES,
    Allowance,
    Answer,
    Fields,
    Proc,
    ranges,
    read_bytes,
    read_links,
    whole,
)
from pinscope.probes.process_scan import read_processes
from tests.data.synthetic_host import CUDA_FILES, SyntheticHost, zero


def test_a_file_is_found_below_the_folder(tmp_path: Path) -> None:
    for place in ("proc/meminfo", "etc/os-release"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place)
    proc = Proc.below(tmp_path)
    assert proc.read("/proc/meminfo").value == "proc/meminfo"
    assert proc.read("/etc/os-release").value == "etc/os-release"


def test_what_cannot_be_read_has_a_reason_that_names_the_real_path(tmp_path: Path) -> None:
    proc = Proc.below(tmp_path)
    (tmp_path / "proc").mkdir()
    assert proc.read("/proc/vmstat") == Answer.missing("/proc/vmstat is not there")
    assert "directory" in (proc.read("/proc").reason or "")
    assert proc.read("/proc/a\0b").reason is not None
    assert proc.read(f"/proc/{'x' * 5000}").reason is not None
    assert not proc.exists("/proc/a\0b")
    assert proc.names("/proc/nothing") == ()


def test_a_file_without_permission_has_a_reason(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may read everything; nobody may not
    try:
        reason = Proc.below(tmp_path).read("/secret").reason
    finally:
        os.seteuid(user)
    assert reason == "/secret may not be read by this user"


def test_links_of_a_folder_are_told_and_what_vanishes_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "proc" / "7" / "fd"
    folder.mkdir(parents=True)
    (folder / "0").symlink_to("/dev/null")
    (folder / "1").symlink_to("socket:[5]")
    (folder / "2").write_text("no link")
    proc = Proc.below(tmp_path)
    assert sorted((proc.links("/proc/7/fd").value or {}).values()) == ["/dev/null", "socket:[5]"]
    assert proc.link("/proc/7/fd/1").value == "socket:[5]"
    assert proc.links("/proc/8/fd").reason == "/proc/8/fd is not there"
    assert proc.links("/proc/7/fd/2").reason == "/proc/7/fd/2: Not a directory"
    assert "Invalid argument" in (proc.link("/proc/7/fd/2").reason or "")
    for path in ("/proc/../x", "/proc/a\0b"):
        assert proc.links(path).reason is not None
        assert proc.link(path).reason is not None


def test_the_whole_text_is_read_or_none(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    proc = Proc.below(tmp_path)
    for length in (0, 5, 2**16 - 1, 2**16, 2**17 + 3):  # the groups of a process may fill pages of its status
        (tmp_path / "proc/text").write_text("é" + "x" * length)
        assert proc.read("/proc/text").value == "é" + "x" * length
    for path in ("/proc/nothing", "/proc", "/proc/../x", "/proc/a\0b", "relative"):
        assert proc.read(path).value is None


def test_only_numbers_are_processes(tmp_path: Path) -> None:
    for name in ("1", "22", "self", "٣", "-3", "0x1"):
        (tmp_path / "proc" / name).mkdir(parents=True)
    assert sorted(Proc.below(tmp_path).pids().value or ()) == [1, 22]


@pytest.mark.parametrize("path", ["/proc/../etc/passwd", "/sys/fs/cgroup/../../../etc/passwd", "etc/passwd", ""])
def test_a_path_never_leads_out_of_the_tree(tmp_path: Path, path: str) -> None:
    assert Proc.below(tmp_path).read(path).reason is not None


def test_kib_lines_are_bytes_and_plain_lines_are_counts() -> None:
    fields = Fields("/proc/meminfo", Answer("MemTotal:   24684096 kB\nHugePages_Total:       3\n"))
    assert fields.amount("MemTotal").value == 24684096 * 1024
    assert fields.amount("HugePages_Total").value == 3
    assert fields.amount("Missing").reason == "/proc/meminfo has no line Missing"


def test_a_number_that_makes_no_sense_is_missing_not_zero() -> None:
    for text in ["-1 kB", "1.5 kB", "many kB", "", "1 MB", "٣ kB", "9" * 21]:
        answer = Fields("/proc/meminfo", Answer(f"MemTotal: {text}\n")).amount("MemTotal")
        assert answer.value is None
        assert answer.reason == "MemTotal in /proc/meminfo is not a number"


def test_kernel_lists() -> None:
    for text, expected in [
        ("0", ((0, 0),)),
        ("0-3,8\n", ((0, 3), (8, 8))),
        ("3-1", None),
        ("", None),
        ("0-", None),
        ("a", None),
    ]:
        assert ranges(text) == expected


@given(st.text())
def test_no_text_makes_the_parsers_raise(text: str) -> None:
    fields = Fields("/proc/x", Answer(text) if text else Answer.missing("empty"))
    for line in text.splitlines():
        fields.amount(line.partition(":")[0].strip())
    whole(text)
    ranges(text)


@given(st.text())
def test_no_path_makes_the_reader_raise(path: str) -> None:
    proc = Proc.below(Path(__file__).parent)
    proc.read(path)
    proc.read(f"/proc/{path}")
    proc.exists(path)
    proc.names(path)
    proc.free_bytes(f"/x/{path}")


def test_an_answer_has_a_value_or_a_reason_and_never_both() -> None:
    with pytest.raises(ValueError, match="either"):
        Answer("x", "y")
    with pytest.raises(ValueError, match="either"):
        Answer(None)


ROOT = Path(__file__).parents[3]
MIB = 2**20
READERS = {
    "pinscope.probes.proc": "it is where files are read",
    "pinscope.probes.uprobes": "the beginning of a library",
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
    assert len(read_links(str(tmp_path), 7)) == 7
    assert len(read_links(str(tmp_path))) == 20


def test_a_file_that_is_too_long_is_missing_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/maps").write_text("x" * (MOST_FILE_BYTES + 1))
    answer = Proc.below(tmp_path).read("/proc/7/maps")
    assert answer.reason == "/proc/7/maps is longer than the 8 MiB that are read of it"


def test_what_nvml_names_comes_first_while_there_is_processor_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Spent(Allowance):
        asked = 0

        @property
        def is_spent(self) -> bool:
            self.asked += 1
            return self.asked == 2 or self.asked > 4

    host = SyntheticHost(tmp_path)
    pids = [host.cuda_process([zero(64 * MIB, 10 + number)]) for number in range(3)]
    monkeypatch.setattr("pinscope.probes.process_scan.Allowance", Spent)
    found = read_processes(host.proc, {pids[2]}).value
    assert found is not None
    (named, other) = found.seen
    assert (named.pid, found.skipped) == (pids[2], 1)
    assert named.maps is not None
    assert named.maps.value is not None
    assert other.maps is not None
    assert (other.maps.reason or "").endswith("a snapshot reads only so much of other processes' files")
    assert Allowance(seconds=-1.0).is_spent
    assert not Allowance().is_spent


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
