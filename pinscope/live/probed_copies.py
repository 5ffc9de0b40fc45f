"""Copies of the driver's library, each with its probes: those that this host would load, and those in use.

Programs allocate from pools and free again for each tensor on a GPU. Probes on those calls would slow all of them down,
so they are switched on only while some process has a pool of host memory.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass

from pinscope.probes.answer import Answer
from pinscope.probes.driver_library import FileKey, MappedLibrary, opened_copy
from pinscope.probes.tracefs import TraceInstance
from pinscope.probes.uprobes import ARCHITECTURES, CALLS, POOL_CALLS, definitions, function_offsets
from pinscope.records.registration import ProbedLibrary

MOST_COPIES = 64
"""Known ones, followed or not."""
MOST_NEW_COPIES = 4
"""So many are looked at anew each time: anybody can map many files of that name, and to read one takes time."""
UNUSED_LOOKS = 60
"""A copy that nobody used so often is let go of: its probes keep the mount busy that it lies on."""

_NOT_PINNING = "it exports none of the driver's calls that pin memory"
_TOO_MANY = f"{MOST_COPIES} copies of the driver's library are in use already"
_NOT_YET = "its copy of the driver's library has not been looked at yet"
_NO_PROBES_THERE = (
    "its file system does not take probes; a copy on a disk or in memory (ext4, xfs, overlay, squashfs, tmpfs) does"
)


@dataclass(eq=False)
class _Copy:
    library: ProbedLibrary
    file: tuple[int, int]
    """Device and inode."""
    installed: bool
    group: str | None = None
    """Its events; ``None`` if it could not be probed."""
    pool_group: str | None = None
    """Those of the calls on pools; ``None`` if the copy has none."""
    on: bool = False
    """Followed, as far as its users know."""
    unused_looks: int = 0


@dataclass(frozen=True)
class Users:
    """Processes that use copies of the library."""

    late: frozenset[int]
    """They had their copy before it was probed."""
    not_followed: Mapping[int, str]
    """Why the copy is not followed that they use."""


class ProbedCopies:
    """The probes on all copies. Those of a copy that nobody uses are switched off at once, and removed a while later.

    Args:
        instance: an open one.
        machine: the processor, as ``uname -m`` calls it.
    """

    def __init__(self, instance: TraceInstance, machine: str) -> None:
        self._instance = instance
        self._machine = machine
        self._copies: list[_Copy] = []
        self._mapped: dict[FileKey, _Copy] = {}
        self._numbers = itertools.count(1)
        self._pools = False

    def libraries(self) -> tuple[ProbedLibrary, ...]:
        """Each copy, with the reason where it is not followed."""
        return tuple(copy.library for copy in self._copies)

    def add_installed(self, path: str) -> None:
        """Probe a copy for good."""
        found = self._copy(path, path, installed=True)
        if found is not None and found.value is not None:
            found.value.on = True

    def follow(self, mapped: Mapping[FileKey, MappedLibrary], most_new: int = MOST_NEW_COPIES) -> Users:
        """Probe the copies that processes use.

        Args:
            mapped: all that are in use.
            most_new: so many that are not known yet are looked at; the others wait for the next time.

        Raises:
            OSError: the kernel does not let probes be switched any more.
        """
        late: set[int] = set()
        not_followed: dict[int, str] = {}
        used: set[_Copy] = set()
        # A key that is not in use may come to mean another file.
        self._mapped = {key: copy for key, copy in self._mapped.items() if key in mapped}
        for key, library in mapped.items():
            found: Answer[_Copy] | None
            if key in self._mapped:
                found = Answer(self._mapped[key])
            elif most_new > 0:
                most_new -= 1
                found = self._copy(library.place, library.path, installed=False)
            else:
                found = Answer.missing(_NOT_YET)
            if found is None:  # the process has ended meanwhile
                continue
            copy = found.value
            reason = found.reason if copy is None else copy.library.reason
            if reason is not None:
                not_followed.update(dict.fromkeys(library.pids, reason))
            if copy is not None:
                self._mapped[key] = copy
                used.add(copy)
                if copy.group is not None and not copy.on:
                    late.update(library.pids)
                    self._switch(copy, True)
        for copy in [one for one in self._copies if not one.installed and one not in used]:
            self._rest(copy)
        return Users(frozenset(late), not_followed)

    def follow_pools(self, on: bool) -> None:
        """Switch the probes on pool calls on or off, in all copies that are followed.

        Raises:
            OSError: the kernel does not let probes be switched any more.
        """
        if on == self._pools:
            return
        self._pools = on
        for copy in self._copies:
            if copy.on and copy.pool_group is not None:
                self._instance.switch_group(copy.pool_group, on)

    def _rest(self, copy: _Copy) -> None:
        """Nobody uses it now."""
        copy.unused_looks += 1
        if copy.on:
            self._switch(copy, False)
        if copy.group is None or copy.unused_looks >= UNUSED_LOOKS:
            self._let_go(copy)

    def _switch(self, copy: _Copy, on: bool) -> None:
        if copy.group is not None:
            self._instance.switch_group(copy.group, on)
        if copy.pool_group is not None and self._pools:
            self._instance.switch_group(copy.pool_group, on)
        copy.on, copy.unused_looks = on, 0

    def _let_go(self, copy: _Copy) -> None:
        """Forget it, unless somebody else traces by its probes: then it stays until the next look."""
        try:
            if copy.pool_group is not None:
                self._instance.remove_group(copy.pool_group)
                copy.pool_group = None
            if copy.group is not None:
                self._instance.remove_group(copy.group)
        except OSError:
            return
        self._copies.remove(copy)

    def _has_room(self) -> bool:
        """Whether one more copy can be known, after letting go of the one that was not used for longest."""
        if len(self._copies) >= MOST_COPIES:
            unused = [one for one in self._copies if one.group is not None and not one.on]
            if unused:
                self._let_go(max(unused, key=lambda one: one.unused_looks))
        return len(self._copies) < MOST_COPIES

    def _copy(self, place: str, path: str, installed: bool) -> Answer[_Copy] | None:
        """The copy at a place: the one that is known already, or a new one; ``None`` if there is no such file."""
        with opened_copy(place) as opened:
            if opened is None or opened.value is None:
                return None if opened is None else Answer(None, opened.reason)
            status = os.fstat(opened.value)
            file = (status.st_dev, status.st_ino)
            for known in self._copies:
                if known.file == file:
                    return Answer(known)
            if not self._has_room():
                return Answer.missing(_TOO_MANY)
            copy = _Copy(ProbedLibrary(path=path), file, installed)
            copy.library = self._probe(copy, opened.value)
            self._copies.append(copy)
            return Answer(copy)

    def _probe(self, copy: _Copy, descriptor: int) -> ProbedLibrary:
        offsets = function_offsets(descriptor, CALLS, self._machine)
        if not offsets.value:
            return copy.library.model_copy(update={"reason": offsets.reason or _NOT_PINNING})
        # By the open file: a path in a container means another file here, and may hold blanks, which end it.
        place, calls = f"/proc/{os.getpid()}/fd/{descriptor}", offsets.value
        architecture = ARCHITECTURES[self._machine]
        pool_calls = {call: offset for call, offset in calls.items() if call in POOL_CALLS}
        others = {call: offset for call, offset in calls.items() if call not in POOL_CALLS}
        try:
            copy.group = self._instance.add_group(
                next(self._numbers), lambda group: definitions(group, place, others, architecture)
            )
            if pool_calls:
                copy.pool_group = self._instance.add_group(
                    next(self._numbers), lambda group: definitions(group, place, pool_calls, architecture), on=False
                )
        except OSError as error:
            if copy.group is not None:
                self._instance.remove_group(copy.group)
                copy.group = None
            reason = _NO_PROBES_THERE if error.errno == errno.EIO else f"the kernel refuses: {error.strerror or error}"
            return copy.library.model_copy(update={"reason": reason})
        return copy.library.model_copy(update={"calls": tuple(calls)})
