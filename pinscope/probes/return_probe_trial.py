"""A trial of the kernel's return probes on a program in a sandbox, before they are set in anybody's programs.

From Linux 6.11 on, x86-64 kernels come back from a probed function by a system call that nobody's seccomp filter
knows (uretprobe, number 335). Kernels without the later fix let the filter refuse it, and the probed program dies:
in Docker's default sandbox, for one (systemd issue 34615, opensnitch issue 1205). Distributions ported the one and
the other to kernels of other numbers. So it is tried: a child of PinScope filters that system call and calls a probed
function, in a copy of a library that only this child has.
"""

from __future__ import annotations

import os
import re
import subprocess

from pinscope import isolation
from pinscope.probes.child_lifetime import ending_with_this
from pinscope.probes.proc import HERE, Proc
from pinscope.probes.tracefs import TraceInstance
from pinscope.probes.uprobes import function_offsets

URETPROBE = 335
"""The system call's number on x86-64 (arch/x86/entry/syscalls/syscall_64.tbl)."""
FUNCTION = "cbrt"

_FIRST_KERNEL = (6, 11)
_SECONDS = 20.0
_LIBRARY = re.compile(r" (/\S*/libm[.-]\S*)$", re.MULTILINE)
_RELEASE = re.compile(r"(\d+)\.(\d+)")
_FAILED_ITSELF = 9
_SANDBOXED = f"""
import ctypes, struct, sys
library = ctypes.CDLL(sys.argv[1])
function = library.{FUNCTION}
function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
libc = ctypes.CDLL(None, use_errno=True)
# Load the number; if it is that of uretprobe: fail with EPERM; else: allow. (seccomp(2), BPF)
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, {URETPROBE}), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in rules))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(rules), ctypes.addressof(code)))
libc.prctl(38, 1, 0, 0, 0)
libc.prctl(22, 2, program)  # fails where the kernel has no such filters: then nobody's program has one
sys.exit(0 if abs(function(27.0) - 3.0) < 1e-9 else {_FAILED_ITSELF})
"""


def why_not_return_probes(instance: TraceInstance, proc: Proc = HERE) -> str | None:
    """Why return probes would do harm on this kernel; ``None`` if they do none.

    Args:
        instance: an open one, without groups.
        proc: where /proc is read.
    """
    release = _RELEASE.match(proc.line("/proc/sys/kernel/osrelease").value or "")
    if os.uname().machine != "x86_64" or (release and (int(release[1]), int(release[2])) < _FIRST_KERNEL):
        return None
    library = _LIBRARY.search(proc.read("/proc/self/maps").value or "")
    if library is None:
        return "the kernel's return probes could not be tried: this Python uses no libm"
    try:
        with open(library[1], "rb") as original:  # noqa: PTH123 - its text is copied as it is
            content = original.read()
        copy = os.memfd_create("pinscope-trial")
    except OSError as error:
        return f"the kernel's return probes could not be tried: {error}"
    try:
        os.write(copy, content)
        return _trial(instance, copy)
    except (OSError, subprocess.SubprocessError) as error:
        return f"the kernel's return probes could not be tried: {error}"
    finally:
        os.close(copy)


def _trial(instance: TraceInstance, library: int) -> str | None:
    place = f"/proc/{os.getpid()}/fd/{library}"
    offset = (function_offsets(library, [FUNCTION], "x86_64").value or {}).get(FUNCTION)
    if offset is None:
        return f"the kernel's return probes could not be tried: libm has no {FUNCTION}"
    group = instance.add_group(0, lambda group: [f"r:{group}/trial {place}:0x{offset:x}"])
    try:
        command = isolation.bare_command(_SANDBOXED, f"/proc/self/fd/{library}")
        ended = subprocess.run(
            command,
            capture_output=True,
            timeout=_SECONDS,
            check=False,
            pass_fds=[library],
            preexec_fn=ending_with_this(),
        )
    finally:
        instance.remove_group(group)
    if ended.returncode < 0:
        return (
            "this kernel's return probes kill programs that run in a sandbox, such as Docker's (seccomp refuses the "
            "system call uretprobe): use Linux 6.14 or newer, or an update of 6.12 or 6.13 that has the fix"
        )
    if ended.returncode:
        return f"the kernel's return probes could not be tried: the trial ended with code {ended.returncode}"
    return None
