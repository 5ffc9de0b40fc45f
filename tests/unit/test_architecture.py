"""The house: a room imports only from floors below it, each third party comes in through its own door, and whoever has
read the folder of one experiment knows where all stands in every other."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FLOORS = (
    "records", "probes", "analysis", "store", "charts", "lab", "tracing", "live", "monitoring", "experiments",
    "planning", "report", "runner", "fleet", "python", "manual", "dashboard", "cli",
)  # fmt: skip
"""From the ground up."""

FREE = ("pinscope", "pinscope.errors", "pinscope.isolation", "pinscope.text", "pinscope.units")
"""What every room may import."""
TOP = ("app", "pinscope.__main__")
"""What stands on the roof: may import everything, is imported by nothing."""

DOORS: Mapping[str, Sequence[str]] = {
    "cupy": ("pinscope.lab.cuda", "pinscope.experiments.*.cuda", "pinscope.experiments.*.code"),
    "cupy_backends": ("pinscope.lab.cuda", "pinscope.experiments.*.cuda"),
    "torch": ("pinscope.lab.torch", "pinscope.experiments.*.torch"),
    "pynvml": ("pinscope.probes.",),
    "psutil": ("pinscope.probes.",),
    "streamlit": ("app", "pinscope.dashboard."),
    "sqlalchemy": ("pinscope.store.",),
    "typer": ("pinscope.cli.",),
    "rich": ("pinscope.cli.",),
    "dask": ("pinscope.fleet.",),
    "distributed": ("pinscope.fleet.",),
    "jinja2": ("pinscope.report.",),
    "markdown_it": ("pinscope.manual.",),
    "prometheus_client": ("pinscope.monitoring.",),
}
"""Third party → beginnings of the modules that may import it; ``*`` is any name."""

PURE = ("arithmetic", "reading", "findings", "chart", "verdict")
"""Beginnings of the modules of a kind of run that take numbers and give numbers, findings and charts."""
KEPT = ("pinscope.live.", "pinscope.tracing.trace.")
"""What is read and drawn likewise, though no experiment measures it: a snapshot, a timeline, a trace."""
IMPURE = ("pinscope.lab", "pinscope.store", "pinscope.runner", "pinscope.report", "pinscope.probes")

STILL = ("records", "analysis", "charts")
"""Rooms that read no file and no clock, and start nothing."""
MOVING = ("io", "os", "pathlib", "shutil", "socket", "sqlite3", "subprocess", "tempfile", "time")
"""Modules of Python's library by which one does."""
DESCRIBED = ("records", "probes", "analysis", "store", "charts", "lab", "tracing", "live", "runner", "fleet")
"""Rooms whose first lines say which file holds what, and what they import."""

MOST_LINES = 600

pytestmark = pytest.mark.xdist_group("source")  # it is read once, two seconds


@dataclass(frozen=True)
class Module:
    """A module and what it imports, wherever in it the import stands."""

    name: str
    path: Path
    lines: int
    imports: tuple[str, ...]


def modules(root: Path) -> list[Module]:
    """All modules of the package and the app."""
    paths = sorted((root / "pinscope").rglob("*.py"))
    if (root / "app.py").exists():
        paths.append(root / "app.py")
    return [_module(root, path) for path in paths]


@cache
def own_modules() -> list[Module]:
    """Those that lie here."""
    return modules(ROOT)


def _module(root: Path, path: Path) -> Module:
    parts = list(path.relative_to(root).with_suffix("").parts)
    is_package = parts[-1] == "__init__"
    if is_package:
        parts.pop()
    name = ".".join(parts)
    text = path.read_text()
    package = parts if is_package else parts[:-1]
    tree = ast.parse(text)
    if name == "pinscope":  # what it names for type checkers it does not load: test_surface.py
        tree.body = [node for node in tree.body if not isinstance(node, ast.If)]
    return Module(name, path, text.count("\n") + 1, tuple(_imports(tree, package, root)))


