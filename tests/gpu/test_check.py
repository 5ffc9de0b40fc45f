"""``pinscope check`` on a GPU: real runs of one host as baseline and check, and a program whose copies it traces.

Predicted before the first run: five quick runs of bandwidth and two more of the same host pass; a baseline that says
twice the rate of every pinned copy does not, and a line is said of each; a trace of a program passes against itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gpu.machine import pinscope
from tests.gpu.test_trace import TRACED, has_cupti


def test_a_host_passes_against_itself_and_not_against_one_twice_as_fast(tmp_path: Path) -> None:
    file, faster = tmp_path / "baseline.json", tmp_path / "faster.json"
    some = ["--set", "sizes=1MiB,64MiB", "--set", "memory=pinned", "--quick"]
    made = pinscope("check", "write", str(file), "bandwidth", *some, "--count", "5")
    assert made.returncode == 0, made.stderr
    same = pinscope("check", str(file))
    assert same.returncode == 0, same.stdout

    baseline = json.loads(file.read_text())
    cells = baseline["experiments"][0]["cells"]
    for cell in cells:
        rates = cell["figures"]["bytes_per_second"]
        rates["runs"] = [[2 * rate, off] for rate, off in rates["runs"]]
    faster.write_text(json.dumps(baseline))
    worse = pinscope("check", str(faster))
    assert worse.returncode == 1
    assert worse.stdout.count(" instead of ") == len(cells)


@pytest.mark.skipif(not has_cupti(), reason="no library of CUPTI fits, or there is no driver")
def test_a_program_passes_against_itself(tmp_path: Path) -> None:
    file, program = tmp_path / "trace.json", str(TRACED / "cupy_loop.py")
    made = pinscope("check", "write", str(file), "--trace", program, "--count", "3")
    assert made.returncode == 0, made.stderr
    again = pinscope("check", str(file), "--trace", program, "--tolerance", "50%")
    assert again.returncode == 0, again.stdout
