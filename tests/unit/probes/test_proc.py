"""The reader of system files: text or a reason, never an exception."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.probes.answer import Answer
from pinscope.probes.proc import Fields, Proc, count_in_both, ranges, whole


def test_a_file_is_found_below_the_folder_of_its_kind(tmp_path: Path) -> None:
    for place in ("p/meminfo", "s/kernel/x", "t/etc/os-release"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place)
    proc = Proc(tmp_path / "p", tmp_path / "s", tmp_path / "t")
    assert proc.read("/proc/meminfo").value == "p/meminfo"
    assert proc.read("/sys/kernel/x").value == "s/kernel/x"
    assert proc.read("/etc/os-release").value == "t/etc/os-release"


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
    assert sorted(proc.links("/proc/7/fd").value or ()) == ["/dev/null", "socket:[5]"]
    assert proc.link("/proc/7/fd/1").value == "socket:[5]"
    assert proc.links("/proc/8/fd").reason == "/proc/8/fd is not there"
    assert proc.links("/proc/7/fd/2").reason == "/proc/7/fd/2: Not a directory"
    assert "Invalid argument" in (proc.link("/proc/7/fd/2").reason or "")
    for path in ("/proc/../x", "/proc/a\0b"):
        assert proc.links(path).reason is not None
        assert proc.link(path).reason is not None


def test_a_glance_gives_the_whole_text_or_none(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    proc = Proc.below(tmp_path)
    for length in (0, 5, 2**16 - 1, 2**16, 2**17 + 3):  # the groups of a process may fill pages of its status
        (tmp_path / "proc/text").write_text("é" + "x" * length)
        assert proc.glance("/proc/text") == ("é" + "x" * length).encode()
    for path in ("/proc/nothing", "/proc", "/proc/../x", "/proc/a\0b", "relative"):
        assert proc.glance(path) is None


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


def test_lines_without_a_colon_are_read_too() -> None:
    fields = Fields("/proc/vmstat", Answer("nr_free_pages 12\nnr_foll_pin_acquired 7\n"))
    assert fields.amount("nr_foll_pin_acquired").value == 7


@pytest.mark.parametrize("text", ["-1 kB", "1.5 kB", "many kB", "", "1 MB", "٣ kB", "9" * 21])
def test_a_number_that_makes_no_sense_is_missing_not_zero(text: str) -> None:
    answer = Fields("/proc/meminfo", Answer(f"MemTotal: {text}\n")).amount("MemTotal")
    assert answer.value is None
    assert answer.reason == "MemTotal in /proc/meminfo is not a number"


def test_of_a_repeated_key_the_first_line_counts() -> None:
    assert Fields("/proc/cpuinfo", Answer("model name: A\n\nmodel name: B\n")).text("model name").value == "A"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", ((0, 0),)), ("0-3,8\n", ((0, 3), (8, 8))), ("3-1", None), ("", None), ("0-", None), ("a", None)],
)
def test_kernel_lists(text: str, expected: tuple[tuple[int, int], ...] | None) -> None:
    assert ranges(text) == expected


@given(st.sets(st.integers(0, 40)), st.sets(st.integers(0, 40)))
def test_counting_in_two_lists_is_the_size_of_the_intersection(one: set[int], other: set[int]) -> None:
    assert count_in_both(tuple((n, n) for n in one), tuple((n, n) for n in other)) == len(one & other)


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
    proc.glance(f"/proc/{path}")
    proc.exists(path)
    proc.names(path)
    proc.free_bytes(f"/x/{path}")


def test_an_answer_has_a_value_or_a_reason_and_never_both() -> None:
    with pytest.raises(ValueError, match="either"):
        Answer("x", "y")
    with pytest.raises(ValueError, match="either"):
        Answer(None)


def test_zero_and_empty_are_values() -> None:
    assert Answer(0).then(lambda number: number + 0, "none").value == 0
    missing: dict[str, str] = {}
    assert Answer(0).note(missing, "field") == 0
    assert missing == {}
