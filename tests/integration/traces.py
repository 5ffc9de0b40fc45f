"""Programs that are traced beside a stand-in for CUPTI, and what the trace holds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pinscope.cli.main import main
from pinscope.store.store import Store
from tests.data.fake_cupti import PRELUDE, built, variables

Document = dict[str, Any]


@pytest.fixture(scope="module", name="library")
def built_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in."""
    return built(tmp_path_factory.mktemp("cupti"))


@pytest.fixture(name="_cupti")
def given_cupti(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in, for what this process starts."""
    for name in ("FAKE_CUPTI", "PYTHONPATH"):
        monkeypatch.setenv(name, variables(library)[name])


def program(folder: Path, text: str, name: str = "train.py") -> Path:
    """A program that can copy."""
    path = folder / name
    path.write_text(PRELUDE + text)
    return path


def traced(tmp_path: Path, *arguments: str | Path) -> tuple[int, Document]:
    """Exit code and JSON of a trace in this process."""
    answer = tmp_path / "answer.json"
    code = main(["trace", "--json", str(answer), *map(str, arguments)])
    document = json.loads(answer.read_text())
    answer.unlink()
    return code, document


def started(arguments: list[str | Path], environment: Mapping[str, str], **options: Any) -> subprocess.Popen[str]:
    """``pinscope trace`` as a process of its own."""
    command = [sys.executable, "-m", "pinscope", "trace", *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **{**pipes, **options})


def rows(document: Document, kind: str) -> list[dict[str, Any]]:
    """Observations of one kind."""
    return [row for row in document["observations"] if row["kind"] == kind]


def attached(document: Document, name: str) -> list[dict[str, Any]]:
    """The rows of an attachment."""
    with Store() as store:
        return [row for table in store.attachment(document["run"]["id"], name).tables() for row in table.to_pylist()]
