"""The host model: a lab without a GPU that copies real bytes by the mechanism a GPU driver uses.

What stands for what:

- Two threads are the copy engines (one a direction), a third is the GPU's compute. Each works through a queue in
  the order of issue; streams and events order work across them as CUDA's do.
- Device memory is ordinary memory that is resident because it has been touched.
- *Pinned* and *registered* memory is locked (``mlock``). The engine copies it directly; the call returns at once.
- *Pageable* memory is staged through a small locked ring by the calling thread, which is held meanwhile. Towards
  the device the call first waits for the stream's earlier work and returns when all is staged; towards the host
  it returns when all has arrived (CUDA driver API, "API synchronization behavior").

A compute load only waits: a GPU's kernels do not use the host's processors either. What it produces costs memory
bandwidth all the same, so a d2h pipeline hides a little less than it would on a GPU.

The figures describe this machine's memory, not a GPU. Starting an operation takes 30 to 100 µs, because a thread must
wake: below about 1 MiB the threads are measured, not the memory, and a pipeline shows its overlap from chunks of
about 8 MiB (1 ms). Two cores of a virtual AMD EPYC, 16 chunks of 8 MiB, loads as long as the copies, where 94 % is
the most possible: the full recipe hid 73 to 90 %, one stream and one device buffer nothing, pageable memory less than
nothing; without events 9 to 16 of 16 chunks were stale.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Self

import numpy as np

from pinscope.errors import MeasurementFailed, NoDevice, NotPossible
from pinscope.lab import hostengine
from pinscope.lab.backing import OwnMemory, lock, shared_region, touch, unlock, why_not_backing
from pinscope.lab.pattern import Block, Pattern, threads_take_turns_quickly, words_at
from pinscope.lab.placement import HostNodes
from pinscope.lab.protocol import (
    Copier,
    Counters,
    DeviceBuffer,
    Event,
    HostBuffer,
    Load,
    LoadData,
    MemoryState,
    Stream,
    never_ends,
    require_type,
)
from pinscope.probes.host_memory import page_table_bytes
from pinscope.records.run import Backing, HostMemory, LabKind

STAGING_BYTES = 2 * hostengine.StagingRing.nbytes
"""Locked by the lab itself while it is open: one staging ring a direction."""
SAMPLE_WORDS = 512
"""A consuming load checks one word in so many (one a page), so that the check fits into a short load."""
_CALIBRATIONS = 9
_LOCKED: frozenset[HostMemory] = frozenset({"pinned", "registered"})
_NO_MEANING: dict[HostMemory, str] = {
    "write_combined": "write-combining is a property of a GPU's view of host memory; the host model has none",
    "mapped": "kernels that reach host memory over a link are not part of the host model",
    "managed": "pages that migrate between host and GPU are not part of the host model",
}
_NO_MEANING_MEMORY = "the host model has no GPU; its page tables are those of the process"


class HostCounters:
    """Counts of words found wrong, one per slot."""

    def __init__(self, count: int) -> None:
        self._counts = [0] * count

    def add(self, slot: int, wrong: int) -> None:
        """Only the compute engine's thread calls it."""
        self._counts[slot] += wrong

    def read(self) -> tuple[int, ...]:
        return tuple(self._counts)


