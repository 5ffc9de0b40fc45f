"""One short file of each of thousands of processes, kept open from one reading to the next."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Collection

_HOW = os.O_RDONLY | os.O_CLOEXEC
_MOST_BYTES = 256
"""Of one file: statm has seven numbers."""


class KeptFiles:
    """To read a file again that is open costs a quarter of opening it anew.

    A descriptor of a process's file in /proc never shows another process: once that one has ended, it cannot be read.
    All objects together keep half of the descriptors that this process may have, and close them with themselves. The
    files of other processes are opened each time.

    Args:
        name: of the file, such as ``statm``.
        keep: whether any is kept.
    """

    _lock = threading.Lock()
    _in_all = 0

    def __init__(self, name: str, keep: bool = True) -> None:
        self._name = name
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2 if keep else 0
        self._descriptors: dict[int, int] = {}

    def read_all(self, pids: Collection[int]) -> dict[int, bytes]:
        """Its content for each of these processes that runs still, at most 256 bytes. Other ones are kept no longer."""
        descriptors, pread, content = self._descriptors, os.pread, {}
        if descriptors:
            for pid in descriptors.keys() - set(pids):
                self._close(pid)
        for pid in pids:
            descriptor = descriptors.get(pid)
            try:
                # What is opened is not looked at by a function of its own: that would take a tenth of a snapshot.
                opened = os.open(f"/proc/{pid}/{self._name}", _HOW) if descriptor is None else descriptor
            except OSError:
                continue
            try:
                content[pid] = pread(opened, _MOST_BYTES, 0)
            except OSError:  # it has ended; if another has its pid already, that is new the next time
                if descriptor is not None:
                    self._close(pid)
            if descriptor is None:
                if self._most and pid in content and self._may_keep():
                    descriptors[pid] = opened
                else:
                    os.close(opened)
        return content

    def _may_keep(self) -> bool:
        with KeptFiles._lock:
            may = KeptFiles._in_all < self._most
            KeptFiles._in_all += may
        return may

    def _close(self, pid: int) -> None:
        os.close(self._descriptors.pop(pid))
        with KeptFiles._lock:
            KeptFiles._in_all -= 1

    def __del__(self) -> None:
        for pid in list(self._descriptors):
            self._close(pid)
