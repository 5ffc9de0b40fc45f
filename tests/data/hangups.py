"""For the children of tests that are sent SIGHUP, as when a terminal closes."""

from __future__ import annotations

import signal


def hear_hangups() -> None:
    """Undo in a child, before it starts, what nohup does to the tests: what ignores SIGHUP would pass that on."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
