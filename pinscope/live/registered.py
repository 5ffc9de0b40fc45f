"""What a holder has registered, and which of the driver's host memory it has, as far as the probe followed it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pinscope.probes.answer import Answer
from pinscope.records.bound import Bound, about, at_least, at_most
from pinscope.records.registration import PidRegistrations, Piece, PieceKind, Registrations

OLDEST_PIECES = 10
"""So many pieces of each holder a snapshot shows."""
NOT_FOLLOWED = "registered memory is not shown in /proc; 'pinscope live --probe', as root, traces it from its start on"
CALLS_NOT_FOLLOWED = "only 'pinscope live --probe', as root, traces the driver's calls, from its start on"
_EARLIER = at_least("what it registered before the probe started is not known")
_LOST = about("some calls came too fast to be followed")
_TOO_MANY = at_least("not all of its pieces could be followed")
_ANOTHER_COPY = at_least("it uses another copy of the driver's library too, which is not traced")
_CONTEXT_ENDED = at_most("it has ended a CUDA context, which releases the memory pinned in it")
_ENDED_AND_MORE = about("it has ended a CUDA context, and some of its pinned memory is not known")
_LEFT_OUT = at_least("more processes pin memory than the probe follows")
_TAKEN_EARLIER = at_least("what it took before the probe started is not known")
_POOLS = at_least("a pool of host memory holds more than is allocated from it")
_IMPORTED = at_least("it imported memory of another process, whose size the call does not give")
_UNREAD = about("the handle of some cuMemCreate memory could not be read")


@dataclass(frozen=True)
class Registered:
    """Registered memory of one process."""

    bytes: Answer[int]
    """To the byte."""
    pieces: Answer[int]
    driver_memory: Answer[int]
    """Write-combined memory, cuMemCreate on the host, and what is allocated from pools of host memory: in bytes as the
    process asked for it, mapped or not."""
    pinned_bytes: int = 0
    """The whole pages that the kernel pins for it; 0 where that is not known."""
    estimate: Bound | None = None
    """Why the figures are no more than an estimate."""
    oldest: tuple[Piece, ...] = ()
    """Live pieces that were pinned first, allocated ones too."""
    driver_estimate: Bound | None = None
    """Of ``driver_memory``, as ``estimate``."""


def registered_by(
    pid: int, cuda: bool | None, started_at: datetime | None, registrations: Registrations | None
) -> Registered:
    """What a process has registered.

    Args:
        pid: of the process.
        cuda: whether it uses CUDA; ``None`` if that is not known.
        started_at: when it started, where that is known.
        registrations: what the probe tells; ``None`` if there is none.
    """
    unknown = NOT_FOLLOWED if registrations is None else registrations.trouble
    if registrations is None or unknown is not None:
        calls = CALLS_NOT_FOLLOWED if registrations is None else unknown
        return Registered(Answer(None, unknown), Answer(None, unknown), Answer(None, calls))
    known = registrations.by_pid.get(pid)
    if known is None and pid in registrations.not_followed:
        unfollowed: Answer[int] = Answer.missing(registrations.not_followed[pid])
        return Registered(unfollowed, unfollowed, unfollowed)
    if known is None and cuda is False:
        return Registered(Answer(0), Answer(0), Answer(0))
    since_its_start = started_at is not None and started_at > registrations.since
    known = known or PidRegistrations(pid=pid, name="", from_start=since_its_start)
    return Registered(
        Answer(known.registered_bytes),
        Answer(known.registrations),
        Answer(known.driver_memory_bytes),
        known.pinned_registered_bytes,
        _estimate(known, registrations),
        known.pieces[:OLDEST_PIECES],
        _driver_estimate(known, registrations),
    )


def _estimate(known: PidRegistrations, registrations: Registrations) -> Bound | None:
    if registrations.lost_events:
        return _LOST
    return _after_contexts(known, "register", _at_least(known, registrations))


def _driver_estimate(known: PidRegistrations, registrations: Registrations) -> Bound | None:
    if registrations.lost_events:
        return _LOST
    if known.unread_handles:
        return _UNREAD
    more = _at_least(known, registrations, _TAKEN_EARLIER)
    least = more or (_POOLS if known.host_pools else _IMPORTED if known.imported else None)
    return _after_contexts(known, "write_combined", least)


def _after_contexts(known: PidRegistrations, kind: PieceKind, least: Bound | None) -> Bound | None:
    """What holds if a context has ended since one of the pieces of this kind was taken."""
    ended = known.context_ended_at
    if ended is not None and any(piece.kind == kind and piece.since < ended for piece in known.pieces):
        return _ENDED_AND_MORE if least else _CONTEXT_ENDED
    return least


def _at_least(known: PidRegistrations, registrations: Registrations, earlier: Bound = _EARLIER) -> Bound | None:
    if not known.from_start:
        return earlier
    if known.pid in registrations.not_followed:
        return _ANOTHER_COPY
    if known.dropped_pieces:
        return _TOO_MANY
    return _LEFT_OUT if registrations.left_out_processes and not known.calls else None
