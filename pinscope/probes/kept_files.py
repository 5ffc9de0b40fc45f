"""One short file of each of thousands of processes, kept open from one reading to the next."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

_HOW = os.O_RDONLY | os.O_CLOEXEC
_MOST_BYTES = 256
"""Of one file: statm has seven numbers."""


_lock = threading.Lock()
_kept: set[str] = set()
"""Descriptors of all objects, as /proc/self/fd names them."""


def kept_names() -> frozenset[str]:
    """Names in /proc/self/fd of all files that are kept open."""
    with _lock:
        return frozenset(_kept)


class KeptFiles:
    """To read a file again that is open costs a quarter of opening it anew.

    A descriptor of a process's file in /proc never shows another process: once that one has ended, it cannot be read.
    All objects together keep a quarter of the descriptors that this process may have, and close them with themselves.
    The files of other processes are opened each time.

    Args:
        name: of the file, such as ``statm``.
        keep: whether any is kept.
    """

    def __init__(self, name: str, keep: bool = True) -> None:
        self._name = name
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4 if keep else 0
        self._descriptors: dict[int, int] = {}

    def keep_only(self, pids: AbstractSet[int]) -> None:
        """Close the files of all other processes."""
        if self._descriptors:
            for pid in self._descriptors.keys() - pids:
                self._close(pid)

    def read(self, pids: Iterable[int]) -> dict[int, bytes]:
        """Its content for each of these processes that runs still, at most 256 bytes."""
        # What is opened is not looked at by a function of its own: that would take a tenth of a snapshot.
        descriptors, pread, content, others = self._descriptors, os.pread, dict[int, bytes](), list[int]()
        for pid in pids if descriptors else ():
            if pid not in descriptors:
                others.append(pid)
                continue
            try:
                content[pid] = pread(descriptors[pid], _MOST_BYTES, 0)
            except OSError:  # it has ended; if another has its pid already, that is new the next time
                self._close(pid)
        others = others if descriptors else list(pids)
        folder = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if others else None
        for pid in others:
            try:
                opened = os.open(f"{pid}/{self._name}", _HOW, dir_fd=folder)
            except OSError:
                continue
            try:
                content[pid] = pread(opened, _MOST_BYTES, 0)
            except OSError:
                os.close(opened)
                continue
            if not self._most or not self._keep(pid, opened):
                os.close(opened)
        if folder is not None:
            os.close(folder)
        return content

    def _keep(self, pid: int, descriptor: int) -> bool:
        """Keep the file of this process, unless as many are kept as may be."""
        with _lock:
            if len(_kept) >= self._most:
                return False
            _kept.add(str(descriptor))
        self._descriptors[pid] = descriptor
        return True

    def _close(self, pid: int) -> None:
        descriptor = self._descriptors.pop(pid)
        with _lock:  # before another thread can open a file of that number
            _kept.discard(str(descriptor))
        os.close(descriptor)

    def __del__(self) -> None:
        for pid in list(self._descriptors):
            self._close(pid)
