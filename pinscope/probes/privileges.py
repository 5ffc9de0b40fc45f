"""What the kernel lets this process do beyond others (capabilities(7))."""

from __future__ import annotations

import re

from pinscope.probes.proc import Proc

IPC_LOCK = 14
"""Lifts RLIMIT_MEMLOCK. These are bits (include/uapi/linux/capability.h)."""
SYS_PTRACE = 19
"""Looks into other users' processes."""
SYS_ADMIN = 21

_HEXADECIMAL = re.compile(r"[0-9a-f]{1,32}", re.IGNORECASE)
_WHOLE_MAP = ["0", "0", "4294967295"]


def has_capability(bit: int, proc: Proc) -> bool:
    """True if it has this capability; in a rootless container it shows, and does not count outside."""
    mask = proc.fields("/proc/self/status").text("CapEff").value or ""
    return _HEXADECIMAL.fullmatch(mask) is not None and bool(int(mask, 16) >> bit & 1)


def in_initial_user_namespace(proc: Proc) -> bool:
    """True if user ids are mapped one to one, as in the initial user namespace, or namespaces do not exist."""
    return (proc.read("/proc/self/uid_map").value or " ".join(_WHOLE_MAP)).split() == _WHOLE_MAP
