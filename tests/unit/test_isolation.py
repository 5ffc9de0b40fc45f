"""Interpreters that PinScope starts: none elsewhere than in one module, always the same PinScope, no working folder."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope import isolation

ROOT = Path(__file__).parents[2]
MAY_NAME_IT = ("isolation.py", "manual/site.py", "probes/environment.py", "tracing/descendants.py")
"""Starts interpreters; has a page about Python; prints the interpreter's path; wraps the functions by which a traced
program starts them."""
STARTS = {"fork", "forkpty", "execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp", "posix_spawn",
          "posix_spawnp", "spawnv", "spawnve", "spawnvp", "spawnl", "spawnlp", "system", "popen"}  # fmt: skip


_WORDS = re.compile(rf"executable|multiprocessing|ProcessPool|['\"/]python|\bos\.({'|'.join(STARTS)})\b")
"""One of them stands in whatever starts an interpreter: to parse all takes seconds."""


def starts_an_interpreter(text: str) -> list[str]:
    """What in a module's source starts a Python, or may."""
    return list(_starts(ast.parse(text))) if _WORDS.search(text) else []


def _starts(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) == ("sys", "executable") or (node.value.id == "os" and node.attr in STARTS):
                yield f"{node.value.id}.{node.attr}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            base = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                name = f"{base}.{alias.name}".strip(".")
                if name.split(".")[0] == "multiprocessing" or name in (
                    "sys.executable",
                    "concurrent.futures.ProcessPoolExecutor",
                ):
                    yield name
        elif isinstance(node, ast.List | ast.Tuple) and node.elts:
            first = node.elts[0]
            if isinstance(first, ast.Constant) and str(first.value).rpartition("/")[2].startswith("python"):
                yield str(first.value)


def test_one_module_alone_starts_interpreters() -> None:
    starts = {
        str(path.relative_to(ROOT)): own
        for path in [ROOT / "app.py", *(ROOT / "pinscope").rglob("*.py")]
        if str(path.relative_to(ROOT)).removeprefix("pinscope/") not in MAY_NAME_IT
        and (own := starts_an_interpreter(path.read_text()))
    }
    assert starts == {}


def test_a_planted_start_is_found() -> None:
    for text in [
        "import sys, subprocess\nsubprocess.Popen([sys.executable, '-m', 'pinscope'])",
        "from sys import executable",
        "import multiprocessing.shared_memory",
        "from concurrent.futures import ProcessPoolExecutor",
        "import os\nos.execv('/usr/bin/python3', ())",
        "import subprocess\nsubprocess.run(['/usr/bin/python3', '-c', ''])",
    ]:
        assert starts_an_interpreter(text)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A PinScope that is installed nowhere, with a module that tells which one it belongs to."""
    package = tmp_path / "clone" / "pinscope"
    package.mkdir(parents=True)
    for name in ("__init__.py", "isolation.py"):
        shutil.copy(ROOT / "pinscope" / name, package)
    (package / "tell.py").write_text(
        "import os, sys, pinscope\nprint(__name__, pinscope.__file__, os.environ['PYTHONSAFEPATH'], *sys.argv[1:])\n"
    )
    return tmp_path / "clone"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A working folder with a PinScope of its own, and with modules that Python would rather find elsewhere."""
    folder = tmp_path / "hostile"
    (folder / "pinscope").mkdir(parents=True)
    for name in ("pinscope/__init__", "pinscope/tell", "os", "typing", "runpy", "sitecustomize", "json"):
        (folder / f"{name}.py").write_text("raise SystemExit('hostile')\n")
    return folder


@pytest.mark.parametrize("path", ["", str(ROOT)])
def test_a_child_is_of_the_same_pinscope_as_its_parent(clone: Path, hostile: Path, path: str) -> None:
    """Also where another one is installed, or named by PYTHONPATH: the parent may have come from a clone."""
    code = "import sys; sys.path.insert(0, sys.argv[1])\nfrom pinscope import isolation\n"
    code += "import subprocess; subprocess.run(isolation.command('pinscope.tell', 'a', 'b c'), check=True)"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(clone)], cwd=hostile, env=variables | {"PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["__main__", str(clone / "pinscope" / "__init__.py"), "1", "a", "b", "c"], done.stderr


def test_what_the_parent_ignores_its_children_ignore_too() -> None:
    code = "from pinscope import isolation; print(*isolation.command('pinscope.x'))"
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[1:4] == ["-P", "-E", "-s"]
    assert isolation.bare_command("pass", "x")[1:] == ["-I", "-S", "-c", "pass", "x"]


@pytest.mark.parametrize(
    ("written", "options"),
    [
        ("-m pinscope trace -X dev x.py", []),
        ("-X dev -Xperf -Wd -W error -m pinscope -u", ["-X", "dev", "-Xperf", "-Wd", "-W", "error"]),
        ("-Bum pinscope", ["-Bu"]),
        ("-um pinscope", ["-u"]),
        ("-OOs -P /usr/bin/pinscope -x", ["-OOs", "-P"]),
        ("--check-hash-based-pycs never -x -mpinscope", ["--check-hash-based-pycs", "never", "-x"]),
        ("-u -c import_something -B", ["-u"]),
        ("-u -- /usr/bin/pinscope", ["-u"]),
        ("-u - x", ["-u"]),
    ],
)  # fmt: skip
def test_a_program_gets_the_options_of_this_interpreter_as_they_were_written(
    written: str, options: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", *written.split()])
    assert isolation.open_command("x.py", "y") == [sys.executable, *options, "x.py", "y"]
