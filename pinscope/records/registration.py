"""Who registered or allocated pinned memory, as the probe on the driver's library sees it call by call; and the
strategies to register or allocate it by, which the lab has and the experiments compare."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, NamedTuple

from pydantic import computed_field

from pinscope.records.base import Record
from pinscope.records.figure import Estimated
from pinscope.records.run import Backing

PieceKind = Literal["alloc", "write_combined", "register"]
"""``register`` is cudaHostRegister; the others are cudaHostAlloc, the second with its write-combined flag."""


class Piece(Record):
    """Memory that one call pinned and no later call released."""

    kind: PieceKind
    """The call that pinned it."""
    address: int | None
    """In the process; ``None`` where it could not be read."""
    bytes: int
    """As the program asked."""
    flags: int
    """As the program gave them to cuMemHostAlloc or cuMemHostRegister (CUDA driver API); else 0."""
    since: datetime
    """When the call returned."""
    seconds: float
    """How long the call took."""


class PidRegistrations(Record):
    """What one process pinned through the driver while the probe ran, and still holds."""

    pid: int
    """In the initial pid namespace, as the kernel's trace tells it."""
    name: str
    """The kernel's short name."""
    from_start: bool = False
    """The process started after the probe did: nothing that it pinned was missed."""
    registered_bytes: int = 0
    """Live cudaHostRegister memory, to the byte."""
    registrations: int = 0
    """Pieces of it."""
    pinned_registered_bytes: int = 0
    """The whole pages that it pins; without I/O memory, which is not pinned."""
    pieces: tuple[Piece, ...] = ()
    """Live memory, oldest first: what stands at the front for long is what a leak looks like."""
    calls: int = 0
    """Calls that pinned something, since the probe or the process started."""
    dropped_pieces: int = 0
    """Calls whose memory is not counted: more pieces are held than are followed, or its size makes no sense."""
    context_ended_at: datetime | None = None
    """When it last ended a CUDA context, which takes along what was pinned in it; which pieces, is not known."""


LinkDirection = Literal["h2d", "d2h"]
CopyMemory = Literal["pinned", "pageable", "unknown"]
"""``unknown``: pageable, or registered before the probe started, which leaves no mark."""


class CopySum(Record):
    """Copies by one call in one direction, of one kind of host memory and about one size."""

    call: str
    """The driver's function; calls of the runtime API (cudaMemcpyAsync) come through it."""
    direction: LinkDirection
    """To a GPU, or from one."""
    memory: CopyMemory
    """Of the host's side."""
    most_bytes: int
    """The largest that counts as such; the others are above a quarter of it."""
    count: int
    """Calls. Failed ones count."""
    bytes: int
    """What they asked to copy, in all."""


class Copies(Estimated):
    """What one process asked the driver to copy between host and GPUs, as the probe saw it."""

    since: datetime
    """When the probe began to count."""
    seconds: float
    """So long it has counted."""
    sums: tuple[CopySum, ...] = ()
    """By call, direction, memory and size, most bytes first."""
    uncounted_calls: int = 0
    """Calls whose bytes are not known: copies in two or three dimensions, of arrays, in batches, of managed memory,
    and launches of graphs, which may have copies in them."""
    lost_calls: int = 0
    """Calls of all processes whose copies are counted that came faster than they could be read."""

    def _sum(self, **kind: str) -> int:
        return sum(each.bytes for each in self.sums if all(getattr(each, name) == is_ for name, is_ in kind.items()))

    @computed_field  # type: ignore[prop-decorator]
    @property
    def to_gpu_bytes(self) -> int:
        """To GPUs, in all."""
        return self._sum(direction="h2d")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def from_gpu_bytes(self) -> int:
        """From GPUs, in all."""
        return self._sum(direction="d2h")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def pinned_bytes(self) -> int:
        """Of both, to or from pinned memory."""
        return self._sum(memory="pinned")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def pageable_bytes(self) -> int:
        """Of both, to or from pageable memory."""
        return self._sum(memory="pageable")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def unknown_bytes(self) -> int:
        """Of both, the rest."""
        return self._sum(memory="unknown")


