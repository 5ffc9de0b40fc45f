"""Standard streams of a program that runs twice: its stdout is passed on and compared, its stdin given again."""

from __future__ import annotations

import hashlib
import os
import select
import sys
import termios
import threading
import tty
from types import TracebackType
from typing import Self

PIECE_BYTES = 1 << 16
LINGER_SECONDS = 0.2
"""After the program's end stdout is read until it was silent for so long: a child of the program may hold it open."""


class HeardStdout:
    """A descriptor for a program's stdout. What it writes is summed up, and passed on to our own if wanted.

    Where our own stdout is a terminal, the program gets one, too: programs write otherwise into a pipe.

    Args:
        pass_on: write everything to our own stdout.
    """

    def __init__(self, pass_on: bool) -> None:
        self._pass_on = pass_on
        self._sum = hashlib.sha256()
        self._read, self.descriptor = _terminal() if os.isatty(1) else os.pipe()
        self._ended, self._end = os.pipe()
        self._thread = threading.Thread(target=self._hear, name="stdout of the program")
        self._finished = False

    def __enter__(self) -> Self:
        sys.stdout.flush()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish()

    def finish(self) -> str:
        """The sum of all that was written, once the program has ended."""
        if not self._finished:
            self._finished = True
            os.close(self.descriptor)
            os.close(self._end)
            self._thread.join()
            os.close(self._ended)
        return self._sum.hexdigest()

    def _hear(self) -> None:
        watched, silence = [self._read, self._ended], None
        while True:
            ready, _, _ = select.select(watched, [], [], silence)
            if self._read in ready:
                if not self._take():
                    break
            elif not ready:
                break
            else:  # the program has ended: take what is left
                watched, silence = [self._read], LINGER_SECONDS
        os.close(self._read)  # who still writes learns it from the kernel

    def _take(self) -> bool:
        """Read a piece; false at the end, and where nobody takes it any more."""
        try:
            piece = os.read(self._read, PIECE_BYTES)
        except OSError:  # a terminal whose last writer is gone
            return False
        self._sum.update(piece)
        try:
            while self._pass_on and piece:
                written = os.write(1, piece)
                if written == len(piece):
                    return True
                piece = piece[written:]
        except OSError:
            return False
        return bool(piece)


def _terminal() -> tuple[int, int]:
    """Both ends of a terminal as large as ours; what is written arrives as it is."""
    ours, its = os.openpty()
    tty.setraw(its)
    termios.tcsetwinsize(its, termios.tcgetwinsize(1))
    return ours, its


class StdinAgain:
    """Stdin for a second run: a file from where the first run began, or nothing, for a pipe or terminal is read once.

    It is made before the first run.
    """

    def __init__(self) -> None:
        try:
            self._place: int | None = os.lseek(0, 0, os.SEEK_CUR)
        except OSError:
            self._place = None
        self.descriptor: int | None = None

    def __enter__(self) -> Self:
        if self._place is None:
            self.descriptor = os.open(os.devnull, os.O_RDONLY)
        else:
            os.lseek(0, self._place, os.SEEK_SET)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
