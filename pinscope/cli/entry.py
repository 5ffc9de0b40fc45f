"""Where the command ``pinscope`` begins: from here to its end it can be interrupted without a traceback."""

from __future__ import annotations

import atexit
import os
import signal
from functools import partial

from pinscope import isolation

INTERRUPTED = 130
"""As :class:`pinscope.errors.Cancelled`, which is not loaded yet."""


def main() -> int:
    """Carry out the command line; its exit code. Ctrl-C leaves no traceback, not even while the command still loads."""
    atexit.register(_ignore_signals)  # first in, so the last to run
    isolation.collect_rarely()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored, as in a shell's background job
        return _carry_out()
    signal.signal(signal.SIGINT, partial(_leave, INTERRUPTED, b"pinscope: interrupted\n"))
    try:
        import pinscope.cli.main  # noqa: F401 - takes a quarter of a second

        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = _carry_out()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # everything is done and said
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, partial(_leave, code, b""))
    except KeyboardInterrupt:  # a second one, while the first one's line was written
        code = INTERRUPTED
    return code


def _carry_out() -> int:
    from pinscope.cli.main import main as carry_out

    return carry_out()


def _ignore_signals() -> None:
    """Python gives signals their default again before it takes its modules apart, which lasts a tenth of a second: a
    command that has done everything would end as if it had been killed."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _leave(code: int, line: bytes, *signalled: object) -> None:
    del signalled
    os.write(2, line)
    os._exit(code)
