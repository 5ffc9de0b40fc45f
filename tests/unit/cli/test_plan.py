"""``pinscope plan``: for people and for programs, with or without a GPU."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from pinscope.cli.main import main
from pinscope.planning.plan import PlanParams, command_line
from tests.unit.cli.test_errors import refused

MIB, GIB, TIB = 2**20, 2**30, 2**40


def told(arguments: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["plan", *shlex.split(arguments), "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.parametrize(("page", "table"), [("4KiB", 2 * GIB), ("64KiB", 128 * MIB), ("2MiB", 4 * MIB)])
def test_a_tebibyte_at_each_page_size(page: str, table: int, capsys: pytest.CaptureFixture[str]) -> None:
    document = told(f"--pinned 1TiB --page-size {page} --gpu-memory 80GiB", capsys)
    assert document["page"]["table_bytes"] == table
    assert document["page"]["origin"] == {"source": "given", "run": None, "device": None}
    each, owner = document["strategies"]
    assert each["strategy"] == "each_registers"
    assert owner["strategy"] == "one_owner"
    assert each["gpu_share"] == table / (80 * GIB)
    assert {size["page_bytes"]: size["table_bytes"] for size in document["page_sizes"]} == {
        4096: 2 * GIB, 65536: 128 * MIB, 2 * MIB: 4 * MIB,
    }  # fmt: skip


def test_the_json_and_the_text_carry_the_same_findings(capsys: pytest.CaptureFixture[str]) -> None:
    titles = [finding["title"] for finding in told("--pinned 1TiB --processes 4", capsys)["findings"]]
    assert main(["plan", "--pinned", "1TiB", "--processes", "4"]) == 0
    text = capsys.readouterr().out
    assert len(titles) >= 3
    assert [title for title in titles if title not in text] == []
    assert "Who pins" in text


def test_the_command_that_the_page_shows_plans_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    params = PlanParams(
        pinned=96 * GIB, processes=3, shared=True, gpus=2, all_gpus=4, gpu_memory=24 * GIB, host_memory=2 * TIB,
        page_size="64KiB", through="pytorch", like="h100",
    )  # fmt: skip
    document = told(command_line(params).removeprefix("pinscope plan "), capsys)
    demand = params.demand()
    assert document["demand"] == {
        "pinned_bytes": demand.pinned_bytes, "processes": 3, "gpus": 2, "all_gpus": 4, "gpu_memory_bytes": 24 * GIB,
        "shared": True, "asked_bytes": 96 * GIB, "through": "pytorch",
    }  # fmt: skip
    assert demand.pinned_bytes == 128 * GIB
    assert document["budget"]["total_bytes"] == 2 * TIB


def test_a_run_or_a_gpu_that_no_run_knows_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no run 'abacus'" in refused(["plan", "--pinned", "1GiB", "--like", "abacus"], 2, capsys)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--pinned", "1GiB", "--processes", "many"], "Invalid value for '--processes'"),
        (["--pinned", "1GiB", "--host-memory", ""], "'' is not a size"),
        ([], "give --pinned, for each process, or --pinned-total, their sum: one of the two"),
        (["--pinned", "1GiB", "--pinned-total", "8GiB"], "one of the two"),
    ],
)
def test_bad_input_is_one_line_and_opens_no_database(
    arguments: list[str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("PINSCOPE_DATABASE", f"sqlite:///{tmp_path / 'none.sqlite'}")
    assert complaint in refused(["plan", *arguments], 2, capsys)
    assert not (tmp_path / "none.sqlite").exists()
