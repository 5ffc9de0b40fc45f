"""``pinscope trace`` on copies that libraries make for a program, and on copies that need not be.

Predicted before the first run on an H100: counts and bytes as the programs' sources say; of 12 passes over weights that
are not changed 11 send them again, and of 10 round trips of blocks all come back unchanged; weights of which one part
in eight is changed on the GPU are not said to come back unchanged; a sample takes at most 10 µs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.machine import MIB
from tests.gpu.test_trace import TRACED, Traced, has_cupti

pytestmark = pytest.mark.skipif(not has_cupti(), reason="no library of CUPTI fits, or there is no driver")


def line_of(program: str, comment: str) -> str:
    """``PROGRAM:LINE`` of the line with this comment."""
    lines = (TRACED / program).read_text().splitlines()
    return f"{program}:{next(number for number, line in enumerate(lines, 1) if line.endswith(f'# {comment}'))}"


def needless(seen: Traced, kind: str) -> tuple[int, int]:
    """Copies and bytes of a kind that need not be."""
    rows = [row for row in seen.rows if row["kind"] == kind]
    return sum(row["count"] for row in rows), sum(row["bytes"] for row in rows)


def loaders(seen: Traced) -> set[tuple[bool, int, int]]:
    """Of each DataLoader whether it pins, its workers, and the site that copies its batches."""
    return {(row["pins_batches"], row["workers"], row["number"]) for row in seen.rows if row["kind"] == "loader"}


def switched(seen: Traced, switch: str) -> bool:
    """Whether the switch is the advice; it is where pinning is said to save something, and only there."""
    findings = [each for each in seen.run["findings"] if each["rule"] == "pageable-copies"]
    advised = [switch in each["advice"] for each in findings]
    saved = [bool({figure["name"]: figure["value"] for figure in each["evidence"]}[SAVED]) for each in findings]
    assert [a for a, saves in zip(advised, saved, strict=True) if a and not saves] == []
    return any(advised)


SAVED = "Saved if pinned (about)"


@pytest.mark.parametrize(("pin", "workers"), [("off", 2), ("off", 0), ("on", 2)])
def test_under_trainer_the_library_s_line_and_the_switch_are_named(pin: str, workers: int, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    seen = Traced(tmp_path, str(TRACED / "hf_trainer.py"), pin, str(workers))
    assert seen.exit_code == 0
    rows = [
        row for row in seen.rows
        if row["kind"] == "site" and (row.get("library_file") or "").endswith("accelerate/utils/operations.py")
        and row["large_count"] and row["direction"] == "h2d"
    ]  # fmt: skip
    batches = {row["source"]: row["bytes"] for row in rows}
    assert batches == {"pageable" if pin == "off" else "pinned": pytest.approx(40 * 16 * MIB, rel=0.05)}
    assert f"{line_of('hf_trainer.py', 'the training')} → operations.py:{rows[0]['library_line']}" in seen.stderr
    assert loaders(seen) == {(pin == "on", workers, rows[0]["number"])}
    assert [row["executable"] for row in seen.rows if row["kind"] == "unrecorded"] == []  # it runs nvidia-smi
    is_switch = switched(seen, "dataloader_pin_memory=True")
    if pin == "on" or not workers:
        assert not is_switch
    without = "dataloader_num_workers and dataloader_pin_memory=True"
    assert any(without in each["detail"] for each in seen.run["findings"]) == (pin == "off" and not workers)


def test_a_loader_s_own_line_is_named_as_the_place_of_the_switch(tmp_path: Path) -> None:
    seen = Traced(tmp_path, str(TRACED / "loader_loop.py"), "off")
    lines = (TRACED / "loader_loop.py").read_text().splitlines()
    made = next(number for number, line in enumerate(lines, 1) if "loader = DataLoader(" in line)
    assert [(row["line"], row["count"]) for row in seen.rows if row["kind"] == "loader"] == [(made, 40)]
    accused = [each for each in seen.run["findings"] if each["rule"] == "pageable-copies"]  # not where nothing is saved
    assert switched(seen, f"pin_memory=True at loader_loop.py:{made}") == bool(accused)


def test_the_ranks_of_torchrun_have_one_switch(tmp_path: Path) -> None:
    options = ("--nproc_per_node", "2", "--master_port", "29517", "--log-dir", str(tmp_path / "log"))
    seen = Traced(tmp_path, "-m", "torch.distributed.run", *options, str(TRACED / "rank_loaders.py"))
    assert seen.exit_code == 0
    made = [row for row in seen.rows if row["kind"] == "loader"]
    assert {row["rank"] for row in made} == {0, 1}
    assert {f"rank_loaders.py:{row['line']}" for row in made} == {line_of("rank_loaders.py", "the loader")}
    assert f"pin_memory=True at {line_of('rank_loaders.py', 'the loader')}" in seen.run["verdict"]


def test_weights_that_accelerate_sends_at_each_call_are_named_with_its_line(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    seen = Traced(tmp_path, str(TRACED / "offloaded.py"))
    assert seen.exit_code == 0
    count, size = needless(seen, "sent_again")
    assert (count, size) == (8 * 11, 8 * 11 * 16 * MIB)
    (finding,) = [each for each in seen.run["findings"] if each["rule"] == "data-sent-again"]
    assert finding["title"].startswith(f"{line_of('offloaded.py', 'the model')} → modeling.py:")
    assert "device_map" in finding["advice"]


@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("what", ["unchanged", "trained", "in places"])
def test_round_trips_are_named_where_nothing_changed_on_the_way(library: str, what: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    seen = Traced(tmp_path, str(TRACED / "round_trips.py"), library, what)
    assert seen.exit_code == 0
    findings = [each for each in seen.run["findings"] if each["rule"].startswith("data-")]
    if what != "unchanged":
        assert (needless(seen, "brought_back"), needless(seen, "sent_again"), findings) == ((0, 0), (0, 0), [])
        return
    count, size = needless(seen, "brought_back")
    assert count == pytest.approx(40, abs=4)
    assert size == count * 16 * MIB
    (finding,) = findings
    assert finding["title"].startswith(f"{line_of('round_trips.py', f'{library}, back')}")


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_new_data_is_not_named(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    seen = Traced(tmp_path, str(TRACED / "batches.py"), library)
    assert seen.exit_code == 0
    assert needless(seen, "sent_again") == needless(seen, "brought_back") == (0, 0)


def test_copies_of_jax_s_threads_have_about_the_line_of_device_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax_cuda13_plugin")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a test beside it may need the memory
    seen = Traced(tmp_path, str(TRACED / "jax_puts.py"))
    sites = {
        line: (count, size)
        for line in ("a table", "two arrays")
        for (comment, _, target), (count, size) in seen.sites().items()
        if comment == line and target == "device"
    }
    assert sites == {"a table": (12, 12 * 4 * MIB), "two arrays": (6, 3 * 3 * MIB)}
    assert f"{line_of('jax_puts.py', 'two arrays')} (about)" in str(seen.run["tables"])  # others cost more
