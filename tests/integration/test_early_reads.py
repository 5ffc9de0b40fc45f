"""Who reads a host tensor that PyTorch copies to asynchronously before a wait: named; who waits first: not.

CUPTI, the driver and PyTorch are stand-ins.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.traces import program, rows, rules, traced

START = """
import numpy, torch; from cuda import gpu_model
value = torch.tensor(numpy.arange(100_000)).to("cuda")
kept = torch.empty(100_000, pin_memory=True)
wait, event = torch.cuda.synchronize, torch.cuda.Event()
"""
EARLY = {
    "while it runs": ("host = copied()", "host[-1].item()"),
    "by luck": ("host = copied(); time.sleep(0.02)", "host + 1"),
    "through a view": ("part = copied()[:5]", "part + 1"),
    "into a buffer": ("kept.copy_(value, non_blocking=True); kept.size()", "kept + 1"),
    "into a part of it": ("kept[:90_000].copy_(value[:90_000], non_blocking=True)", "kept + 1"),
}
"""What copies, and what reads that."""
IN_TIME = """
host = copied(); wait(); host + 1
host = copied(); event.record(); time.sleep(0.02); gpu_model.finish(); event.query(); host + 1
host = copied(); host.size(); host[1:]; assert type(host).__name__ == "Tensor"; wait()
host = copied(); wait(); host.item; host + 1; assert type(host) is torch.Tensor
host = copied(); host.to("cuda", non_blocking=True); wait()
kept[:90_000].copy_(value[:90_000], non_blocking=True); kept[90_000:] + 1; wait(); kept + 1
host = copied()
"""
COPIED = "def copied(): return value.to('cpu', non_blocking=True)\n"


def lines_of(script: Path, ending: str) -> list[int]:
    return [number for number, line in enumerate(script.read_text().splitlines(), 1) if line.endswith(ending)]


@pytest.mark.usefixtures("_packages")
def test_a_read_before_a_wait_is_named_with_its_copy(tmp_path: Path) -> None:
    ways = "".join(f"for _ in range(5):\n  {copy}\n  {read}  # {way}\nwait()\n" for way, (copy, read) in EARLY.items())
    script = program(tmp_path, START + COPIED + ways)
    code, document = traced(tmp_path, script)
    assert code == 0
    assert rules(document)[0] == "read-before-copied"
    named = {row["line"]: row for row in rows(document, "early_read")}
    copied_at, *_ = lines_of(script, "non_blocking=True)")
    for way in EARLY:
        (line,) = lines_of(script, f"# {way}")
        row = named.pop(line)
        assert row["copy_line"] == (line - 1 if way.startswith("into") else copied_at)
        assert (way, row["count"], row["in_flight_count"] > 0) == (
            way,
            5,
            way != "by luck",
        )  # a busy machine reads late
        assert row["call"] == ("item" if way == "while it runs" else "__add__")
    assert named == {}


@pytest.mark.usefixtures("_packages")
def test_of_a_program_that_waits_first_nothing_is_said(tmp_path: Path) -> None:
    code, document = traced(tmp_path, program(tmp_path, START + COPIED + IN_TIME))
    assert code == 0
    assert rows(document, "early_read") == []
    assert {row["count"] for row in rows(document, "watched")} == {6, 1}
    assert not {"read-before-copied", "reads-not-watched"} & set(rules(document))


@pytest.mark.usefixtures("_packages")
def test_a_file_is_watched_by_the_name_that_its_copies_have(tmp_path: Path) -> None:
    program(tmp_path, f"{START}for _ in range(5):\n    host = value.to('cpu', non_blocking=True)\nwait()\n")
    (tmp_path / "link").symlink_to(tmp_path)
    code, document = traced(tmp_path, tmp_path / "link" / "train.py")
    assert (code, [row["count"] for row in rows(document, "watched")]) == (0, [5])
    assert "reads-not-watched" not in rules(document)


@pytest.mark.usefixtures("_packages")
def test_reads_that_cannot_be_watched_are_suspected_and_nothing_is_called_good(tmp_path: Path) -> None:
    copies = "for _ in range(5): copy(1 << 20, DEVICE, PINNED)\nwait(1)"
    _, document = traced(tmp_path, program(tmp_path, copies))
    assert rules(document) == ["reads-not-watched"]
    assert "--what-if wait" in document["run"]["findings"][0]["advice"]
    assert "Nothing to pin" not in document["run"]["verdict"]
