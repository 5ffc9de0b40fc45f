"""Who reads a host tensor that PyTorch copies to asynchronously before a wait: named; who waits first: not.

CUPTI, the driver and PyTorch are stand-ins.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.data.fake_cupti import FIRST_LINE, built, variables
from tests.data.stand_ins import PACKAGES
from tests.integration.traces import Document, program, rows, traced

START = """
import gpu_model, numpy, torch
value = torch.tensor(numpy.arange(100_000)).to("cuda")
kept = torch.empty(100_000, pin_memory=True)
for _ in range(5):
    host = value.to("cpu", non_blocking=True)
"""
COPY, READ = FIRST_LINE + 5, FIRST_LINE + 6


@pytest.fixture
def _driver(_cupti: None, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in for CUPTI is the driver, too."""
    library = built(tmp_path_factory.mktemp("driver"), "-Wl,-soname,libcuda.so.1")
    monkeypatch.setenv("FAKE_CUPTI", variables(library)["FAKE_CUPTI"])
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{PACKAGES}")


def seen(tmp_path: Path, text: str) -> Document:
    indented = "".join(f"    {line}\n" for line in text.splitlines())
    code, document = traced(tmp_path, program(tmp_path, START + indented))
    assert code == 0
    return document


def rules(document: Document) -> list[str]:
    return [finding["rule"] for finding in document["run"]["findings"]]


@pytest.mark.usefixtures("_driver")
@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("host[-1].item()", {"line": READ, "call": "item", "count": 5, "in_flight_count": 5}),
        ("gpu_model.finish(); time.sleep(0.03); host + 1", {"line": READ, "call": "__add__", "count": 5, "in_flight_count": 0}),
        ("host.size(); part = host[:5]\npart + 1", {"line": READ + 1, "call": "__add__", "count": 5}),
        ("kept.copy_(value, non_blocking=True)\nkept.item\nkept + 1", {"line": READ + 2, "copy_line": READ}),
        ("kept[:9].copy_(value[:9], non_blocking=True)\nkept + 1", {"line": READ + 1, "copy_line": READ}),
    ],
    ids=["while it runs", "by luck", "through a view", "into a buffer", "into a part of it"],
)
def test_a_read_before_a_wait_is_named_with_its_copy(text: str, read: dict[str, Any], tmp_path: Path) -> None:
    document = seen(tmp_path, f"{text}\ntorch.cuda.synchronize()")
    (row,) = rows(document, "early_read")
    assert {"copy_line": COPY, **read}.items() <= row.items()
    assert rules(document)[0] == "read-before-copied"


@pytest.mark.usefixtures("_driver")
@pytest.mark.parametrize(
    "text",
    [
        "torch.cuda.synchronize()\nhost + 1",
        "event = torch.cuda.Event(); event.record(); gpu_model.finish()\ntime.sleep(0.03); assert event.query()\nhost + 1",
        "assert host.size() == (100_000,)\nassert type(host[1:]).__name__ == 'Tensor'\ntorch.cuda.synchronize()",
        "torch.cuda.synchronize()\nhost.item\nhost + 1\nassert type(host) is torch.Tensor",
        "host.to('cuda', non_blocking=True)\ntorch.cuda.synchronize()",
        "kept[:9].copy_(value[:9], non_blocking=True)\nkept[9:] + 1\ntorch.cuda.synchronize()\nkept + 1",
        "",
    ],
    ids=["a wait", "a question", "no data", "its class again", "back to the GPU", "another part", "no read"],
)
def test_of_a_program_that_waits_first_nothing_is_said(text: str, tmp_path: Path) -> None:
    document = seen(tmp_path, text)
    assert rows(document, "early_read") == []
    assert {row["count"] for row in rows(document, "watched")} == {5}
    assert not {"read-before-copied", "reads-not-watched"} & set(rules(document))


@pytest.mark.usefixtures("_driver")
def test_a_file_is_watched_by_the_name_that_its_copies_have(tmp_path: Path) -> None:
    program(tmp_path, START + "    torch.cuda.synchronize()\n")
    (tmp_path / "link").symlink_to(tmp_path)
    code, document = traced(tmp_path, tmp_path / "link" / "train.py")
    assert (code, [row["count"] for row in rows(document, "watched")]) == (0, [5])
    assert "reads-not-watched" not in rules(document)


@pytest.mark.usefixtures("_driver")
def test_reads_that_cannot_be_watched_are_suspected_and_nothing_is_called_good(tmp_path: Path) -> None:
    copies = "for _ in range(5): copy(1 << 20, DEVICE, PINNED)\nwait(1)"
    _, document = traced(tmp_path, program(tmp_path, copies))
    assert rules(document) == ["reads-not-watched"]
    assert "--what-if wait" in document["run"]["findings"][0]["advice"]
    assert "Nothing to pin" not in document["run"]["verdict"]