class HostModelLab:
    """A lab on this machine's memory alone. Enter it once.

    Args:
        seed: of the random content; processes with the same seed know each other's patterns.
    """

    kind: LabKind = "host"
    device = 0
    device_id = "host"

    def __init__(self, seed: int | None = None) -> None:
        self.host_nodes = HostNodes()
        self.near: Mapping[int, int] = {}
        self._fault = hostengine.Fault()
        self._to_device = hostengine.Engine("host-to-device copy", self._fault)
        self._to_host = hostengine.Engine("device-to-host copy", self._fault)
        self._compute = hostengine.Engine("compute", self._fault)
        self._ring_to_device = hostengine.StagingRing(self._to_device)
        self._ring_to_host = hostengine.StagingRing(self._to_host)
        self._open = ExitStack()
        self._block = Block.random(seed)
        self._generator = np.random.Generator(np.random.SFC64())
        self._write_costs: deque[float] = deque([0.0], maxlen=9)

    def __enter__(self) -> Self:
        """Start the engines and lock the staging rings.

        Raises:
            NotEnoughMemory: the rings cannot be locked.
        """
        with ExitStack() as opening:
            opening.enter_context(threads_take_turns_quickly())
            for part in (self._ring_to_device, self._ring_to_host, self._to_device, self._to_host, self._compute):
                opening.enter_context(part)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        """Finish what is queued, end the engines, free the rings.

        Raises:
            MeasurementFailed: an engine broke off, and no other error ends the lab.
        """
        self._open.close()
        if not any(exception):
            self._fault.check()

    def why_not(self, memory: HostMemory, copier: Copier = "engine", backing: Backing = "4k") -> str | None:
        if copier == "kernel":
            return _NO_MEANING["mapped"]
        return _NO_MEANING.get(memory) or (why_not_backing(backing) if memory == "registered" else None)

    def peers(self) -> Sequence[int]:
        return (0,)

    @contextmanager
    def peer(self, device: int) -> Iterator[Self]:
        """The lab itself; there is no other.

        Raises:
            NoDevice: any device but 0.
        """
        if device != self.device:
            raise NoDevice(f"the host model has one device, 0; there is no device {device}")
        yield self

    def device_id_of(self, device: int) -> str:
        """Raises NoDevice as :meth:`peer` does."""
        with self.peer(device):
            return self.device_id

    @contextmanager
    def host_buffer(self, nbytes: int, memory: HostMemory, backing: Backing = "4k") -> Iterator[hostengine.HostArea]:
        """Touched host memory.

        Raises:
            NotPossible: a kind that has no meaning here.
            NotEnoughMemory: it cannot be had, or not be locked.
        """
        self._require(memory)
        with self.ordinary_memory(nbytes, backing if memory == "registered" else None) as area:
            if memory != "pinned":  # registered memory is ordinary memory that was in use before
                touch(area)
            if memory in _LOCKED:
                lock(area.address, area.nbytes)
            yield replace(area, memory=memory)

    @contextmanager
    def ordinary_memory(
        self, nbytes: int, backing: Backing | None = None, descriptor: int | None = None
    ) -> Iterator[hostengine.HostArea]:
        with self._mapping(nbytes, backing, descriptor) as mapping, self.host_nodes.holding(mapping.address, nbytes):
            yield hostengine.HostArea(mapping, nbytes, memory="pageable")

    @contextmanager
    def register(self, buffer: HostBuffer, portable: bool = False) -> Iterator[hostengine.HostArea]:  # noqa: ARG002
        """Locks the memory. Raises NotEnoughMemory."""
        area = require_type(buffer, hostengine.HostArea)
        lock(area.address, area.nbytes)
        try:
            yield replace(area, memory="registered")
        finally:
            self._drain()
            unlock(area.address, area.nbytes)

    @contextmanager
    def exported_buffer(self, nbytes: int) -> Iterator[tuple[hostengine.Area, str]]:
        """Shared memory without a name; the handle is where the kernel shows its descriptor."""
        with shared_region(nbytes) as descriptor, self._mapping(nbytes, descriptor=descriptor) as mapping:
            touch(mapping)
            yield hostengine.Area(mapping, nbytes), f"/proc/{os.getpid()}/fd/{descriptor}"

    @contextmanager
    def imported_buffer(self, handle: str, nbytes: int) -> Iterator[hostengine.Area]:
        """Raises MeasurementFailed: its process is gone."""
        try:
            descriptor = os.open(handle, os.O_RDWR)
        except OSError as error:
            raise MeasurementFailed(f"the other process's memory cannot be reached: {error.strerror}") from None
        try:
            with self._mapping(nbytes, descriptor=descriptor) as mapping:
                yield hostengine.Area(mapping, nbytes)
        finally:
            os.close(descriptor)

    def memory_state(self) -> MemoryState:
        missing = dict.fromkeys(("device_used_bytes", "nvml_used_bytes", "pinned_bytes"), _NO_MEANING_MEMORY)
        own_tables = page_table_bytes().note(missing, "page_table_bytes")
        return MemoryState(None, None, None, own_tables, missing)

    @contextmanager
    def device_buffer(self, nbytes: int) -> Iterator[hostengine.Area]:
        """Resident memory that stands for the GPU's. Raises NotEnoughMemory."""
        with self._mapping(nbytes) as mapping:
            touch(mapping)
            yield hostengine.Area(mapping, nbytes)

    @contextmanager
    def stream(self) -> Iterator[hostengine.HostStream]:
        yield hostengine.HostStream(self._fault)

    @contextmanager
    def event(self) -> Iterator[hostengine.HostEvent]:
        yield hostengine.HostEvent(self._fault)

    @contextmanager
    def counters(self, count: int) -> Iterator[HostCounters]:
        yield HostCounters(count)

    def copy_to_device(
        self, target: DeviceBuffer, source: HostBuffer, stream: Stream, copier: Copier = "engine"
    ) -> None:
        self._copy(self._to_device, self._ring_to_device.to_device, target, source, source.memory, stream, copier)

    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream, copier: Copier = "engine") -> None:
        self._copy(self._to_host, self._ring_to_host.to_host, target, source, target.memory, stream, copier)

    def _copy(
        self,
        engine: hostengine.Engine,
        stage: Callable[[int, int, int, hostengine.HostStream], None],
        target: HostBuffer | DeviceBuffer,
        source: HostBuffer | DeviceBuffer,
        memory: HostMemory,
        stream: Stream,
        copier: Copier,
    ) -> None:
        """By the engine itself, or staged where the ``memory`` of the host's side is not locked."""
        self._require(memory, copier)
        queue = require_type(stream, hostengine.HostStream)
        if memory in _LOCKED:
            queue.submit(engine, partial(hostengine.move, target.address, source.address, target.nbytes))
        elif queue.held:
            raise never_ends("a copy of pageable memory")
        else:
            stage(target.address, source.address, target.nbytes, queue)

    def copy_on_devices(self, target: DeviceBuffer, source: DeviceBuffer, stream: Stream) -> None:
        work = partial(hostengine.move, target.address, source.address, target.nbytes)
        require_type(stream, hostengine.HostStream).submit(self._to_device, work)

    def copy_both_ways(self, *_buffers: object) -> None:
        """Raises NotPossible: there are no kernels here."""
        raise NotPossible(_NO_MEANING["mapped"])

    def calibrate(self, seconds: float) -> Load:
        """A load that takes ``seconds``: less is asked for by what waiting overshoots here."""
        stream, marks = hostengine.HostStream(self._fault), []
        for _ in range(_CALIBRATIONS + 1):
            marks.append(hostengine.HostEvent(self._fault))
            marks[-1].record(stream)
            self.compute(stream, Load(seconds, seconds))
        stream.synchronize()
        overshoot = median(self.elapsed(start, end) - seconds for start, end in pairwise(marks))
        return Load(seconds, max(seconds - overshoot, 0.0))

    def compute(
        self, stream: Stream, load: Load, data: LoadData | None = None, counters: Counters | None = None, slot: int = 0
    ) -> None:
        """Queue a load. Of data that it consumes, one word in :data:`SAMPLE_WORDS` is checked; it produces all."""
        if data is None:
            work: hostengine.Work = partial(self._run, load)
        elif data.action == "produce":
            work = partial(self._produce, load, data)
        else:
            work = self._consuming(load, data, require_type(counters, HostCounters), slot)
        require_type(stream, hostengine.HostStream).submit(self._compute, work)

    def wait(self, stream: Stream, event: Event) -> None:
        require_type(stream, hostengine.HostStream).wait_for(require_type(event, hostengine.HostEvent).operations)

    @contextmanager
    def hold(self, *streams: Stream) -> Iterator[None]:
        queues = [require_type(stream, hostengine.HostStream) for stream in streams]
        gate = hostengine.Gate(time.perf_counter())
        for queue in queues:
            queue.wait_for((gate,))
            queue.held = True
        try:
            yield
        finally:
            for queue in queues:
                queue.held = False
            gate.open(time.perf_counter())

    def elapsed(self, start: Event, end: Event) -> float:
        """Seconds between two reached events.

        Raises:
            MeasurementFailed: one has not been reached, or an engine broke off.
        """
        return require_type(end, hostengine.HostEvent).reached() - require_type(start, hostengine.HostEvent).reached()

    def fresh_pattern(self) -> Pattern:
        return Pattern.fresh(self._generator)

    def fill(self, buffer: HostBuffer | DeviceBuffer, pattern: Pattern) -> None:
        self._block.lay(words_at(buffer.address, buffer.nbytes), pattern)

    def wrong_words(self, buffer: HostBuffer | DeviceBuffer, pattern: Pattern) -> int:
        return self._block.count_wrong(words_at(buffer.address, buffer.nbytes), pattern)

    # What the compute engine does; ``ready`` is when it could begin. The load's length counts from there, so the
    # time that a thread takes to wake up is part of the load, not added to it.

    def _run(self, load: Load, ready: float) -> None:
        hostengine.wait_until(ready + load.amount)

    def _consuming(self, load: Load, data: LoadData, counters: HostCounters, slot: int) -> hostengine.Work:
        """Prepared by the calling thread: while the engine's runs Python code, no copy can start."""
        content = words_at(data.buffer.address, data.buffer.nbytes)
        first = int(self._generator.integers(min(SAMPLE_WORDS, len(content))))
        sampled = content[first::SAMPLE_WORDS]
        expected = self._block.sample(data.pattern, np.arange(first, len(content), SAMPLE_WORDS))

        def work(ready: float) -> None:
            counters.add(slot, int(np.count_nonzero(sampled != expected)))
            self._run(load, ready)

        return work

    def _produce(self, load: Load, data: LoadData, ready: float) -> None:
        nbytes = data.buffer.nbytes
        hostengine.wait_until(ready + load.amount - nbytes * median(self._write_costs))
        begun = time.perf_counter()
        self.fill(data.buffer, data.pattern)
        self._write_costs.append((time.perf_counter() - begun) / nbytes)
        self._run(load, ready)

    def _require(self, memory: HostMemory, copier: Copier = "engine") -> None:
        reason = self.why_not(memory, copier)
        if reason is not None:
            raise NotPossible(reason)

    def _drain(self) -> None:
        for engine in (self._to_device, self._to_host, self._compute):
            engine.drain()

    @contextmanager
    def _mapping(
        self, nbytes: int, backing: Backing | None = None, descriptor: int | None = None
    ) -> Iterator[OwnMemory]:
        """Memory that is given back only when no engine works on it any more, as ``cudaFree`` does it."""
        with OwnMemory(nbytes, backing, descriptor) as mapping:
            try:
                yield mapping
            finally:
                self._drain()
