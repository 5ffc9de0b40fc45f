"""Which of NVIDIA's kernel modules is loaded, and whether CUDA's Multi-Process Service runs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pinscope.probes.answer import Answer
from pinscope.probes.proc import Proc
from pinscope.records.environment import KernelModule

VERSION_FILE = "/proc/driver/nvidia/version"
PIPE_VARIABLE = "CUDA_MPS_PIPE_DIRECTORY"
_USUAL_PIPES = "/tmp/nvidia-mps"  # noqa: S108 - where the daemon listens by default (NVIDIA's MPS documentation)
_DAEMON = "nvidia-cuda-mps"
"""Beginning of the names of the control daemon and its servers; the kernel keeps 15 characters of a name."""
_TAINT_FILE = "/sys/module/nvidia/taint"


def kernel_module(proc: Proc) -> Answer[KernelModule]:
    """The open kernel module names itself so; else the licence decides: a proprietary module taints the kernel (P)."""
    version = proc.read(VERSION_FILE)
    if "Open Kernel Module" in (version.value or ""):
        return Answer("open")
    taint = proc.line(_TAINT_FILE)
    if taint.value is not None:
        return Answer("proprietary" if "P" in taint.value else "open")
    return Answer("proprietary") if version.value else Answer(None, version.reason)


def multi_process_service(proc: Proc, variables: Mapping[str, str] = os.environ) -> Answer[bool]:
    """Whether a CUDA program that is started here would share a context with others through MPS.

    It would if the control daemon's pipe is there and the daemon lives. In a container of its own the daemon cannot
    be seen: then a pipe alone says nothing.
    """
    folder = variables.get(PIPE_VARIABLE) or _USUAL_PIPES
    if not proc.exists(f"{folder}/control"):
        return Answer(False)
    pids = proc.pids()
    if pids.value is None:
        return Answer(None, pids.reason)
    if any((proc.line(f"/proc/{pid}/comm").value or "").startswith(_DAEMON) for pid in pids.value):
        return Answer(True)
    return Answer.missing(f"{folder}/control is there, but its daemon cannot be seen; it may have ended")
