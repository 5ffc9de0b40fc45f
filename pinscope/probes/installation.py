"""What to type here to install a package into the Python that runs PinScope. No index has PinScope itself."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pinscope

Extra = Literal["cuda12", "cuda13", "postgresql", "torch", "trace12", "trace13"]
EXTRAS: Mapping[Extra, tuple[str, ...]] = {
    "cuda13": ("cupy-cuda13x>=14.0,<15", "cuda-toolkit[nvrtc,cudart]==13.*"),
    "cuda12": ("cupy-cuda12x>=14.0,<15", "cuda-toolkit[nvrtc,cudart]==12.*"),
    "postgresql": ("psycopg[binary]>=3.2,<4",),
    "torch": ("torch>=2.4",),
    "trace13": ("cupti-python==13.*",),
    "trace12": ("cupti-python==12.*",),
}
"""As in pyproject.toml, which an installed PinScope does not have beside it."""
_ROOT = Path(pinscope.__file__).resolve().parent.parent


def install_command(extra: Extra, root: Path = _ROOT) -> str:
    """Installs what the extra names: from the clone that PinScope runs from, else the packages by their own names."""
    if (root / "pyproject.toml").is_file():
        return f"{_pip('install')} -e {shlex.quote(f'{root}[{extra}]')}"
    return f"{_pip('install')} {shlex.join(EXTRAS[extra])}"


def uninstall_command(*packages: str) -> str:
    """Removes packages."""
    return f"{_pip('uninstall')} {shlex.join(packages)}"


def _pip(what: str) -> str:
    """The ``pip`` of a shell may be another Python's. Environments that uv makes have none."""
    python = shlex.quote(sys.executable)
    if importlib.util.find_spec("pip") is None:
        return f"uv pip {what} --python {python}"
    return f"{python} -m pip {what}"
