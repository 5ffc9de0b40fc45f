"""Who a process is."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest

from pinscope.probes.answer import Answer
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.process import (
    MOST_COMMAND_CHARACTERS,
    boot_time,
    command_line,
    container,
    group_of,
    start_ticks,
    start_time,
    user_name,
)
from tests.data.synthetic_host import BOOTED, SyntheticHost

ID = "0123456789ab" + "c" * 52


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (f"/system.slice/docker-{ID}.scope", "docker 0123456789ab"),
        (f"/docker/{ID}", "docker 0123456789ab"),
        (f"/machine.slice/libpod-{ID}.scope/container", "podman 0123456789ab"),
        (f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope", "containerd 0123456789ab"),
        (f"/kubepods.slice/kubepods-burstable.slice/crio-{ID}.scope", "cri-o 0123456789ab"),
        (f"/kubepods/burstable/pod9a/{ID}", "kubernetes 0123456789ab"),
        ("/lxc.payload.builder/init.scope", "lxc builder"),
        ("/lxc/builder", "lxc builder"),
        ("/machine.slice/systemd-nspawn@web.service/payload", "nspawn web"),
        ("/user.slice/user-1000.slice/session-2.scope", None),
        ("/", None),
        ("/../../docker", None),
    ],
)
def test_the_container_is_named_by_its_control_group(group: str, expected: str | None) -> None:
    assert container(group) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0::/a/b\n", "/a/b"),
        ("9:name=systemd:/\n4:memory:/process\n0::/\n", "/process"),
        ("4:cpu,memory:/m\n0::/unified\n", "/unified"),
        ("3:cpu:/only\n", None),
        ("nonsense", None),
        ("0::/\n", "/"),
    ],
)
def test_the_group_is_that_which_accounts_memory(tmp_path: Path, text: str, expected: str | None) -> None:
    host = SyntheticHost(tmp_path)
    pid = host.process(group=text)
    assert group_of(pid, host.proc.read(f"/proc/{pid}/cgroup")).value == expected


def test_a_command_line_is_words_without_secrets_and_not_endless(tmp_path: Path) -> None:
    host = SyntheticHost(tmp_path)
    pid = host.process("python")
    assert command_line(pid, host.proc).value == "python train.py"
    host.write(f"proc/{pid}/cmdline", "python\0train.py\0--hf-token\0abc\0--api-key=abc\0--tokenizer\0t5\0")
    assert command_line(pid, host.proc).value == "python train.py --hf-token *** --api-key=*** --tokenizer t5"
    host.write(f"proc/{pid}/cmdline", "x\0" * 10_000)
    assert len(command_line(pid, host.proc).value or "") == MOST_COMMAND_CHARACTERS
    host.write(f"proc/{pid}/cmdline", "")
    assert "is empty" in (command_line(pid, host.proc).reason or "")


def test_users_without_a_name_are_numbers() -> None:
    assert user_name(os.getuid()) == psutil.Process().username()
    assert user_name(4_000_000_123) == "4000000123"


def test_the_start_is_that_which_psutil_tells() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        started = start_time(child.pid, start_ticks(child.pid, HERE), boot_time(HERE)).value
        told = datetime.fromtimestamp(psutil.Process(child.pid).create_time(), UTC)
        child.communicate(b"\n")
    assert started is not None
    assert abs(started - told) <= timedelta(seconds=1)


def test_a_start_needs_the_boot_and_a_process(tmp_path: Path) -> None:
    host = SyntheticHost(tmp_path)
    pid = host.process(started=250)
    booted = boot_time(host.proc)
    assert booted.value == BOOTED
    begun = datetime.fromtimestamp(BOOTED + 250 / os.sysconf("SC_CLK_TCK"), UTC)
    ticks = start_ticks(pid, host.proc)
    assert start_time(pid, ticks, booted).value == begun
    assert start_time(pid, ticks, Answer.missing("no boot")).reason == "no boot"
    assert "is not there" in (start_time(1, start_ticks(1, Proc.below(tmp_path / "x")), booted).reason or "")
    huge = host.process(started=10**19)
    assert start_time(huge, start_ticks(huge, host.proc), booted).reason == f"/proc/{huge}/stat gives no time"
