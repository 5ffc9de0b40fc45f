"""The notebooks of the documentation, run from top to bottom by Jupyter and by marimo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html import unescape
from importlib.util import find_spec
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

from tests.data.stand_ins import PACKAGES

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
EXECUTE = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=120).execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.fixture
def environment(_cupti: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """PyTorch is a stand-in whose copies the stand-in for CUPTI reports; nothing is written beside the notebooks."""
    paths = os.pathsep.join((os.environ["PYTHONPATH"], str(PACKAGES)))
    private = {name: str(tmp_path / name) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "XDG_CONFIG_HOME")}
    return {**os.environ, **private, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(autouse=True)
def _installed() -> None:
    if not all(map(find_spec, ("marimo", "nbclient", "ipykernel"))):
        pytest.skip("Jupyter and marimo come with the extra dev")


def ran(*command: str | Path, environment: dict[str, str], folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def shown(cell: dict[str, Any], kind: str) -> str:
    """What a cell shows of that kind."""
    (data,) = [output["data"] for output in cell["outputs"] if kind in output.get("data", {})]
    text = data[kind]
    return text if isinstance(text, str) else json.dumps(text) if isinstance(text, dict) else "".join(text)


def test_jupyter_shows_the_report_a_chart_findings_a_comparison_and_the_line_of_a_traced_cell(
    environment: dict[str, str], tmp_path: Path
) -> None:
    ran("-c", EXECUTE, FOLDER / "pinscope.ipynb", tmp_path / "ran.ipynb", environment=environment, folder=tmp_path)
    cells = [cell for cell in json.loads((tmp_path / "ran.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    _, report, chart, findings, both, _, traced = cells
    assert "Bandwidth" in unescape(shown(report, "text/html"))
    assert "Bandwidth (GB/s)" in shown(chart, "application/vnd.plotly.v1+json")
    assert [output["name"] for output in findings["outputs"]] in ([], ["stdout"])
    assert shown(both, "text/markdown").startswith("# bandwidth: B against ")
    assert "Pin what first_step.py:3 copies" in shown(traced, "text/markdown").replace("\\", "")
    assert "on_gpu.set(batch)" in unescape(shown(traced, "text/html"))


def test_marimo_runs_the_same(environment: dict[str, str], tmp_path: Path) -> None:
    notebook, page = copy(FOLDER / "pinscope_marimo.py", tmp_path), tmp_path / "page.html"  # marimo writes beside it
    ran(
        *("-m", "marimo", "export", "html", notebook, "-o", page, "--no-include-code"),
        environment=environment, folder=tmp_path,
    )  # fmt: skip
    text = page.read_text()
    assert "srcdoc" in text
    assert "Comparison" in text
    assert "first step" in text
