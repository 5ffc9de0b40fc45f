"""A process that carries out its starter's orders: one JSON object a line on standard input, one line in answer.

It ends with its starter, or when its standard input ends. :mod:`pinscope.lab.child_processes` is the starter's side.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TextIO, runtime_checkable

from pinscope.errors import PinScopeError
from pinscope.probes.child_lifetime import die_with_parent

Order = dict[str, Any]
Reply = dict[str, Any]


@runtime_checkable
class Busy(Protocol):
    """A worker that does something of its own while no order waits."""

    pause_seconds: float
    """From one time to the next."""

    def meanwhile(self) -> None:
        """Do it once."""


def serve(worker: object, orders: TextIO, answers: TextIO) -> None:
    """Carry out each order – a method of ``worker`` – and answer it; after an error no more."""
    for line in _busy_lines(worker, orders) if isinstance(worker, Busy) else orders:
        order: Order = json.loads(line)
        try:
            reply = getattr(worker, order.pop("do"))(**order)
        except PinScopeError as error:
            reply = {"error": str(error), "class": type(error).__name__}
        except Exception as error:  # noqa: BLE001 - the starter must learn of it, whatever it was
            reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0], "class": ""}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()
        if "error" in reply:
            return


def _busy_lines(worker: Busy, orders: TextIO) -> Iterator[str]:
    """The starter sends an order only once the last is answered: none can wait unseen in a buffer."""
    while True:
        if select.select([orders], [], [], worker.pause_seconds)[0]:
            line = orders.readline()
            if not line:
                return
            yield line
        worker.meanwhile()


def obey(make: Callable[..., object]) -> int:
    """Make the worker from this program's configuration, and serve until the orders end, or the starter does."""
    configuration = json.loads(sys.argv[1])
    die_with_parent(configuration.pop("parent"))
    if group := configuration.pop("group", None):
        Path(group, "cgroup.procs").write_text(str(os.getpid()))  # what it takes from here on is the group's
    # What a library prints must not be taken for an answer.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        serve(make(**configuration), sys.stdin, answers)
    return 0
