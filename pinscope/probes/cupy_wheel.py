"""Which CuPy fits the driver, and what is wrong with the one that is installed. CuPy itself is never imported here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pinscope.probes.installation import install_command, uninstall_command
from pinscope.records.environment import Environment

_WHEEL = re.compile(r"cupy-cuda(?P<major>[0-9]+)x")
_NEWEST, _OLDEST = 13, 12
"""CUDA major versions that PinScope has an extra for."""
_DRIVERS = {12: "525", 13: "580"}
"""First driver of each CUDA major version (CUDA Compatibility, "Minor Version Compatibility", table 1)."""
_FIRST_GPU_OF_13 = (7, 5)
"""CUDA 13 dropped GPUs of lower compute capability (CUDA 13.0 release notes): Maxwell, Pascal, Volta."""


@dataclass(frozen=True)
class Problem:
    """Why something cannot be used, and what to do."""

    reason: str
    advice: str | None


def cuda_major(environment: Environment) -> int | None:
    """Major version of the newest CUDA that the driver supports; ``None`` without a driver."""
    head = (environment.cuda_driver or "").partition(".")[0]
    return int(head) if head.isascii() and head.isdigit() else None


def wheels(environment: Environment) -> dict[str, int | None]:
    """Installed CuPy distributions and the CUDA major version each is built for (``None``: built from source)."""
    found: dict[str, int | None] = {}
    for name in environment.packages:
        match = _WHEEL.fullmatch(name)
        if match is not None or name == "cupy":
            found[name] = int(match["major"]) if match is not None else None
    return found


def install_line(environment: Environment) -> str:
    """The command that installs the CuPy which fits driver and GPUs (the newest where there is no driver yet)."""
    driver = cuda_major(environment)
    newest = _NEWEST if driver is None else max(_OLDEST, min(_NEWEST, driver))
    return install_command("cuda12" if newest == _OLDEST or _too_old_for_13(environment) else "cuda13")


def _too_old_for_13(environment: Environment) -> list[str]:
    """Names of the GPUs that CUDA 13 no longer supports."""
    names = []
    for device in environment.devices:
        major, _, minor = (device.compute_capability or "").partition(".")
        if major.isdigit() and minor.isdigit() and (int(major), int(minor)) < _FIRST_GPU_OF_13:
            names.append(device.name)
    return names


def cupy_problem(environment: Environment) -> Problem | None:
    """What keeps CuPy from working here, as far as its packages and the driver tell; ``None`` if nothing does."""
    driver = cuda_major(environment)
    installed = wheels(environment)
    install = install_line(environment)
    if driver is not None and driver < _OLDEST:
        return Problem(
            f"the driver {environment.driver or ''} supports CUDA {environment.cuda_driver}; "
            f"CuPy needs CUDA {_OLDEST} or newer",
            f"Install driver {_DRIVERS[_NEWEST]} or newer, then: {install_command('cuda13')}",
        )
    if not installed:
        return Problem("CuPy is not installed", f"Run: {install}")
    remove = uninstall_command(*sorted(installed))
    if len(installed) > 1:
        return Problem(
            f"several CuPy packages are installed ({', '.join(sorted(installed))}) and overwrite one another",
            f"Run: {remove} && {install}",
        )
    name, major = next(iter(installed.items()))
    if driver is not None and major is not None and major > driver:
        return Problem(
            f"{name} needs CUDA {major}, but driver {environment.driver or ''} supports CUDA {environment.cuda_driver}",
            f"Run: {remove} && {install} – or install driver {_DRIVERS.get(major, 'of the newest branch')} or newer",
        )
    if major == _NEWEST and (old := _too_old_for_13(environment)):
        return Problem(f"{name} is for CUDA 13, which no longer supports {old[0]}", f"Run: {remove} && {install}")
    return None
