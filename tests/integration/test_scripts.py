"""scripts/run and scripts/test make their environment once, and never trust a half-made one.

The interpreter they find is a stand-in that notes what it is asked to do: what is tested is the scripts' own
logic. The real set-up is what brought this test here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

STAND_IN = """#!/bin/bash
# Notes its arguments; makes an "environment" whose python is itself; pip fails while there is a file no-network.
echo "$(basename "$(dirname "$0")") $*" >>"$LOG"
case "$*" in
    *"-m venv"*) rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
    *"-m pip"*) [ ! -e no-network ] || { echo "pip: no network" >&2; exit 1; } ;;
    "-c import sys; print"*) echo "3.11 $(cat python-version 2>/dev/null)" ;;
    "-") cat >/dev/null; cat driver ;;
esac
"""


class Checkout:
    """A copy of what the scripts need, with the stand-in as the only Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkout"
        shutil.copytree(ROOT / "scripts", self.folder / "scripts")
        shutil.copy(ROOT / "pyproject.toml", self.folder)
        shutil.copytree(ROOT / "requirements", self.folder / "requirements")
        self.log = folder / "log"
        tools = folder / "bin"
        tools.mkdir()
        (tools / "python3").write_text(STAND_IN)
        (tools / "python3").chmod(0o755)
        self.path = f"{tools}:/usr/bin:/bin"
        self.driver(0)

    def driver(self, major: int) -> None:
        """CUDA's major version as the driver tells it; 0 for no driver."""
        (self.folder / "driver").write_text(f"{major}\n")

    def start(self, script: str = "run", *arguments: str, **variables: str) -> tuple[int, list[str], str]:
        """Run a script; its exit code, what the stand-in was asked to do meanwhile, and stderr."""
        self.log.write_text("")
        environment = {**os.environ, "PATH": self.path, "LOG": str(self.log), **variables}
        done = subprocess.run(
            [self.folder / "scripts" / script, *arguments], env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        asked = [line for line in self.log.read_text().splitlines() if " -c " not in line and not line.endswith(" -")]
        return done.returncode, asked, done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_first_start_makes_the_environment_and_the_second_one_only_starts(checkout: Checkout) -> None:
    code, asked, _ = checkout.start("run", "--open")
    assert code == 0
    assert asked[0] == "bin -m venv --clear .venv"
    assert asked[1].endswith("--require-hashes --requirement requirements/run.txt")
    assert asked[2].endswith("--no-deps --editable .")
    assert asked[3:] == ["bin -P -m pinscope dashboard --open"]
    code, asked, errors = checkout.start()
    assert (code, asked, errors) == (0, ["bin -P -m pinscope dashboard"], "")


@pytest.mark.parametrize(("driver", "extra"), [(13, "cuda13"), (14, "cuda13"), (12, "cuda12"), (11, "run")])
def test_the_driver_decides_which_cupy_is_installed(checkout: Checkout, driver: int, extra: str) -> None:
    checkout.driver(driver)
    code, asked, errors = checkout.start()
    assert code == 0
    assert asked[1].endswith(f"--requirement requirements/{extra}.txt")
    assert ("supports CUDA 11 only" in errors) == (driver == 11)


def test_an_interrupted_set_up_is_made_anew(checkout: Checkout) -> None:
    (checkout.folder / "no-network").touch()
    code, asked, errors = checkout.start()
    assert code != 0
    assert "no network" in errors
    assert not any("dashboard" in line for line in asked)
    (checkout.folder / "no-network").unlink()
    code, asked, _ = checkout.start()
    assert code == 0
    assert asked[0] == "bin -m venv --clear .venv"


def test_an_interrupted_addition_for_tests_is_made_anew_too(checkout: Checkout) -> None:
    checkout.start()
    (checkout.folder / "no-network").touch()
    assert checkout.start("test", "--quick")[0] != 0
    (checkout.folder / "no-network").unlink()
    code, asked, _ = checkout.start()
    assert code == 0
    assert asked[0] == "bin -m venv --clear .venv"


@pytest.mark.parametrize("change", ["pyproject.toml", "requirements/run.txt", "driver", "python-version"])
def test_a_changed_need_makes_the_environment_anew(checkout: Checkout, change: str) -> None:
    checkout.start()
    if change == "driver":
        checkout.driver(13)
    else:
        with (checkout.folder / change).open("a") as file:
            file.write("\n# changed\n")
    _, asked, _ = checkout.start()
    assert asked[0] == "bin -m venv --clear .venv"


def test_tests_add_to_the_environment_and_the_dashboard_takes_it_as_it_is(checkout: Checkout) -> None:
    checkout.start()
    _, asked, _ = checkout.start("test", "--quick")  # which needs no package of Debian's
    assert len(asked) == 2  # then it stops: the stand-in has no ruff
    assert asked[0].endswith("--requirement requirements/dev.txt")
    _, asked, _ = checkout.start()
    assert asked == ["bin -P -m pinscope dashboard"]


def test_without_python_and_without_root_one_line_says_what_to_install(checkout: Checkout, tmp_path: Path) -> None:
    tools = tmp_path / "few"
    tools.mkdir()
    for name in ("bash", "dirname", "env"):
        (tools / name).symlink_to(Path(shutil.which(name) or name))
    (tools / "id").write_text("#!/bin/bash\necho 1000\n")
    (tools / "id").chmod(0o755)
    checkout.path = str(tools)
    code, _, errors = checkout.start()
    assert code == 3
    assert errors == (
        "pinscope: this machine lacks: python3 python3-venv. Install it as root: apt-get install python3 python3-venv\n"
    )


def test_scripts_are_executable_and_the_ci_runs_what_people_run() -> None:
    for name in ("scripts/run", "scripts/test", "scripts/test-gpu", ".ci/run"):
        assert os.access(ROOT / name, os.X_OK), name
    assert "scripts/test" in (ROOT / ".ci/run").read_text()
