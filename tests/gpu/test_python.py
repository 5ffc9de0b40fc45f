"""PinScope from a program: a run on the GPU, a part of a program, and pytest's marker, as docs/python.md shows them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pinscope
from tests.gpu.test_trace import has_cupti

STEP = """
import cupy, numpy, pinscope
batches = [numpy.zeros(2**20, "float32") for _ in range(20)]
on_gpu = cupy.empty(2**20, "float32")
with pinscope.trace("step") as part:
    for batch in batches:
        on_gpu.set(batch)  # the line
run = part.result
print(run.id, *run.exceeded(pageable="1MiB"), *run.exceeded(pageable="1GiB"), sep="\\n")
"""
MARKED = """
import cupy, numpy, pytest
@pytest.mark.pinscope(pageable="1MiB")
def test_step():
    for _ in range(20):
        cupy.empty(2**20, "float32").set(numpy.zeros(2**20, "float32"))
"""


def test_a_run_on_the_gpu_gives_figures_cells_with_rates_and_a_chart() -> None:
    run = pinscope.run(
        "bandwidth", quick=True, sizes="1MiB,64MiB", memory="pinned,pageable", name="mine", progress=False
    )
    assert (run.record.lab, run.name, run.record.figure is not None) == ("cuda", "mine", True)
    rate = run.figures["pinned.h2d.rate"]
    assert 5e9 < float(rate) < 500e9
    assert rate.low is not None
    assert rate.low < float(rate) < (rate.high or 0)
    pinned = run.cells[(run.cells.memory == "pinned") & (run.cells.bytes == 2**26)]
    assert pinned.bytes_per_second.min() > 5e9
    assert "bandwidth" in run.charts
    assert pinscope.open("mine").observations == run.observations


@pytest.mark.skipif(not has_cupti(), reason="no library of CUPTI fits, or there is no driver")
def test_a_part_of_a_program_has_its_trace_and_names_the_line_beyond_a_limit(tmp_path: Path) -> None:
    program = tmp_path / "step.py"
    program.write_text(STEP)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, timeout=120)
    run_id, line = done.stdout.splitlines()
    assert line.startswith("pageable=1MiB: 80 MiB were copied from or to pageable memory (step.py:7")
    assert pinscope.open(run_id).record.params["part"] == "step"


@pytest.mark.skipif(not has_cupti(), reason="no library of CUPTI fits, or there is no driver")
def test_a_marked_test_fails_beyond_its_limit(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(MARKED)
    own = ("-p", "no:pinscope", "-p", "pinscope.python.pytest_plugin", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *own, "test_mine.py"],
        capture_output=True, text=True, check=False, cwd=tmp_path, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    assert "pageable=1MiB: 80 MiB were copied from or to pageable memory (test_mine.py:6" in done.stdout
