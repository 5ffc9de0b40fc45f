"""Copies of the driver's library, each with its probes: those that this host would load, and those in use."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from pinscope.probes.driver_library import FileKey, MappedLibrary
from pinscope.probes.elf_symbols import function_offsets
from pinscope.probes.tracefs import TraceInstance
from pinscope.probes.uprobes import ARCHITECTURES, CALLS, definitions
from pinscope.records.registration import ProbedLibrary

MOST_COPIES = 64
"""Probed ones, in use or not."""

_NOT_PINNING = "it exports none of the driver's pinning calls"
_TOO_MANY = f"{MOST_COPIES} copies are followed already"
_NO_PROBES_THERE = (
    "its file system does not take probes; a copy on a disk or in memory (ext4, xfs, overlay, squashfs, tmpfs) does"
)


@dataclass
class _Copy:
    told: ProbedLibrary
    file: tuple[int, int]
    """Device and inode."""
    group: str | None
    """Its events; ``None`` if it could not be probed."""
    installed: bool
    on: bool = True


class ProbedCopies:
    """The probes on all copies. Those of a copy that nobody uses are switched off, not removed: see ``remove_group``.

    Args:
        instance: an open one.
        machine: the processor, as ``uname -m`` calls it.
    """

    def __init__(self, instance: TraceInstance, machine: str) -> None:
        self._instance = instance
        self._machine = machine
        self._copies: list[_Copy] = []
        self._mapped: dict[FileKey, _Copy] = {}

    def told(self) -> tuple[ProbedLibrary, ...]:
        """Each copy, with the reason where it is not followed."""
        return tuple(copy.told for copy in self._copies)

    def add_installed(self, path: str) -> None:
        """Probe a copy for good."""
        self._copy(path, path, installed=True)

    def follow(self, mapped: Mapping[FileKey, MappedLibrary]) -> frozenset[int]:
        """Probe the copies that processes use.

        Args:
            mapped: all that are in use.

        Returns:
            Processes that had their copy before it was probed.
        """
        late: set[int] = set()
        for key, library in mapped.items():
            copy = self._mapped.get(key)
            if copy is None:
                fresh = len(self._copies)
                copy = self._copy(library.place, library.path, installed=False)
                if copy is None:  # the process has ended meanwhile
                    continue
                self._mapped[key] = copy
                late.update(library.pids if len(self._copies) > fresh else ())
            elif not copy.on:
                self._switch(copy, True)
                late.update(library.pids)
        used = [self._mapped[key] for key in mapped if key in self._mapped]
        for copy in self._copies:
            if copy.on and not copy.installed and copy not in used:
                self._switch(copy, False)
        return frozenset(late)

    def _switch(self, copy: _Copy, on: bool) -> None:
        if copy.group is not None:
            self._instance.switch_group(copy.group, on)
        copy.on = on

    def _copy(self, place: str, path: str, installed: bool) -> _Copy | None:
        """The copy at a place: the one that is known already, or a new one; ``None`` if there is no such file."""
        with _opened(place) as descriptor:
            if descriptor is None:
                return None
            status = os.fstat(descriptor)
            file = (status.st_dev, status.st_ino)
            for known in self._copies:
                if known.file == file:
                    return known
            copy = _Copy(ProbedLibrary(path=path), file, None, installed)
            copy.told = self._probe(copy, descriptor)
            self._copies.append(copy)
            return copy

    def _probe(self, copy: _Copy, descriptor: int) -> ProbedLibrary:
        if sum(one.group is not None for one in self._copies) >= MOST_COPIES:
            return copy.told.model_copy(update={"reason": _TOO_MANY})
        offsets = function_offsets(descriptor, CALLS, self._machine)
        if not offsets.value:
            return copy.told.model_copy(update={"reason": offsets.reason or _NOT_PINNING})
        # By the open file: a path in a container means another file here, and may hold blanks, which end it.
        place, calls = f"/proc/{os.getpid()}/fd/{descriptor}", offsets.value
        architecture = ARCHITECTURES[self._machine]
        number = len(self._copies) + 1
        try:
            copy.group = self._instance.add_group(number, lambda group: definitions(group, place, calls, architecture))
        except OSError as error:
            told = _NO_PROBES_THERE if error.errno == errno.EIO else f"the kernel refuses: {error.strerror or error}"
            return copy.told.model_copy(update={"reason": told})
        return copy.told.model_copy(update={"calls": tuple(calls)})


@contextmanager
def _opened(place: str) -> Iterator[int | None]:
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
