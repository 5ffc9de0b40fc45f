"""``pinscope trace`` of programs in Pythons that have no PinScope; CUPTI and the driver are stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pinscope.cli.main import main
from pinscope.runner.program import OLDEST, find_program
from pinscope.tracing.descendants import JOINING
from tests.data.fake_cupti import FIRST_LINE, ROOT, built, packages
from tests.integration.traces import program, rows, traced

TRACING = Path(JOINING).parent
INSIDE = (
    "bound", "checks", "cupti_library", "descendants", "error_filter", "host_calls", "host_data", "library_calls",
    "library_log", "loader_origins", "managed", "mapped_file", "part", "pending", "process_end", "recorder", "redirect",
    "redirect_libraries", "source_memory", "spool_folder", "stacks", "waits", "watch_reads",
)  # fmt: skip
"""What may run inside the program."""


def pythons() -> dict[str, str]:
    """Version → interpreter, of the Pythons here that the recorder runs in, PinScope's own left out."""
    folders = [*os.environ["PATH"].split(os.pathsep), *map(str, Path.home().glob(".pyenv/versions/*/bin"))]
    there = {}
    for minor in range(OLDEST[1], 20):
        name = f"python3.{minor}"
        path = shutil.which(name, path=os.pathsep.join(folder for folder in folders if "shims" not in folder))
        if path and minor != sys.version_info.minor and not subprocess.run([path, "-c", "import ctypes"]).returncode:
            there[name] = path
    return there


PYTHONS = pythons()
others = pytest.mark.parametrize("python", [PYTHONS[n] for n in PYTHONS], ids=list(PYTHONS))


def environment(folder: Path, base: str = sys.executable) -> Path:
    """The interpreter of a new virtual environment in which nothing is installed."""
    subprocess.run([base, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


IMPORTS = f"""
import importlib, sys
class Mind:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        assert top == "pinscope" or top in sys.stdlib_module_names, name
sys.path.insert(0, {str(ROOT)!r})
sys.dont_write_bytecode = True
if not hasattr(sys, "stdlib_module_names"): sys.stdlib_module_names = {sorted(sys.stdlib_module_names)!r}
sys.meta_path.insert(0, Mind())
for name in {INSIDE!r}: importlib.import_module(f"pinscope.tracing.{{name}}")
print(sorted(name for name in sys.modules if name.startswith("pinscope.") and "tracing" not in name))
"""


@pytest.mark.parametrize("python", [sys.executable, *PYTHONS.values()])
def test_what_runs_inside_the_program_imports_only_python_s_own_library(python: str) -> None:
    done = subprocess.run([python, "-I", "-S", "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "['pinscope.errors', 'pinscope.isolation']\n"), done.stderr


PROGRAM = """
import threading
def load(): copy(1 << 20, PAGEABLE, DEVICE)
if sys.argv[1:] == ["child"]: copies(7)
else:
    thread = threading.Thread(target=load); thread.start(); thread.join()
    for _ in range(4): load()
    import subprocess
    subprocess.run([sys.executable, __file__, "child"], check=True)
    own = [name for name in sys.modules if name.partition(".")[0] in ("numpy", "pydantic", "pyarrow", "cupti")]
    try: import numpy
    except ImportError: print("no numpy")
    print(own, any("pinscope" in each for each in sys.path), os.environ.get("PYTHONPATH") == PATH, sys.version_info[1])
"""


@pytest.mark.parametrize("python", [sys.executable, *PYTHONS.values()])
def test_a_program_of_an_environment_without_pinscope_is_traced_to_its_lines_and_its_children(
    python: str, tmp_path: Path, _cupti: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    own = environment(tmp_path / "train", python)
    (site,) = (tmp_path / "train" / "lib").glob("python3*/site-packages")
    library = built(site)
    monkeypatch.setenv("FAKE_CUPTI", str(library))
    path = program(tmp_path, PROGRAM.replace("PATH", "None"))
    code, document = traced(tmp_path, own, "-B", path)
    minor = subprocess.run([own, "-c", "import sys; print(sys.version_info[1])"], capture_output=True, text=True).stdout
    assert (code, capfd.readouterr().out) == (0, f"no numpy\n[] False True {minor}")
    assert document["run"]["notes"] == []
    assert document["run"]["params"]["cupti"] == f"{library}, of the program"
    assert document["run"]["params"]["python"] == f"3.{minor.strip()}, {own}"
    assert [(row["line"], row["function"], row["count"]) for row in rows(document, "site")][:1] == [
        (FIRST_LINE + 2, "load", 5)
    ]
    assert sorted(row["copies"] for row in rows(document, "process")) == [5, 7]
