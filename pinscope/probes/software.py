"""Versions: of the packages that shape a measurement, and of PinScope itself."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import pinscope
from pinscope.probes.answer import Answer
from pinscope.probes.parent import ending_with_this

COMMIT_VARIABLE = "PINSCOPE_COMMIT"
"""Environment variable that names the commit where the source travels without its repository (container images)."""

_PACKAGES = (
    "numpy",
    "psutil",
    "nvidia-ml-py",
    "cupy",
    "cupy-cuda11x",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "cupy-cuda14x",
    "cuda-toolkit",
    "nvidia-cuda-runtime",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime-cu12",
    "nvidia-cuda-nvrtc-cu12",
    "torch",
    "numba",
    "cupti-python",
)
_COMMIT = re.compile(r"[0-9a-f]{7,64}(-dirty)?")
_CHECKOUT = Path(pinscope.__file__).resolve().parent.parent
_GIT_SECONDS = 10


def package_versions() -> dict[str, str]:
    """Versions of the installed packages that shape a measurement, by distribution name."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def source_commit(checkout: Path = _CHECKOUT, variables: Mapping[str, str] = os.environ) -> Answer[str]:
    """The commit that this source is, with ``-dirty`` if tracked files were changed since."""
    given = variables.get(COMMIT_VARIABLE)
    if given is not None:
        return Answer(given) if _COMMIT.fullmatch(given) else Answer.missing(f"{COMMIT_VARIABLE} is no commit")
    if not (checkout / ".git").exists():
        return Answer.missing("PinScope does not run from a git checkout")
    try:
        head = _git(checkout, "rev-parse", "HEAD")
        changed = _git(checkout, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer.missing(f"git could not be asked: {error}")
    commit = head.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")
    if head.returncode or changed.returncode or not _COMMIT.fullmatch(commit):
        said = (head.stderr or changed.stderr).strip()[:200]
        return Answer.missing(f"git does not name the commit: {said or commit[:200]}")
    return Answer(commit)


def _git(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What git answers, by one process: a child of git's own would not end with this one.

    Without locks: a probe must not stand in the way of somebody's commit.
    """
    return subprocess.run(
        ["git", "--no-optional-locks", *arguments],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=_GIT_SECONDS,
        check=False,
        preexec_fn=ending_with_this(),
    )
