"""What people install: the wheel from the source distribution, in an environment that has nothing of this clone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.release  # what the wheel holds, tests/unit/test_packaging.py looks at each time
def test_the_wheel_installs_into_an_empty_environment_and_works_from_any_folder() -> None:
    """By uv, the quickest; ``scripts/check-install`` alone tries pip and pipx as well."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "check-install"), "uv"],
        env={"UV_LINK_MODE": "hardlink", **os.environ},  # half a gigabyte need not be copied
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "uv: the wheel is installed and works from any folder\n"
