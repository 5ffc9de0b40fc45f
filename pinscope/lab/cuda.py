"""The ``cuda`` lab: a GPU through CuPy's runtime API.

Copies are plain ``cudaMemcpyAsync`` calls on raw pointers, so that issue time is the call's own and not a
library's. No managed memory, no memory pool, no change of clocks or modes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, Self, TypeVar

import cupy
import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from pinscope.analysis.statistics import summarize
from pinscope.errors import MeasurementFailed, NoDevice, NotPossible
from pinscope.lab import cuda_memory
from pinscope.lab.backing import PAGE, OwnMemory, touch, why_not_backing
from pinscope.lab.cuda_handles import SOURCE, CudaCounters, CudaEvent, CudaStream, DevicePart, Gate
from pinscope.lab.pattern import WORD_BYTES, Block, Pattern, words_at
from pinscope.lab.placement import HostNodes, preferring
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
from pinscope.probes.environment import install_command
from pinscope.records.run import Backing, HostMemory, LabKind
from pinscope.text import quoted

THREADS = 1024
COPY_BLOCKS_PER_SM = 4
BOTH_WAYS_THREADS = 512
THREAD_BYTES = 4 * 2**20
"""What one thread lays or checks at a time."""
HOST_THREADS = 8
WARM_SECONDS = 0.3
"""Compute this long before a load is calibrated: an idle GPU needs it to reach its clock."""
CALIBRATED = 0.02
"""How far a load's length may be off, relative to it."""
EVENT_SECONDS = 1e-6
"""What the time between two events may be off: each counts in about 0.5 µs (CUDA Runtime API, cudaEventElapsedTime)."""
_Result = TypeVar("_Result")
_ACTIONS = {"consume": 1, "produce": 2}
_NO_LOAD = Load(0.0, 0.0)
"""Only lays or checks a pattern."""


