"""Commands of PinScope in processes of their own."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def variables(**changes: str) -> dict[str, str]:
    """The environment in which this source is found, with some variables replaced."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def drawn_in_a_terminal(*arguments: str) -> tuple[bytes, bytes]:
    """What a command that ends well writes to stderr, which is a terminal, and to stdout, which is a pipe."""
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "pinscope", *arguments], env=variables(TERM="xterm-256color"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=end,
    ) as process:  # fmt: skip
        os.close(end)
        drawn = b""
        while True:
            try:
                drawn += (part := os.read(terminal, 4096))
            except OSError:  # the other end is closed
                break
            if not part:
                break
        assert process.stdout is not None
        facts = process.stdout.read()
        assert process.wait(60) == 0
    os.close(terminal)
    return drawn, facts
