"""Each thing that keeps PinScope from setting probes is named, with what to do; nothing is changed by asking."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.probes.proc import Proc
from pinscope.probes.tracefs import MOUNT_COMMAND, RETURN_PROBES_VARIABLE, tracing_access

MOUNTED = "tracefs {} tracefs rw,relatime 0 0\n"
ROOT = "Name:\tpython\nCapEff:\t000001ffffffffff\n"


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host on which probes can be set."""
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026531836]")
    (tmp_path / "proc/self/status").write_text(ROOT)
    (tmp_path / "tracing").mkdir()
    (tmp_path / "tracing/uprobe_events").write_text("")
    (tmp_path / "proc/self/mounts").write_text("proc /proc proc rw 0 0\n" + MOUNTED.format(tmp_path / "tracing"))
    (tmp_path / "sys/kernel/security").mkdir(parents=True)
    (tmp_path / "sys/kernel/security/lockdown").write_text("none [integrity] confidentiality\n")
    (tmp_path / "sys/kernel/tracing").mkdir()
    return tmp_path


def reason(host: Path, machine: str = "x86_64") -> str:
    answer = tracing_access(Proc.below(host), machine)
    assert answer.reason is not None
    assert "\n" not in answer.reason
    return answer.reason


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_where_nothing_stands_in_the_way_it_gives_the_folder(host: Path, machine: str) -> None:
    assert tracing_access(Proc.below(host), machine).value == host / "tracing"


def test_an_unknown_processor_is_named(host: Path) -> None:
    assert "this processor is riscv64" in reason(host, "riscv64")


def test_a_container_with_process_ids_of_its_own_is_told_how_to_get_the_host_s(host: Path) -> None:
    (host / "proc/self/ns/pid").unlink()
    (host / "proc/self/ns/pid").symlink_to("pid:[4026532000]")
    assert "--pid=host" in reason(host)


@pytest.mark.parametrize("capabilities", ["0000000000000000", "00000000a80425fb", "x", ""])
def test_who_may_not_administer_is_told_to_be_root(host: Path, capabilities: str) -> None:
    (host / "proc/self/status").write_text(f"CapEff:\t{capabilities}\n" if capabilities else "")
    assert "needs root" in reason(host)


def test_a_kernel_locked_down_for_confidentiality_is_named(host: Path) -> None:
    (host / "sys/kernel/security/lockdown").write_text("none integrity [confidentiality]\n")
    assert "locked down" in reason(host)


def test_where_tracefs_is_not_mounted_the_exact_command_is_given_and_not_run(host: Path) -> None:
    (host / "proc/self/mounts").write_text("proc /proc proc rw 0 0\ntracefs\n")
    assert f"'{MOUNT_COMMAND}'" in reason(host)
    assert MOUNT_COMMAND == "mount -t tracefs tracefs /sys/kernel/tracing"


def test_a_kernel_without_tracing_or_without_probes_is_named(host: Path) -> None:
    (host / "tracing/uprobe_events").unlink()
    assert "CONFIG_UPROBE_EVENTS" in reason(host)
    (host / "proc/self/mounts").write_text("")
    (host / "sys/kernel/tracing").rmdir()
    assert "no tracefs" in reason(host)


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