class CudaLab:
    """One GPU of this machine.

    Args:
        device: index of the GPU.
        bus_ids: index → PCI bus id of the machine's GPUs. CUDA numbers those it sees in an order of its own
            (CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER); by their bus ids they are identified for certain. Without
            it, ``device`` is CUDA's own number.
        seed: of the random content; processes with the same seed know each other's patterns.
        near: index → NUMA node from which :meth:`peer` takes host buffers.
        prefers: the NUMA node from which this lab does; ``None``: as the thread is bound.
        host_nodes: the account of host buffers; one of its own by default.
    """

    kind: LabKind = "cuda"

    def __init__(
        self,
        device: int,
        bus_ids: Mapping[int, str] | None = None,
        seed: int | None = None,
        *,
        near: Mapping[int, int] | None = None,
        prefers: int | None = None,
        host_nodes: HostNodes | None = None,
    ) -> None:
        self._seed = seed
        self.device = device
        self._bus_ids = bus_ids
        self.near: Mapping[int, int] = near or {}
        self._prefers = prefers
        self.host_nodes = host_nodes or HostNodes()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        """Claim the device: make its context, compile the kernels, lay the pattern block on it.

        Raises:
            NoDevice: no driver, or no such GPU.
        """
        try:
            self._ordinal = self._ordinal_of(self.device)
            runtime.setDevice(self._ordinal)
            runtime.free(0)
            properties = runtime.getDeviceProperties(self._ordinal)
        except runtime.CUDARuntimeError as error:
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
            why = f" (CUDA_VISIBLE_DEVICES is {quoted(hidden)})" if hidden is not None else ""
            raise NoDevice(f"GPU {self.device} cannot be used: {error}{why}") from None
        self._sms = int(properties["multiProcessorCount"])
        try:
            module = cupy.RawModule(code=SOURCE)
            names = ("copy_words", "compute_load", "wait_for_word", "copy_both_ways")
            self._kernels = {name: module.get_function(name) for name in names}
        except Exception as error:  # CuPy raises several unrelated types where NVRTC or its headers are missing
            raise NotPossible(
                f"CuPy cannot compile kernels here ({str(error).splitlines()[0]}); "
                f"NVRTC belongs beside it: {install_command('cuda13')} (cuda12 for CUDA 12)"
            ) from error
        self._threads = self._stack.enter_context(ThreadPoolExecutor(min(HOST_THREADS, os.cpu_count() or 1)))
        self._generator = np.random.Generator(np.random.SFC64())
        self._block = Block.random(self._seed)
        words = self._block.words
        block = self._stack.enter_context(self.device_buffer(words.nbytes))
        runtime.memcpy(block.address, words.ctypes.data, words.nbytes, cuda_memory.HOST_TO_DEVICE)
        self._block_address = block.address
        self._meter = self._stack.enter_context(cuda_memory.MemoryMeter(runtime.deviceGetPCIBusId(self._ordinal)))
        self._scratch = self._stack.enter_context(self.device_buffer(8))
        self._own_stream = self._stack.enter_context(self.stream())
        self._gate = self._stack.enter_context(Gate())
        # The driver loads a kernel at its first launch and waits for the device meanwhile: never behind a hold.
        self._copy_words(0, 0, 0, self._own_stream)
        self._launch("copy_both_ways", 1, (np.uint64(0),) * 5, self._own_stream)
        self._wait_by_kernel(self._own_stream, self._gate.address, 0)
        self._own_stream.synchronize()
        return self

    def __exit__(self, *exception: object) -> None:
        runtime.setDevice(self._ordinal)
        self._stack.close()

    def why_not(self, memory: HostMemory, copier: Copier = "engine", backing: Backing = "4k") -> str | None:
        """Why this kind cannot be copied by that copier here; tried with one page where only trying tells."""
        if memory == "managed":
            return "Managed memory is not copied by a call; it migrates."
        if copier == "kernel" and memory == "pageable":
            return "A kernel reaches host memory only through its mapping, and pageable memory has none."
        if memory == "registered" and (reason := why_not_backing(backing)):
            return reason
        try:
            with self.host_buffer(PAGE, memory, backing):
                return None
        except (NotPossible, MeasurementFailed) as error:
            return str(error)

    def peers(self) -> Sequence[int]:
        if self._bus_ids is None:
            return range(runtime.getDeviceCount())
        return [index for index in sorted(self._bus_ids) if self._is_visible(index)]

    def peer(self, device: int) -> CudaLab:
        prefers = self.near.get(device)
        return CudaLab(device, self._bus_ids, near=self.near, prefers=prefers, host_nodes=self.host_nodes)

    def _ordinal_of(self, device: int) -> int:
        """CUDA's number of a GPU; CUDARuntimeError if CUDA does not see it."""
        if self._bus_ids is None:
            return device
        return int(runtime.deviceGetByPCIBusId(self._bus_ids[device]))

    def _is_visible(self, device: int) -> bool:
        try:
            self._ordinal_of(device)
        except runtime.CUDARuntimeError:
            return False
        return True

    @contextmanager
    def host_buffer(self, nbytes: int, memory: HostMemory, backing: Backing = "4k") -> Iterator[HostBuffer]:
        """Touched host memory of one kind, aligned to a page."""
        runtime.setDevice(self._ordinal)
        if memory == "registered":
            with self.ordinary_memory(nbytes, backing) as ordinary:
                with preferring(self._prefers):
                    touch(ordinary)
                with self.register(ordinary) as registered:
                    yield registered
            return
        with ExitStack() as stack:
            with preferring(self._prefers):
                buffer = stack.enter_context(cuda_memory.host_memory(nbytes, memory))
            stack.enter_context(self.host_nodes.holding(buffer.address, nbytes))
            yield buffer

    @contextmanager
    def ordinary_memory(
        self, nbytes: int, backing: Backing | None = None, descriptor: int | None = None
    ) -> Iterator[HostBuffer]:
        with OwnMemory(nbytes, backing, descriptor) as memory, self.host_nodes.holding(memory.address, nbytes):
            yield cuda_memory.HostPart(memory.address, nbytes, "pageable")

    @contextmanager
    def register(self, buffer: HostBuffer, portable: bool = False) -> Iterator[HostBuffer]:
        runtime.setDevice(self._ordinal)
        with cuda_memory.registered_memory(buffer, portable) as registered:
            yield registered

    @property
    def device_id(self) -> str:
        return self.device_id_of(self.device)

    def device_id_of(self, device: int) -> str:
        return str(runtime.deviceGetPCIBusId(self._ordinal_of(device)))

    @contextmanager
    def exported_buffer(self, nbytes: int) -> Iterator[tuple[DeviceBuffer, str]]:
        with self.device_buffer(nbytes) as buffer:
            handle = cuda_memory.allocate(lambda: runtime.ipcGetMemHandle(buffer.address), nbytes, "an IPC handle")
            yield buffer, bytes(handle).hex()

    @contextmanager
    def imported_buffer(self, handle: str, nbytes: int) -> Iterator[DeviceBuffer]:
        runtime.setDevice(self._ordinal)
        address = cuda_memory.allocate(
            lambda: runtime.ipcOpenMemHandle(bytes.fromhex(handle)), nbytes, "another's GPU memory"
        )
        try:
            yield DevicePart(address, nbytes)
        finally:
            runtime.ipcCloseMemHandle(address)

    def memory_state(self) -> MemoryState:
        runtime.setDevice(self._ordinal)
        return self._meter.read()

    @contextmanager
    def device_buffer(self, nbytes: int) -> Iterator[DeviceBuffer]:
        runtime.setDevice(self._ordinal)
        address = cuda_memory.allocate(lambda: runtime.malloc(nbytes), nbytes, f"memory of GPU {self.device}")
        try:
            yield DevicePart(address, nbytes)
        finally:
            runtime.free(address)

    @contextmanager
    def stream(self) -> Iterator[CudaStream]:
        runtime.setDevice(self._ordinal)
        queue = cupy.cuda.Stream(non_blocking=True)  # destroyed with its last reference
        try:
            yield CudaStream(queue, queue.ptr)
        finally:
            queue.synchronize()

    @contextmanager
    def event(self) -> Iterator[Event]:
        runtime.setDevice(self._ordinal)
        handle = runtime.eventCreate()
        try:
            yield CudaEvent(handle)
        finally:
            runtime.eventDestroy(handle)

    @contextmanager
    def counters(self, count: int) -> Iterator[Counters]:
        with self.device_buffer(8 * count) as buffer:
            runtime.memset(buffer.address, 0, buffer.nbytes)
            yield CudaCounters(buffer.address, count)

    def copy_to_device(
        self, target: DeviceBuffer, source: HostBuffer, stream: Stream, copier: Copier = "engine"
    ) -> None:
        if copier == "engine":
            queue = require_type(stream, CudaStream)
            if queue.held and source.memory == "pageable":
                raise never_ends("a copy of pageable memory")
            runtime.memcpyAsync(target.address, source.address, target.nbytes, cuda_memory.HOST_TO_DEVICE, queue.handle)
        else:
            self._copy_words(target.address, source.address, target.nbytes, stream)

    def copy_to_host(self, target: HostBuffer, source: DeviceBuffer, stream: Stream, copier: Copier = "engine") -> None:
        if copier == "engine":
            queue = require_type(stream, CudaStream)
            if queue.held and target.memory == "pageable":
                raise never_ends("a copy of pageable memory")
            runtime.memcpyAsync(target.address, source.address, target.nbytes, cuda_memory.DEVICE_TO_HOST, queue.handle)
        else:
            self._copy_words(target.address, source.address, target.nbytes, stream)

    def copy_on_devices(self, target: DeviceBuffer, source: DeviceBuffer, stream: Stream) -> None:
        handle = require_type(stream, CudaStream).handle
        runtime.memcpyAsync(target.address, source.address, target.nbytes, cuda_memory.DEVICE_TO_DEVICE, handle)

    def copy_both_ways(
        self,
        to_device: DeviceBuffer,
        from_host: HostBuffer,
        to_host: HostBuffer,
        from_device: DeviceBuffer,
        stream: Stream,
    ) -> None:
        words = to_device.nbytes // WORD_BYTES
        blocks = -(-words // BOTH_WAYS_THREADS)  # two words a thread, half of the threads each way
        addresses = (to_device.address, from_host.address, to_host.address, from_device.address)
        arguments = tuple(np.uint64(value) for value in (*addresses, words))
        self._launch("copy_both_ways", blocks, arguments, stream, BOTH_WAYS_THREADS)

    def calibrate(self, seconds: float) -> Load:
        """Find the loop count that takes ``seconds``, by device events, on a GPU that runs at its clock.

        Raises:
            MeasurementFailed: the length does not become steady within 2 %, or what events can tell.
        """
        with self.stream() as stream, self.event() as start, self.event() as end:

            def timed(amount: float) -> float:
                start.record(stream)
                self.compute(stream, Load(seconds, amount))
                end.record(stream)
                stream.synchronize()
                return self.elapsed(start, end)

            amount = 10_000.0
            warmed = 0.0
            while warmed < WARM_SECONDS:
                took = timed(amount)
                warmed += took
                amount = max(1.0, amount * seconds / took)
            for _ in range(20):
                took = summarize([timed(amount) for _ in range(5)]).median
                if abs(took - seconds) <= max(CALIBRATED / 2 * seconds, EVENT_SECONDS):
                    return Load(seconds, amount)
                amount = max(1.0, amount * seconds / took)
        raise MeasurementFailed(
            f"a compute load of {seconds:.2e} s has no steady length: the GPU's clock keeps changing"
        )

    def compute(
        self, stream: Stream, load: Load, data: LoadData | None = None, counters: Counters | None = None, slot: int = 0
    ) -> None:
        action, words, nbytes, pattern = 0, self._scratch.address, 8, Pattern(0, 0)
        if data is not None:
            action = _ACTIONS[data.action]
            words, nbytes, pattern = data.buffer.address, data.buffer.nbytes, data.pattern
        wrong = counters.address + 8 * slot if isinstance(counters, CudaCounters) else self._scratch.address
        arguments = (
            np.uint64(load.amount),
            np.int32(action),
            np.uint64(words),
            np.uint64(nbytes // 8),
            np.uint64(self._block_address),
            np.uint64(len(self._block.words)),
            np.uint64(pattern.offset),
            np.uint64(pattern.key),
            np.uint64(wrong),
            np.uint64(self._scratch.address),
        )
        self._launch("compute_load", self._sms, arguments, stream)

    def wait(self, stream: Stream, event: Event) -> None:
        runtime.streamWaitEvent(require_type(stream, CudaStream).handle, require_type(event, CudaEvent).handle)

    @contextmanager
    def hold(self, *streams: Stream) -> Iterator[None]:
        runtime.setDevice(self._ordinal)
        with self._gate.hold([require_type(stream, CudaStream) for stream in streams], self._wait_by_kernel):
            yield

    def elapsed(self, start: Event, end: Event) -> float:
        begun, ended = (require_type(event, CudaEvent).handle for event in (start, end))
        return float(runtime.eventElapsedTime(begun, ended)) / 1e3

    def fresh_pattern(self) -> Pattern:
        return Pattern.fresh(self._generator)

    def fill(self, buffer: HostBuffer | DeviceBuffer, pattern: Pattern) -> None:
        if isinstance(buffer, cuda_memory.HostPart):
            self._on_host(self._block.lay, buffer, pattern)
            return
        self.compute(self._own_stream, _NO_LOAD, LoadData(buffer, pattern, "produce"))
        self._own_stream.synchronize()

    def wrong_words(self, buffer: HostBuffer | DeviceBuffer, pattern: Pattern) -> int:
        # The CPU reads write-combined memory uncached, at a hundredth of the speed: the GPU checks it instead.
        if isinstance(buffer, cuda_memory.HostPart) and buffer.memory != "write_combined":
            return sum(self._on_host(self._block.count_wrong, buffer, pattern))
        with self.counters(1) as wrong:
            self.compute(self._own_stream, _NO_LOAD, LoadData(buffer, pattern, "consume"), wrong)
            self._own_stream.synchronize()
            return wrong.read()[0]

    def _on_host(
        self, work: Callable[[NDArray[np.uint64], Pattern], _Result], buffer: cuda_memory.HostPart, pattern: Pattern
    ) -> list[_Result]:
        """Lay or check host memory with several threads: one alone moves a tenth of what the GPU does."""
        parts = range(0, buffer.nbytes, THREAD_BYTES)

        def piece(at: int) -> _Result:
            return work(words_at(buffer.address + at, min(THREAD_BYTES, buffer.nbytes - at)), pattern.part(at))

        return [piece(0)] if len(parts) == 1 else list(self._threads.map(piece, parts))

    def _copy_words(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        arguments = (np.uint64(target), np.uint64(source), np.uint64(nbytes // 8))
        self._launch("copy_words", self._sms * COPY_BLOCKS_PER_SM, arguments, stream)

    def _wait_by_kernel(self, stream: CudaStream, address: int, value: int) -> None:
        self._launch("wait_for_word", 1, (np.uint64(address), np.uint32(value)), stream)

    def _launch(
        self, name: str, blocks: int, arguments: tuple[Any, ...], stream: Stream, threads: int = THREADS
    ) -> None:
        runtime.setDevice(self._ordinal)
        with require_type(stream, CudaStream).queue:
            self._kernels[name]((blocks,), (threads,), arguments)
