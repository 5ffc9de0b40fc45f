"""The kernel's tracing files: what is ours is made, read and removed, and nothing else is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.errors import MeasurementFailed
from pinscope.probes import tracefs
from pinscope.probes.proc import Proc
from pinscope.probes.tracefs import (
    MOUNT_COMMAND,
    RETURN_PROBES_VARIABLE,
    TraceInstance,
    remove_leftovers,
    tracing_access,
    tracing_folder,
)
from pinscope.probes.uprobes import Executed, parse_trace
from tests.data.fake_driver import left_by
from tests.unit.probes.conftest import Plant

NOBODY = 2**22 + 1


@pytest.fixture
def instance(kernel: Path) -> Iterator[TraceInstance]:
    one = TraceInstance(kernel)
    one.open()
    yield one
    one.close()
    one.close()  # the second finds nothing
    assert left_by(os.getpid(), kernel) == set()


def library_and_offset() -> tuple[str, int]:
    """A library that this process uses, and the offset of some code in it."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split()
        if len(fields) == 6 and fields[1] == "r-xp" and "/libm" in fields[5]:
            return fields[5], int(fields[2], 16) + 64
    raise AssertionError("this Python uses no libm")


def test_where_tracefs_is_mounted_is_read_from_the_mounts(plant: Plant) -> None:
    text = f"25 20 0:9 / /x rw - debugfs none rw\n\ntracefs\n{MOUNTED.format('/y')}"
    assert tracing_folder(plant({"/proc/self/mountinfo": text})).value == Path("/y")


def test_a_program_in_a_process_s_place_is_traced_by_its_pid(instance: TraceInstance) -> None:
    with subprocess.Popen(["/bin/sh", "-c", "exec sleep 0"]) as child:
        child.wait()
    events = [event for event in parse_trace(instance.read()) if isinstance(event, Executed)]
    assert [event.process for event in events if event.process == child.pid] == [child.pid, child.pid]


def test_a_path_cannot_forge_events(instance: TraceInstance, tmp_path: Path) -> None:
    folder = tmp_path / "x\n      forged-1       (      1) [000] ..... 1.0: sched_process_exec: filename="
    folder.mkdir()
    honest = tmp_path / "honest"
    for program in (folder / "true", honest):
        shutil.copy("/bin/true", program)
        subprocess.run([program], check=True)
    text = instance.read()
    assert f"filename={honest} " in text
    assert "forged" not in text


def test_whole_lines_are_given_and_the_rest_is_kept(instance: TraceInstance) -> None:
    for _ in range(3):
        subprocess.run(["/bin/true"], check=True)
    text = instance.read()
    assert text.endswith("\n")
    assert text.count("filename=/bin/true") == 3
    assert instance.read() == "" or "filename=/bin/true" not in instance.read()


def test_a_group_that_the_kernel_refuses_leaves_nothing(instance: TraceInstance, kernel: Path) -> None:
    path, offset = library_and_offset()
    with pytest.raises(OSError, match="Invalid argument"):
        instance.add_group(1, lambda group: [f"p:{group}/good {path}:0x{offset:x}", f"p:{group}/bad {path}:0xzz"])
    assert not any("_1/" in name for name in left_by(os.getpid(), kernel))


def test_an_instance_that_somebody_reads_says_how_to_remove_it(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefs, "_BUSY_SECONDS", 0.1)
    one = TraceInstance(kernel)
    one.open()
    (name,) = left_by(os.getpid(), kernel)
    with (kernel / "instances" / name / "trace").open("rb"), pytest.raises(MeasurementFailed, match=name):
        one.close()
    one.close()
    assert left_by(os.getpid(), kernel) == set()


def test_an_event_that_somebody_else_uses_keeps_only_its_own_group(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracefs, "_BUSY_SECONDS", 0.1)
    path, offset = library_and_offset()
    one = TraceInstance(kernel)
    one.open()
    used, other = (one.add_group(number, lambda group: [f"p:{group}/e {path}:0x{offset:x}"]) for number in (1, 2))
    strangers = kernel / "instances" / f"others-{NOBODY}"
    strangers.mkdir()
    try:
        tracefs._put(strangers / "events" / used / "enable", "1")
        with pytest.raises(MeasurementFailed, match="could not be removed"):
            one.close()
        assert left_by(os.getpid(), kernel) == {f"p:{used}/e"}
        assert other not in (kernel / "uprobe_events").read_text()
    finally:
        tracefs._put(strangers / "events/enable", "0")
        strangers.rmdir()
    one.close()
    assert left_by(os.getpid(), kernel) == set()


