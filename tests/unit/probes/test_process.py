"""Processes are told apart, also when one has ended or its pid is used again."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.errors import NotPossible
from pinscope.probes.proc import Proc
from pinscope.probes.process import current_process, is_alive, process_of

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

WAITS = "import sys; print('ready', flush=True); sys.stdin.read()"


@contextmanager
def child(program: str = WAITS) -> Iterator[subprocess.Popen[str]]:
    """A Python child that says ready and then waits until its input closes."""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def test_this_process_is_alive_and_always_the_same() -> None:
    assert is_alive(current_process())
    assert current_process() == current_process()


def test_a_child_is_alive_until_it_ends() -> None:
    with child() as started:
        process = process_of(started.pid)
        assert process is not None
        assert is_alive(process)
        assert process.started >= current_process().started
    assert not is_alive(process)
    assert process_of(started.pid) is None


def test_a_zombie_is_not_alive() -> None:
    with child() as started:
        process = process_of(started.pid)
        assert process is not None
        started.kill()
        deadline = time.monotonic() + 10
        while ") Z" not in Path(f"/proc/{started.pid}/stat").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not is_alive(process)
        assert process_of(started.pid) is None


def test_a_name_full_of_parentheses_does_not_confuse() -> None:
    rename = "open('/proc/self/comm', 'w').write('a) Z (1 2'); "
    with child(rename + WAITS) as started:
        process = process_of(started.pid)
        assert process is not None
        assert process.started >= current_process().started
        assert is_alive(process)


def test_a_later_process_with_the_same_pid_is_another_one() -> None:
    process = current_process()
    assert not is_alive(process.model_copy(update={"started": process.started - 1}))


def test_a_process_of_another_boot_is_not_alive() -> None:
    assert not is_alive(current_process().model_copy(update={"boot_id": "another"}))


@pytest.mark.parametrize("pid", [0, -1, 2**31])
def test_an_impossible_pid_is_no_process(pid: int) -> None:
    assert process_of(pid) is None


def test_without_proc_this_process_cannot_be_named(plant: Plant) -> None:
    with pytest.raises(NotPossible, match="PinScope needs Linux"):
        current_process(plant({}))


@given(content=st.binary(max_size=300))
def test_no_content_of_the_file_makes_it_raise(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "stat"
    (folder / "proc" / "7").mkdir(parents=True, exist_ok=True)
    (folder / "proc" / "7" / "stat").write_bytes(content)
    assert process_of(7, Proc.below(folder)) is None


def test_fields_are_counted_from_the_end_of_the_name(plant: Plant) -> None:
    fields = ["S", *(str(number) for number in range(4, 22)), "4711", "23"]
    proc = plant({
        "/proc/7/stat": f"7 (x) {' '.join(fields)}\n",
        "/proc/sys/kernel/random/boot_id": "boot\n",
    })  # fmt: skip
    process = process_of(7, proc)
    assert process is not None
    assert (process.started, process.boot_id) == (4711.0, "boot")
