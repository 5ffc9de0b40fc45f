"""What the CPU does for copies beside the driver's calls, from the program to the rows; CUPTI, PyTorch and CuPy are
stand-ins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.data.fake_cupti import FIRST_LINE
from tests.integration.traces import Document, program, rows, traced

MIB = 2**20


def lines(document: Document) -> dict[tuple[int, str], dict[str, Any]]:
    """Line of the program, from its first on, and call → row."""
    return {(row["line"] - FIRST_LINE + 1, row["call"]): row for row in rows(document, "host_call")}


@pytest.mark.usefixtures("_packages")
def test_a_line_that_pins_has_its_seconds_on_the_cpu_and_a_pageable_copy_of_pinned_memory_its_reason(
    tmp_path: Path,
) -> None:
    text = """\
import numpy as np, torch
weight = torch.tensor(np.ones(1 << 22, np.float32))
small = torch.tensor(np.ones(100, np.float32))
took = 0
for step in range(10):
    begun = time.perf_counter()
    source = weight.pin_memory()
    took += time.perf_counter() - begun
    moved = source.to("cuda", non_blocking=True)
    small.pin_memory().cuda()
    kernel(1000)
print(took)
pinned = torch.empty((512, 512), pin_memory=True)
half = torch.Tensor(np.zeros((512, 512), np.float16), "cuda")
same = torch.Tensor(np.zeros((512, 512), np.float32), "cuda")
turned = torch.Tensor(pinned.array.T, pinned=True)
for step in range(10):
    same.copy_(pinned)
    half.copy_(pinned)
    same.copy_(turned)
"""
    code, document = traced(tmp_path, program(tmp_path, text))
    assert code == 0
    row = lines(document)[7, "Tensor.pin_memory"]
    assert (row["count"], row["bytes"], row["newly_pinned_count"]) == (10, 160 * MIB, 10)
    pinning = next(each["call_seconds"] for each in rows(document, "allocation") if each["line"] == row["line"])
    assert row["call_seconds"] - row["host_seconds"] == pytest.approx(pinning)
    assert 0 < row["idle_seconds"] <= row["host_seconds"]
    assert row["minor_faults"] > 0
    assert {line for line, _ in lines(document)} == {7, 9, 18, 19, 20}
    assert lines(document)[9, "Tensor.to"]["pinned_source_count"] == 10
    sites = {row["line"] - FIRST_LINE + 1: row for row in rows(document, "site")}
    assert [(sites[line]["source"], sites[line].get("pinned_source_count"), sites[line].get("reason"))
            for line in (18, 19, 20)] == [
        ("pinned", 10, None),
        ("pageable", 10, "converted: float32 → float16"),
        ("pageable", 10, "gathered: it is not contiguous"),
    ]  # fmt: skip
    calls = lines(document)
    assert calls[19, "Tensor.copy_"]["converted_bytes"] == 10 * MIB
    assert calls[20, "Tensor.copy_"]["gathered_bytes"] == 10 * MIB
    assert calls[19, "Tensor.copy_"]["host_seconds"] > 0


@pytest.mark.usefixtures("_packages")
def test_what_if_says_of_each_line_why_it_was_left(tmp_path: Path) -> None:
    text = """\
import numpy as np, torch
pinned = torch.empty((512, 512), pin_memory=True)
half = torch.Tensor(np.zeros((512, 512), np.float16), "cuda")
same = torch.Tensor(np.zeros((512, 512), np.float32), "cuda")
turned = torch.Tensor(pinned.array.T, pinned=True)
for step in range(10):
    half.copy_(pinned)
    same.copy_(turned)
    copy(1 << 20, DEVICE, PAGEABLE)
same.copy_(torch.tensor(np.ones((512, 512))))
"""
    code, document = traced(tmp_path, "--what-if", "pin", program(tmp_path, text))
    assert code == 0
    reasons = {row["line"] - FIRST_LINE + 1: row["reason"] for row in rows(document["what_if"], "redirected")}
    assert reasons == {
        7: "10 copies: its source is pinned, and converted on the CPU first: float32 → float16",
        8: "10 copies: its source is pinned, but not contiguous",
        9: "copies to the host are not redirected",
        10: "a single copy: pinning pays where it repeats",
    }


@pytest.mark.usefixtures("_packages")
def test_what_the_second_run_gathers_is_no_work_of_the_program_s(tmp_path: Path) -> None:
    text = """\
import numpy as np, torch
for step in range(10):
    batch = torch.tensor(np.full(1 << 20, step, np.float32))
    batch.to("cuda")
"""
    code, document = traced(tmp_path, "--what-if", "pin", program(tmp_path, text))
    assert code == 0
    second = document["what_if"]
    assert [(row["call"], row.get("staged_bytes")) for row in rows(second, "host_call")] == [("Tensor.to", 0)]
    assert not any(finding["rule"].startswith("cpu-work") for finding in second["run"]["findings"])