class ProbedLibrary(Record):
    """One copy of the driver's library."""

    path: str
    """As the host or the first process that was seen with it names it; a container's own copy has the container's
    path."""
    calls: tuple[str, ...] = ()
    """The driver's functions that are followed in it."""
    reason: str | None = None
    """Why it is not followed; ``None`` if it is."""


class ProbeState(Record):
    """How the probe fares that a snapshot's registered memory comes from."""

    since: datetime
    """What was registered before is not known."""
    lost_events: int
    """Events, two for each call, that came faster than they could be read; figures are estimates from then on."""
    libraries: tuple[ProbedLibrary, ...] = ()
    """Copies of the driver's library that were found."""
    left_out_processes: int = 0
    """Processes that pinned memory and are not followed; 0 since PinScope follows all."""
    trouble: str | None = None
    """Why it follows nothing any more; ``None`` while it does."""


class Registrations(ProbeState):
    """What the probe knows at one moment."""

    lost_events: int = 0
    by_pid: Mapping[int, PidRegistrations]
    """Processes that run and have called the driver."""
    not_followed: Mapping[int, str] = {}
    """Processes that use a copy of the driver's library that is not followed: pid → why not."""
    copies: Mapping[int, Copies] = {}
    """Of the processes whose copies are counted, by pid."""
    copies_trouble: str | None = None
    """Why they are not counted, though somebody asked."""

    def state(self) -> ProbeState:
        """How the probe fares, without what processes hold."""
        return ProbeState(**{field: getattr(self, field) for field in ProbeState.model_fields})


StrategyName = Literal[
    "host_alloc",
    "host_alloc_chunks",
    "register_untouched",
    "touch_register",
    "touch_register_chunks",
    "thp_register",
    "thp_register_chunks",
    "thp_register_threads",
    "thp_pipeline",
]
SharedStrategyName = Literal["memfd", "hugetlb", "hugetlb_1g"]
Registering = Literal["one", "chunks", "threads", "pipeline"]


class Strategy(NamedTuple):
    """One way to pin."""

    name: StrategyName | SharedStrategyName
    title: str
    """In words."""
    backing: Backing | None
    """Pages under the memory; ``None`` where the driver allocates it (cudaHostAlloc)."""
    touched: bool
    """Whether threads touch the memory before it is registered."""
    registering: Registering
    """In one piece; in chunks one after the other; in chunks by several threads; or each chunk as soon as it is
    touched, while threads touch the next ones."""

    @property
    def chunked(self) -> bool:
        """True if no copy may cross a chunk boundary."""
        return self.registering != "one"

    @property
    def makes_array(self) -> bool:
        """True if all of the memory lies side by side; separate calls of cudaHostAlloc give separate places."""
        return self.backing is not None or not self.chunked


STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("host_alloc", "one cudaHostAlloc", None, False, "one"),
        Strategy("host_alloc_chunks", "cudaHostAlloc in chunks", None, False, "chunks"),
        Strategy("register_untouched", "4 KiB pages, untouched, register", "4k", False, "one"),
        Strategy("touch_register", "4 KiB pages, threads touch, register", "4k", True, "one"),
        Strategy("touch_register_chunks", "4 KiB pages, threads touch, register chunks", "4k", True, "chunks"),
        Strategy("thp_register", "huge pages, threads touch, register", "thp", True, "one"),
        Strategy("thp_register_chunks", "huge pages, threads touch, register chunks", "thp", True, "chunks"),
        Strategy("thp_register_threads", "huge pages, threads touch, threads register chunks", "thp", True, "threads"),
        Strategy("thp_pipeline", "huge pages, register each chunk once touched", "thp", True, "pipeline"),
    )
}
"""Name → strategy, in the order in which they are measured and shown."""

SHARED_STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        Strategy("memfd", "shared memory, threads touch, each registers", "shm", True, "one"),
        Strategy("hugetlb", "shared hugetlb pages, threads touch, each registers", "hugetlb", True, "one"),
        Strategy(
            "hugetlb_1g", "shared hugetlb pages of 1 GiB, threads touch, each registers", "hugetlb_1g", True, "one"
        ),
    )
}
"""Name → the same for memory that several processes share: one touches it, each registers it."""