def test_leftovers_of_processes_that_are_gone_are_removed_and_others_stay(
    instance: TraceInstance, kernel: Path
) -> None:
    path, offset = library_and_offset()
    own = instance.add_group(1, lambda group: [f"p:{group}/own {path}:0x{offset:x}"])
    gone = [f"pinscope-{NOBODY}-5", f"pinscope-{os.getpid()}-1"]  # a pid of nobody; ours, of another process before
    strangers = f"others-{NOBODY}"
    for name in (*gone, strangers):
        (kernel / "instances" / name).mkdir()
    groups = [f"pinscope_{NOBODY}_5_1", f"pinscope_{os.getpid()}_1_1", f"others_{NOBODY}"]
    try:
        for group in groups:
            tracefs._put(kernel / "uprobe_events", f"p:{group}/one {path}:0x{offset:x}", append=True)
        tracefs._put(kernel / "instances" / gone[0] / "events" / groups[0] / "enable", "1")
        for _ in range(2):  # a second time there is nothing to do
            remove_leftovers(kernel)
            assert not any((kernel / "instances" / name).exists() for name in gone)
            assert (kernel / "instances" / strangers).exists()
            defined = (kernel / "uprobe_events").read_text()
            assert [group in defined for group in (*groups, own)] == [False, False, True, True]
    finally:
        tracefs._remove_group(kernel, groups[2])
        (kernel / "instances" / strangers).rmdir()


MOUNTED = "25 20 0:11 / {} rw,relatime - tracefs tracefs rw\n"
ROOT = "Name:\tpython\nCapEff:\t000001ffffffffff\n"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host on which probes can be set."""
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    (tmp_path / "proc/self/status").write_text(ROOT)
    (tmp_path / "tracing").mkdir()
    (tmp_path / "tracing/uprobe_events").write_text("")
    (tmp_path / "proc/self/mountinfo").write_text(
        "24 20 0:5 / /proc rw - proc proc rw\n" + MOUNTED.format(tmp_path / "tracing")
    )
    (tmp_path / "sys/kernel/security").mkdir(parents=True)
    (tmp_path / "sys/kernel/security/lockdown").write_text("none [integrity] confidentiality\n")
    (tmp_path / "sys/kernel/tracing").mkdir()
    return tmp_path


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_where_nothing_stands_in_the_way_it_gives_the_folder(host: Path, machine: str) -> None:
    assert tracing_access(Proc.below(host), machine).value == host / "tracing"


def no_root(capabilities: str) -> tuple[str, str, str]:
    return "proc/self/status", f"CapEff:\t{capabilities}\n" if capabilities else "", "needs root"


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("proc/self/ns/pid", "link to pid:[4026532000]", "--pid=host"),
        *map(no_root, ["0000000000000000", "00000000a80425fb", "x", ""]),
        ("sys/kernel/security/lockdown", "none integrity [confidentiality]\n", "locked down"),
        ("proc/self/mountinfo", "24 20 0:5 / /proc rw - proc proc rw\ntracefs\n", f"'{MOUNT_COMMAND}'"),
        ("tracing/uprobe_events", None, "CONFIG_UPROBE_EVENTS"),
        ("sys/kernel/tracing", None, "no tracefs"),
    ],
)
def test_what_stands_in_the_way_is_named_in_a_line(host: Path, path: str, text: str | None, expected: str) -> None:
    place = host / path
    if place.is_dir():  # and it is mounted nowhere
        place.rmdir()
        (host / "proc/self/mountinfo").write_text("")
    else:
        place.unlink()
    if text is not None and text.startswith("link to "):
        place.symlink_to(text.removeprefix("link to "))
    elif text is not None:
        place.write_text(text)
    reason = tracing_access(Proc.below(host), "x86_64").reason or ""
    assert expected in reason
    assert "\n" not in reason


def test_an_unknown_processor_is_named(host: Path) -> None:
    assert "this processor is riscv64" in (tracing_access(Proc.below(host), "riscv64").reason or "")


@pytest.mark.parametrize(
    ("release", "machine", "refused"),
    [
        ("5.15.0-91-generic", "x86_64", False),
        ("6.10.14-arch1", "x86_64", False),
        ("6.11.0-9-generic", "x86_64", True),
        ("6.13.7", "x86_64", True),
        ("6.12.0", "aarch64", False),
        ("6.14.0-rc1", "x86_64", False),
        ("7.0.1", "x86_64", False),
        ("odd", "x86_64", False),
    ],
)
def test_a_kernel_whose_return_probes_kill_programs_in_a_sandbox_is_refused_unless_asked_for(
    host: Path, release: str, machine: str, refused: bool
) -> None:
    (host / "proc/sys/kernel").mkdir(parents=True)
    (host / "proc/sys/kernel/osrelease").write_text(f"{release}\n")
    answer = tracing_access(Proc.below(host), machine, {})
    assert (RETURN_PROBES_VARIABLE in (answer.reason or "")) == refused == (answer.value is None)
    assert tracing_access(Proc.below(host), machine, {RETURN_PROBES_VARIABLE: "1"}).value == host / "tracing"
