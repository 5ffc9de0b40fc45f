"""Follows who registers and allocates pinned memory on this host, by uprobes on the driver's library."""

from __future__ import annotations

from pinscope.errors import NotPossible
from pinscope.probes.proc import HERE, Proc
from pinscope.records.registration import Registrations


def why_not_probe(proc: Proc = HERE) -> str | None:
    """Why registered memory cannot be followed here, with what would help; ``None`` if it can."""
    return "the probe is not there yet"


class Tracker:
    """Follows every process on the host from :meth:`start` on."""

    def __init__(self, proc: Proc = HERE) -> None:
        self._proc = proc

    def start(self) -> None:
        """Set the probes.

        Raises:
            NotPossible: this machine cannot.
        """
        reason = why_not_probe(self._proc)
        if reason is not None:
            raise NotPossible(reason)

    def stop(self) -> None:
        """Take the probes away; does nothing if there are none."""

    def registered(self) -> Registrations:
        """What is registered now."""
        raise NotPossible("the probe does not run")
