"""What ships: dependencies that agree with each other, documents that say what is there, and nothing private."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from typer.main import get_command

import pinscope
from pinscope import errors
from pinscope.cli.main import app
from tests.unit.test_architecture import own_modules

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]

DOCUMENTS = ["README.md", "CONTRIBUTING.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md"))]

IMPORT_NAMES = {"markdown-it-py": "markdown_it", "nvidia-ml-py": "pynvml", "prometheus-client": "prometheus_client"}
"""Where the module is not called as the distribution is."""
NOT_OURS = {
    "pinscope", "cupy", "cupy_backends", "cupyx", "dask", "distributed", "pytest", "torch", "sitecustomize"
}  # fmt: skip
"""PinScope itself, what extras bring, the module by which a host changes its own Python, and what only pytest loads."""
COME_WITH = {"pydantic_core": "pydantic", "starlette": "streamlit", "google": "streamlit", "markupsafe": "jinja2"}
"""Modules that are part of what a dependency offers → that dependency."""


def tracked_files() -> list[Path]:
    """Files that a checkout holds; all files of an unpacked archive."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        return [ROOT / name for name in listed.decode().split("\0") if name and (ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts]


def _normal(requirement: str) -> str:
    return str(Requirement(requirement))


def test_requirements_are_the_dependencies_with_cupy_for_cuda_13() -> None:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    listed = [_normal(line) for line in lines if line and not line.startswith("#")]
    assert sorted(listed) == sorted(map(_normal, PROJECT["dependencies"] + EXTRAS["dashboard"] + EXTRAS["cuda13"]))


@pytest.mark.parametrize(
    ("lock", "extras"), [("run", ["dashboard"]), ("dev", ["dev"]), ("cuda13", ["cuda13"]), ("cuda12", ["cuda12"])]
)
def test_what_scripts_install_is_locked_with_hashes_as_the_project_allows(lock: str, extras: list[str]) -> None:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text()
    pins = re.findall(r"^([\w.-]+)==(\S+).*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.M)
    assert len(pins) == text.count("==") - text.count("== '")
    assert "http" not in text
    wanted = map(
        Requirement, PROJECT["dependencies"] * (lock == "run") + [line for extra in extras for line in EXTRAS[extra]]
    )
    for requirement in wanted:
        versions = [version for name, version in pins if name == requirement.name]
        assert versions, requirement
        assert all(requirement.specifier.contains(version) for version in versions)


def test_the_two_cuda_extras_differ_in_nothing_but_the_cuda_version() -> None:
    for name in ("cuda", "trace"):
        with_suffix = [requirement.replace("cupti=", "cupti-cu12=") for requirement in EXTRAS[f"{name}13"]]
        assert [requirement.replace("13", "12") for requirement in with_suffix] == EXTRAS[f"{name}12"]


@pytest.mark.xdist_group("source")
def test_every_dependency_is_used_and_every_use_is_a_dependency() -> None:
    imported = {target.split(".")[0] for module in own_modules() for target in module.imports}
    third_party = imported - set(sys.stdlib_module_names) - NOT_OURS
    declared = {Requirement(line).name for line in (*PROJECT["dependencies"], *EXTRAS["dashboard"])}
    assert {COME_WITH.get(name, name) for name in third_party} == {IMPORT_NAMES.get(name, name) for name in declared}


def test_the_version_is_that_of_the_newest_release_in_the_changelog() -> None:
    assert re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text(), re.M)[1] == pinscope.__version__  # type: ignore[index]


def test_the_container_file_takes_what_is_there_and_runs_as_nobody_special() -> None:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    copied = {
        name for line in lines if line.startswith("COPY ") and "--from" not in line for name in line.split()[1:-1]
    }
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)
    assert [line.partition("=")[2] for line in lines if line.startswith("ARG EXTRA=")] == ["cuda13"]
    assert "USER 10001" in lines
    assert lines[-2:] == ['ENTRYPOINT ["pinscope"]', 'CMD ["dashboard"]']


def test_package_data_holds_every_file_that_is_no_module() -> None:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["pinscope"]
    package = ROOT / "pinscope"
    others = [path.relative_to(package) for path in tracked_files() if path.is_relative_to(package)]
    for path in others:
        assert path.suffix == ".py" or any(fnmatch(str(path), pattern) for pattern in patterns), path


def test_licence_is_apache_2() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text.splitlines()[1]
    assert "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["license"] == "Apache-2.0"


def _commands_in(text: str) -> list[list[str]]:
    """`pinscope …` lines of code blocks, split into words."""
    blocks = re.findall(r"^```(?:console|bash|sh|text)?\n(.*?)^```", text, re.M | re.S)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [line.split("#")[0].split() for line in lines if line.removeprefix("$ ").startswith("pinscope ")]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_command_in_the_documents_exists_with_its_options(name: str) -> None:
    commands = _commands_in((ROOT / name).read_text())
    assert commands or name not in ("README.md", "docs/quick-start.md")
    for words in commands:
        command = get_command(app)
        for word in words[1:]:
            if command.name == "trace" and re.search(r"\.py$|/bin/|torchrun$", word):
                break  # what follows is the program's
            if word.startswith("-"):
                options = {option for parameter in command.params for option in parameter.opts}
                assert word.split("=")[0] in options | {"--help"}, " ".join(words)
            elif hasattr(command, "commands"):  # check FILE is check against FILE
                name = word if word in command.commands else "against"
                command = command.commands[name]
        assert not hasattr(command, "commands") or "--help" in words or "--version" in words, " ".join(words)


def test_every_exit_code_and_every_variable_is_documented() -> None:
    """A variable that only developers set may stand in CONTRIBUTING.md."""
    settings = (ROOT / "docs" / "settings.md").read_text()
    codes = {error.exit_code for error in (errors.PinScopeError, *_subclasses(errors.PinScopeError))}
    for code in {0, *codes}:
        assert f"\n| {code} |" in settings, code
    documents = settings + (ROOT / "CONTRIBUTING.md").read_text()
    sources = "".join(path.read_text() for path in [*(ROOT / "pinscope").rglob("*.py"), *(ROOT / "scripts").iterdir()])
    for variable in set(re.findall(r"\bPINSCOPE_[A-Z]+\b", sources)):
        assert re.search(f"`{variable}[=`]", documents), variable


def _subclasses(error: type[errors.PinScopeError]) -> Iterator[type[errors.PinScopeError]]:
    for subclass in error.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


_PRIVATE = re.compile(
    rf"{re.escape(str(ROOT))}/|/root/|/home/(?!user\b)\w+"
    r"|pypi\.org|pythonhosted\.org|deb\.debian\.org|registry\.npmjs\.org|--(?:extra-)?index-url"
)


def _texts(path: Path) -> Iterator[str]:
    """What a file says; of a bundle, what its members say."""
    if path.suffix == ".pinscope":
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as bundle:
                yield from (bundle.read(name).decode(errors="replace") for name in bundle.namelist())
    elif path.suffix not in (".png", ".webp"):
        yield path.read_text(errors="replace")


def test_no_tracked_file_names_a_private_path_or_a_package_registry() -> None:
    for path in tracked_files():
        if path != Path(__file__):
            for text in _texts(path):
                private = _PRIVATE.search(text)
                assert private is None, f"{path.relative_to(ROOT)}: {private[0]}"
