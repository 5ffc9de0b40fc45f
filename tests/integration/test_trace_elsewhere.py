"""``pinscope trace`` of programs in Pythons that have no PinScope; CUPTI and the driver are stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pinscope.cli.main import main
from pinscope.probes.attachable import OLDEST
from tests.data.fake_cupti import FIRST_LINE, ROOT, built
from tests.integration.test_what_if_wait import COPY, READS
from tests.integration.traces import program, rows, traced

INSIDE = (
    "attached", "bound", "checks", "cupti_library", "descendants", "error_filter", "faults", "host_calls",
    "host_data", "lanes", "library_calls", "library_log", "loader_origins", "managed", "mapped_file", "part",
    "pending", "process_end", "recorder", "redirect", "redirect_libraries", "source_memory", "spool_folder",
    "stacks", "waits", "watch_reads",
)  # fmt: skip
"""What may run inside the program."""


def pythons() -> dict[str, str]:
    """Version → interpreter, of the Pythons here that the recorder runs in, PinScope's own left out."""
    folders = [*os.environ["PATH"].split(os.pathsep), *map(str, Path.home().glob(".pyenv/versions/*/bin"))]
    there = {}
    for minor in range(OLDEST[1], 20):
        name = f"python3.{minor}"
        path = shutil.which(name, path=os.pathsep.join(folder for folder in folders if "shims" not in folder))
        if path and minor != sys.version_info.minor and not subprocess.call([path, "-c", "import ctypes"]):
            there[name] = path
    return there


PYTHONS = pythons()
EACH = pytest.mark.parametrize("python", [sys.executable, *PYTHONS.values()], ids=["own", *PYTHONS])
ENDS = ["own", *sorted({*list(PYTHONS)[:1], *list(PYTHONS)[-1:]})]
"""PinScope's own version, the oldest and the newest: all of them import what runs inside."""


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


@EACH
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
    print(own, any("pinscope" in each for each in sys.path), os.environ.get("PYTHONPATH"), sys.version_info[1])
"""


@pytest.fixture
def train(request: pytest.FixtureRequest, _cupti: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The interpreter of an environment that has nothing but a CUPTI of its own."""
    base = getattr(request, "param", "own")
    monkeypatch.delenv("PYTHONPATH")
    python = environment(tmp_path / "train", PYTHONS.get(base, sys.executable))
    (site,) = (tmp_path / "train" / "lib").glob("python3*/site-packages")
    library = built(site)
    monkeypatch.setenv("FAKE_CUPTI", str(library))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
    return python


@pytest.mark.parametrize("train", ENDS, indirect=True)
def test_a_program_of_an_environment_without_pinscope_is_traced_to_its_lines_and_its_children(
    train: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, document = traced(tmp_path, train, "-B", program(tmp_path, PROGRAM))
    asked = [train, "-c", "import sys; print(sys.version_info[1])"]
    minor = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    assert (code, capfd.readouterr().out) == (0, f"no numpy\n[] False None {minor}")
    run = document["run"]
    assert run["notes"] == []
    assert run["params"]["cupti"] == f"{os.environ['FAKE_CUPTI']}, of the program"
    assert run["params"]["python"] == f"{train}, 3.{minor.strip()}"
    assert run["params"]["program"][:2] == [str(train), "-B"]
    sites = [(row["line"], row["function"], row["count"]) for row in rows(document, "site")]
    assert sites[:1] == [(FIRST_LINE + 2, "load", 5)]
    assert sorted(row["copies"] for row in rows(document, "process")) == [5, 7]


LAUNCH = """
import os, subprocess, sys
children = [subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, "RANK": rank}) for rank in "01"]
sys.exit(max(child.wait() for child in children))
"""


def test_the_ranks_that_a_script_of_the_environment_launches_stand_in_one_result(
    train: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``torchrun`` and ``accelerate launch`` do; it is found as the shell finds it."""
    launcher = train.parent / "runtorch"
    launcher.write_text(f"#!{train}\n{LAUNCH}")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", f"{train.parent}{os.pathsep}{os.environ['PATH']}")
    path = program(tmp_path, "for _ in range(4 + int(os.environ['RANK'])): copy(1 << 20, PAGEABLE, DEVICE)\n")
    code, document = traced(tmp_path, "runtorch", path)
    assert (code, document["run"]["notes"]) == (0, [])
    assert {row.get("rank"): row["copies"] for row in rows(document, "process")} == {None: 0, 0: 4, 1: 5}
    assert {row["line"] for row in rows(document, "site")} == {FIRST_LINE}


def test_such_a_program_runs_again_with_waits(train: Path, tmp_path: Path) -> None:
    code, document = traced(tmp_path, "--what-if", "wait", train, program(tmp_path, READS.format("")))
    assert code == 0
    (waited,) = rows(document["what_if"], "waited")
    assert (waited["line"], waited["needed"]) == (COPY[READS], True)


def test_what_cannot_be_traced_elsewhere_is_refused_with_one_line(
    train: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    old, odd, path = tmp_path / "python3.8", tmp_path / "python3", program(tmp_path, "print('started')")
    old.write_text("#!/bin/sh\necho \"('cpython', (3, 8), False, [])\"\n")
    odd.write_text("#!/bin/sh\necho cannot begin >&2\nexit 3\n")
    for each in (old, odd):
        each.chmod(0o755)
    for arguments, words in (
        ([train], "gets no program"),
        ([train, "-B"], "gets no program"),
        ([train, tmp_path / "none.py"], f"there is no program {tmp_path}/none.py"),
        ([train, "-IB", path], "lets no recorder in under -E, -I or -S: leave that option out"),
        ([old, path], "is cpython 3.8; a trace needs CPython 3.9 or later"),
        ([odd, path], "is no Python that runs here: cannot begin"),
        (["sh", "-c", "true"], "sh, which is no Python program"),
    ):
        assert main(["trace", *map(str, arguments)]) == 2
        out, line = capfd.readouterr()
        assert (out, line.count("\n")) == ("", 1)
        assert words in line
