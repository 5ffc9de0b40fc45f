"""The command ``compare``: machines first, then the verdict, then what differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinscope.cli.main import main
from tests.unit.report.test_comparison import H100, H200


def test_the_verdict_comes_first_then_the_machines_then_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", H100, H200]) == 0
    lines = capsys.readouterr().out.splitlines()
    places = [
        next(at for at, line in enumerate(lines) if line.startswith(begin))
        for begin in ("H200 is ", "cells     ▲ 4 better · ", "GPU ", "4 KiB pages, untouched")
    ]
    assert places == sorted(places)
    assert not any("  ~ " in line for line in lines)


def test_all_shows_what_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", H100, H200, "--all"]) == 0
    shown = capsys.readouterr().out
    assert "  ~ " in shown
    assert "packages.numpy" in shown


def test_the_file_and_json_are_the_same_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "compared.json"
    assert main(["compare", H100, H200, "-o", str(file)]) == 0
    assert capsys.readouterr().out.startswith(f"Wrote {file}")
    assert main(["compare", H100, H200, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text())
