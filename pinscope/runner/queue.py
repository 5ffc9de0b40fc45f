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
from contextlib import closing, contextmanager
from pathlib import Path

from pinscope.errors import MeasurementFailed

POLL_SECONDS = 0.1
MOST_WAITING = 128
"""How many can be told at once for whom they wait."""
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
        with closing(_Question(address)) as question:
            while not _bound(held, address):
                waiting(question.holder())
                time.sleep(POLL_SECONDS)
        held.listen(MOST_WAITING)  # lets those who wait ask the kernel who holds it
        yield


def _bound(held: socket.socket, address: str) -> bool:
    try:
        held.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return False
        raise MeasurementFailed(f"cannot queue for the device: {error.strerror}") from None
    return True


class _Question:
    """Who holds the lock: asked once, and again when that one has ended.

    The connection stays open meanwhile. The holder never accepts it, so one a poll would soon fill his backlog, and
    from then on nobody could ask.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._asking: socket.socket | None = None
        self._answer = ""

    def holder(self) -> str:
        """The run if it can be told, else the process, in words."""
        if self._asking is not None and _has_ended(self._asking):
            self.close()
        if self._asking is None:
            self._ask()
        return self._answer

    def close(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    def _ask(self) -> None:
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        asking.setblocking(False)
        try:
            asking.connect(self._address)
            credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:  # it has just ended or just begun, or very many others ask
            asking.close()
            self._answer = "another run"
            return
        self._asking = asking
        self._answer = _in_words(struct.unpack("3i", credentials)[0])


def _has_ended(connection: socket.socket) -> bool:
    """Whether the other end is closed; it never sends anything."""
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _in_words(pid: int) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return f"process {pid}"
    if _WORKER in command:
        return f"run {command[command.index(_WORKER) + 1]} (process {pid})"
    return f"process {pid}"
