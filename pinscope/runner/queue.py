"""One run at a time per GPU on this machine, across processes and users: others queue.

The lock is a name in the kernel's abstract socket namespace: it needs no file and no permission, and it is free
the moment its holder ends, however it ends. Containers with a network namespace of their own have a queue of
their own.
"""

from __future__ import annotations

import errno
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pinscope.errors import MeasurementFailed

POLL_SECONDS = 0.1
_WORKER = "pinscope.runner.worker"


@contextmanager
def turn(name: str, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of ``name`` while the block runs.

    Args:
        name: what is locked: a GPU's UUID, or ``host`` for the host model.
        waiting: called with what holds the lock, again and again while it is held; may raise to give up.

    Raises:
        MeasurementFailed: the kernel refuses the lock for another reason than that it is held.
    """
    address = f"\0pinscope-run-{name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as held:
        while not _bound(held, address):
            waiting(_holder(address))
            time.sleep(POLL_SECONDS)
        held.listen(1)  # lets those who wait ask the kernel who holds it
        yield


def _bound(held: socket.socket, address: str) -> bool:
    try:
        held.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise MeasurementFailed(f"cannot queue for the device: {error.strerror}") from None
    return True


def _holder(address: str) -> str:
    """Who holds the lock, in words: the run if it can be told, else the process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(address)
            credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:  # it has just ended, or many others ask
            return "another run"
    pid, _, _ = struct.unpack("3i", credentials)
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return f"process {pid}"
    if _WORKER in command:
        return f"run {command[command.index(_WORKER) + 1]} (process {pid})"
    return f"process {pid}"
