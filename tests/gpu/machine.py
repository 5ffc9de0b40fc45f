"""This machine: its GPU, what its kernel counts as pinned, and runs by the command."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pinscope.lab.cuda import CudaLab
from pinscope.lab.harness import safe_pinned_bytes
from pinscope.probes.environment import capture_environment
from pinscope.probes.host_memory import read_limits
from pinscope.probes.proc import HERE

MIB, GIB = 2**20, 2**30
PAGES_OFF = 256
"""The kernel batches its pin counters per processor; so far off may they be."""
BIG = 16 * GIB if safe_pinned_bytes(read_limits(), "cuda") >= 16 * GIB else GIB
"""What tests of speed pin."""
IS_H200 = capture_environment().devices[0].name == "NVIDIA H200"
"""Only there the figures hold that were measured or predicted for it."""


def pinned_pages() -> int:
    """Pages that the kernel counts as pinned for device access now (Linux 5.7 and later)."""
    counts = dict(line.split() for line in (HERE.read("/proc/vmstat").value or "").splitlines())
    return int(counts["nr_foll_pin_acquired"]) - int(counts["nr_foll_pin_released"])


def pinscope(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pinscope", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def run(experiment: str, *settings: str, quick: bool = False) -> dict[str, Any]:
    """The document of a run; ``settings`` as ``key=value``."""
    more = [word for setting in settings for word in ("--set", setting)] + ["--quick"] * quick
    done = pinscope("run", experiment, *more, "--lab", "cuda", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def compiled(source: str, folder: Path) -> Path:
    """A C or C++ program of tests/gpu/programs; skips the test where there is no compiler."""
    compiler = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(compiler).exists():
        pytest.skip("needs nvcc")
    program = folder / "program"
    path = Path(__file__).parent / "programs" / source
    subprocess.run([compiler, "-O2", "-arch=native", "-o", program, path], check=True)
    return program


def bus_ids() -> dict[int, str]:
    """Index → PCI bus id of each GPU."""
    return {device.index: device.pci_bus_id for device in capture_environment().devices if device.pci_bus_id}


class SameGpuTwice(CudaLab):
    """A machine with two GPUs that are one and the same: one copy engine each way serves both."""

    def peers(self) -> Sequence[int]:
        return (0, 1)

    def device_id_of(self, device: int) -> str:
        return super().device_id_of(0)
