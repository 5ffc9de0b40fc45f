"""A process that does what its starter tells it: one JSON object a line on standard input, one line in answer.

It ends with its starter, or when its standard input ends. :mod:`pinscope.lab.members` is the starter's side.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from pinscope.errors import PinScopeError
from pinscope.probes.parent import end_with

Order = dict[str, Any]
Reply = dict[str, Any]


def serve(worker: object, orders: TextIO, answers: TextIO) -> None:
    """Do each order – a method of ``worker`` – and answer it; after an error it does no more."""
    for line in orders:
        order: Order = json.loads(line)
        try:
            reply = getattr(worker, order.pop("do"))(**order)
        except PinScopeError as error:
            reply = {"error": str(error), "class": type(error).__name__}
        except Exception as error:  # noqa: BLE001 - the starter must be told whatever it was
            reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0], "class": ""}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()
        if "error" in reply:
            return


def obey(parent: int, make: Callable[[], object]) -> int:
    """Make the worker and serve until the orders end, or the starter does."""
    end_with(parent)
    # What a library prints must not be taken for an answer.
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        serve(make(), sys.stdin, answers)
    return 0