def _imports(tree: ast.AST, package: Sequence[str], root: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            for alias in node.names:  # `from pinscope.cli import run` imports a module, not a name
                inner = root / Path(*base.split("."), alias.name)
                is_module = inner.with_suffix(".py").exists() or (inner / "__init__.py").exists()
                yield f"{base}.{alias.name}" if is_module else base


def violations(package: Sequence[Module]) -> list[str]:
    """Everything in these modules that breaks a rule of the house, one line each."""
    return [
        *(line for module in package for line in _wrong_floor(module)),
        *(line for module in package for line in _wrong_door(module)),
        *(line for module in package for line in _wrong_experiment(module)),
        *(line for module in package for line in _wrong_library(module)),
        *_circles(package),
        *(f"{m.name} has {m.lines} lines; at most {MOST_LINES}" for m in package if m.lines > MOST_LINES),
    ]


def _floor(name: str) -> int | None:
    """The floor a module stands on; ``None`` if it is free to all, above every floor if it is on the roof."""
    if name in FREE:
        return None
    if name in TOP:
        return len(FLOORS)
    parts = name.split(".")
    return FLOORS.index(parts[1]) if len(parts) > 1 and parts[1] in FLOORS else -1


def _wrong_floor(module: Module) -> Iterator[str]:
    own = _floor(module.name)
    if own == -1:
        yield f"{module.name} stands on no floor"
        return
    for target in module.imports:
        if target.split(".")[0] not in ("pinscope", "app"):
            continue
        floor = _floor(target)
        if floor is None:
            continue
        if own is None or floor > own or (floor == own and own == len(FLOORS)):
            yield f"{module.name} imports {target}, which stands above it"


def _wrong_door(module: Module) -> Iterator[str]:
    for target in module.imports:
        doors = DOORS.get(target.split(".")[0])
        if doors and not any(fnmatchcase(module.name, f"{door}*") for door in doors):
            yield f"{module.name} imports {target}, which only {' and '.join(doors)} may"


def _wrong_experiment(module: Module) -> Iterator[str]:
    """No experiment imports another one, and what reads and draws touches no machine."""
    parts = module.name.split(".")
    is_experiment = parts[:2] == ["pinscope", "experiments"] and len(parts) > 3
    if not (is_experiment or module.name.startswith(KEPT)):
        return
    for target in module.imports:
        others = target.split(".")
        if is_experiment and others[:2] == parts[:2] and len(others) > 3 and others[2] != parts[2]:
            yield f"{module.name} imports {target} of another experiment"
        if parts[-1].startswith(PURE) and ".".join(others[:2]) in IMPURE:
            yield f"{module.name} imports {target}, and must stay pure"


def _wrong_library(module: Module) -> Iterator[str]:
    if module.name.startswith(tuple(f"pinscope.{room}" for room in STILL)):
        for target in set(module.imports).intersection(MOVING):
            yield f"{module.name} imports {target}, and must do no I/O and read no clock"


def _circles(package: Sequence[Module]) -> Iterator[str]:
    """The first circle of modules that import each other, if there is one."""
    own = {module.name for module in package}
    graph = {module.name: own.intersection(module.imports) - {module.name} for module in package}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield "circle: " + " → ".join(error.args[1])


def test_the_house_keeps_its_rules() -> None:
    assert violations(own_modules()) == []


def test_every_room_of_the_package_has_a_floor() -> None:
    rooms = {path.name for path in (ROOT / "pinscope").iterdir() if (path / "__init__.py").exists()}
    assert rooms <= set(FLOORS)


def test_the_first_lines_of_a_room_name_its_files_and_the_rooms_that_it_imports() -> None:
    package = own_modules()
    for room in DESCRIBED:
        folder = ROOT / "pinscope" / room
        words = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
        own = {path.stem for path in folder.glob("*.py")} - {"__init__"}
        inner = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
        imported = {target for module in package if module.path.is_relative_to(folder) for target in module.imports}
        rooms = {part for part in FLOORS if any(f"{target}.".startswith(f"pinscope.{part}.") for target in imported)}
        unnamed = {name for name in (own | inner | rooms) - {room} if f"``{name}``" not in words}
        assert unnamed == set(), room


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("records/run.py", "import pinscope.store.store", "pinscope.records.run imports pinscope.store.store"),
        ("records/run.py", "from pinscope.store import store", "pinscope.records.run imports pinscope.store.store"),
        (
            "records/run.py",
            "def f():\n    from ..store import store",
            "imports pinscope.store.store, which stands above",
        ),
        ("errors.py", "from pinscope.records import run", "pinscope.errors imports pinscope.records.run"),
        ("cli/main.py", "import app", "pinscope.cli.main imports app, which stands above it"),
        ("store/store.py", "import psutil", "only pinscope.probes. may"),
        ("dashboard/page.py", "import cupy.cuda", "only pinscope.lab.cuda"),
        ("runner/jobs.py", "from sqlalchemy import select", "only pinscope.store. may"),
        ("experiments/one.py", "import streamlit as st", "only app and pinscope.dashboard. may"),
        ("experiments/one/charts.py", "import pinscope.store.store", "must stay pure"),
        ("live/timeline/findings.py", "import pinscope.store.store", "must stay pure"),
        ("live/findings.py", "import pinscope.probes.proc", "must stay pure"),
        ("charts/plot.py", "import time", "must do no I/O and read no clock"),
        ("experiments/one/procedure.py", "import pinscope.experiments.two.reading", "of another experiment"),
        ("helpers/one.py", "", "pinscope.helpers.one stands on no floor"),
        ("store/store.py", "\n" * 600, "pinscope.store.store has 601 lines"),
        ("store/store.py", "import pinscope.store.other", "circle: "),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, path: str, text: str, complaint: str) -> None:
    for name in ("store/store.py", "records/run.py"):
        (tmp_path / "pinscope" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pinscope" / name).write_text("")
    (tmp_path / "pinscope/store/other.py").write_text("import pinscope.store.store\n")
    (tmp_path / "app.py").write_text("import pinscope.store.store\nimport streamlit\n")
    assert violations(modules(tmp_path)) == []
    planted = tmp_path / "pinscope" / path
    planted.parent.mkdir(parents=True, exist_ok=True)
    planted.write_text(text)
    (violation,) = violations(modules(tmp_path))
    assert complaint in violation


def test_lint_holds_the_doors_of_the_design_too() -> None:
    import tomllib

    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    banned = set(lint["flake8-tidy-imports"]["banned-api"])
    assert "TID251" in lint["select"]
    assert {"cupy", "prometheus_client", "pynvml", "psutil", "streamlit", "sqlalchemy"} <= banned
    open_doors = [pattern for pattern, rules in lint["per-file-ignores"].items() if "TID251" in rules]
    assert sorted(open_doors) == sorted(
        [
            "app.py", "pinscope/dashboard/*", "pinscope/experiments/*/cuda*.py", "pinscope/lab/cuda*.py",
            "pinscope/fleet/*", "pinscope/monitoring/*", "pinscope/probes/*", "pinscope/store/*", "tests/**",
        ]
    )  # fmt: skip


def test_gpu_tests_and_scripts_import_only_what_is_there() -> None:
    """They run on GPU hosts or by hand only: a name that moved would be missed until then."""
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.read_text().startswith("#!/usr/bin/env python3")]
    assert scripts
    for path in sorted([*(ROOT / "tests" / "gpu").rglob("*.py"), *scripts]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ("pinscope", "tests"):
                missing = {alias.name for alias in node.names} - _names_of(str(node.module))
                assert not missing, f"{path.name} imports {', '.join(sorted(missing))} from {node.module}"


@cache
def _names_of(module: str) -> set[str]:
    """What may be imported from a module: what it binds anywhere, and the modules of a package."""
    place = ROOT / module.replace(".", "/")
    names = {path.stem for path in place.iterdir()} if place.is_dir() else set()
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    for node in ast.walk(ast.parse(source.read_text())) if source.exists() else ():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return names


FOLDERS = sorted(path.parent for path in (ROOT / "pinscope" / "experiments").glob("*/experiment.py"))
FILES = {"experiment.py", "ways.py", "reading.py", "findings.py", "charts.py"}
BESIDE = ("cuda_", "torch_", "child_", "code_")
"""What touches a GPU library, what a child process runs, and code to paste."""


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_folder_has_the_five_files_and_no_others(folder: Path) -> None:
    others = {path.name for path in folder.glob("*.py")} - FILES
    assert not [name for name in others if not name.startswith(BESIDE)]


def test_the_folders_are_those_of_the_registry() -> None:
    from pinscope.experiments.registry import EXPERIMENTS

    assert {folder.name for folder in FOLDERS} == {entry.name for entry in EXPERIMENTS}
