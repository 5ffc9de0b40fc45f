"""``pinscope trace`` of programs in environments and Pythons that have no PinScope, on a GPU."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.gpu.machine import MIB
from tests.gpu.test_trace import TRACED, Traced, has_cupti

pytestmark = pytest.mark.skipif(not has_cupti(), reason="no library of CUPTI fits, or there is no driver")
IMPORTS = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


def has(python: str | Path, module: str) -> bool:
    return not subprocess.call([python, "-P", "-c", IMPORTS, module])


@pytest.fixture
def train(tmp_path: Path) -> Path:
    """The interpreter of an environment that has this one's PyTorch, and no PinScope."""
    pytest.importorskip("torch")
    folder = tmp_path / "train"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    torch = distribution("torch").locate_file("")
    (site / "torch.pth").write_text(f"{torch}\n")
    python = folder / "bin" / "python"
    if has(python, "pinscope"):
        pytest.skip("PinScope is installed beside PyTorch here")
    return python


@pytest.mark.parametrize(
    ("program", "arguments"), [("torch_tutorial.py", ()), ("round_trips.py", ("torch", "unchanged"))]
)
def test_a_program_of_pytorch_gives_the_same_lines_as_in_pinscope_s_own_environment(
    program: str, arguments: tuple[str, ...], train: Path, tmp_path: Path
) -> None:
    script = [str(TRACED / program), *arguments]
    own, elsewhere = Traced(tmp_path, *script), Traced(tmp_path, str(train), *script)
    assert (own.exit_code, elsewhere.exit_code) == (0, 0)
    assert elsewhere.sites(large=False) == own.sites(large=False) != {}
    assert elsewhere.run["notes"] == own.run["notes"]
    assert elsewhere.run["params"]["python"].startswith(f"{train}, ")
    assert "libcupti.so.1" in elsewhere.run["params"]["cupti"]


def test_both_ranks_of_torchrun_stand_in_one_result(train: Path, tmp_path: Path) -> None:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "--log-dir", str(tmp_path)]
    seen = Traced(tmp_path, str(train), *launch, str(TRACED / "ranks.py"), seconds=300)
    assert seen.exit_code == 0
    of_rank = {row.get("rank"): row["copies"] for row in seen.rows if row["kind"] == "process"}
    assert (of_rank[0] >= 5, of_rank[1] >= 5) == (True, True)
    assert seen.sites() == {("the rank's batch", "pageable", "device"): (10, 5 * 4 * MIB + 5 * 8 * MIB)}


def test_a_program_runs_again_with_its_lines_pinned(train: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import torch\nhost = torch.ones(8 << 20)\nfor _ in range(50): host.to('cuda')\n"
        "torch.cuda.synchronize()\nprint(float(host.sum()))\n"
    )
    seen = Traced(tmp_path, "--what-if", "pin", str(train), str(tmp_path / "program.py"))
    assert seen.exit_code == 0
    (line,) = seen.of_second("redirected")
    assert (line["line"], line["count"]) == (3, 50)


def pythons() -> list[str]:
    """Pythons of other versions."""
    others = (shutil.which(f"python3.{minor}") for minor in range(9, 20) if minor != sys.version_info.minor)
    return [path for path in others if path]


@pytest.mark.parametrize("python", [sys.executable, *pythons()])
def test_a_program_without_any_package_has_every_copy_named_in_any_version_of_python(
    python: str, tmp_path: Path
) -> None:
    seen = Traced(tmp_path, python, str(TRACED / "driver_copies.py"))
    assert seen.exit_code == 0
    assert seen.sites() == {
        ("pageable up", "pageable", "device"): (20, 80 * MIB),
        ("pinned up", "pinned", "device"): (20, 80 * MIB),
        ("pageable down", "device", "pageable"): (20, 80 * MIB),
    }
