"""Whether this process may set probes in other programs, on this kernel; and if not, why not and what to do."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pinscope.probes.answer import Answer
from pinscope.probes.privileges import SYS_ADMIN, has_capability
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.tracefs import tracing_folder
from pinscope.probes.uprobes import ARCHITECTURES
from pinscope.probes.virtualization import has_own_pids

_LOCKED = re.compile(r"\[confidentiality\]")


def tracing_access(proc: Proc = HERE, machine: str | None = None) -> Answer[Path]:
    """Where tracefs is mounted, if probes can be set; else the first thing that stands in the way.

    Nothing is changed: to mount tracefs, for instance, is left to whoever runs the host.

    Args:
        proc: where /proc and /sys are read.
        machine: the processor, as ``uname -m`` calls it; ``None``: this one.
    """
    machine = machine or os.uname().machine
    if machine not in ARCHITECTURES:
        known = " and ".join(ARCHITECTURES)
        return Answer.missing(f"registered memory can be followed on {known}; this processor is {machine}")
    if has_own_pids(proc):
        return Answer.missing(
            "this container has process ids of its own, and the kernel traces by the host's: run PinScope on the host, "
            "or in a container started with --pid=host --privileged"
        )
    if not has_capability(SYS_ADMIN, proc):
        return Answer.missing("to follow registered memory takes root (CAP_SYS_ADMIN): run it with sudo")
    if _LOCKED.search(proc.read("/sys/kernel/security/lockdown").value or ""):
        return Answer.missing(
            "the kernel is locked down for confidentiality, which forbids tracing: start it with lockdown=integrity, "
            "or without Secure Boot"
        )
    return tracing_folder(proc).then(
        lambda folder: folder if (folder / "uprobe_events").exists() else None,
        "this kernel has no probes of user programs: it needs one built with CONFIG_UPROBE_EVENTS",
    )
