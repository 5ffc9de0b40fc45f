"""The trial of return probes: this kernel's do no harm, and a kernel whose probes kill is found out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.probes import return_probe_trial
from pinscope.probes.proc import Proc
from pinscope.probes.return_probe_trial import URETPROBE, why_not_return_probes
from pinscope.probes.tracefs import TraceInstance
from tests.data.fake_driver import left_by, tracing
from tests.unit.probes.conftest import Plant

GETPPID = 110
"""A system call that the trial's program can be kept from for certain (x86-64)."""

pytestmark = [
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="only x86-64 returns from probes by a system call"),
    pytest.mark.xdist_group("tracefs"),
]


@pytest.fixture
def instance() -> Iterator[TraceInstance]:
    with tracing() as folder:
        one = TraceInstance(folder)
        one.open()
        try:
            yield one
        finally:
            one.close()
            assert left_by(os.getpid(), folder) == set()


def test_this_kernel_s_return_probes_do_no_harm(instance: TraceInstance) -> None:
    assert why_not_return_probes(instance) is None


def test_a_kernel_whose_return_probes_kill_is_refused(instance: TraceInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    monkeypatch.setattr(return_probe_trial, "_SANDBOXED", killed)
    reason = why_not_return_probes(instance)
    assert reason is not None
    assert "Linux 6.14" in reason


def test_a_trial_that_fails_for_another_reason_is_no_proof(
    instance: TraceInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(return_probe_trial, "_SANDBOXED", "raise SystemExit(7)")
    assert "ended with code 7" in str(why_not_return_probes(instance))
    monkeypatch.setattr(return_probe_trial, "FUNCTION", "no_such_function")
    assert "libm has no no_such_function" in str(why_not_return_probes(instance))


def test_the_trial_s_sandbox_holds() -> None:
    """The same rules for another system call really keep the program from it."""
    program = return_probe_trial._SANDBOXED.replace(f"{URETPROBE})", f"{GETPPID})")
    assert program != return_probe_trial._SANDBOXED
    told = program.rpartition("sys.exit(")[0] + "import os; print(os.getppid())"
    libm = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libm" in line)
    output = subprocess.run([sys.executable, "-c", told, libm], capture_output=True, text=True, check=True).stdout
    assert int(output) == -1


def test_an_older_kernel_needs_no_trial(plant: Plant) -> None:
    proc: Proc = plant({"/proc/sys/kernel/osrelease": "5.15.0-91-generic\n"})
    closed = TraceInstance.__new__(TraceInstance)  # would raise if it were used
    assert why_not_return_probes(closed, proc) is None
