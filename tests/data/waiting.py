"""Waiting for what other threads and processes do."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], process: subprocess.Popen[str] | None = None, seconds: float = 120) -> Any:
    """Wait for something to become true, while a process lives; what it is then."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
    return value


def free_port() -> int:
    """A port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
