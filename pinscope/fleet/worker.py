"""The process that stands for a host in a campaign: ``python -m pinscope.fleet.worker [HOST]``.

It reads from its input how to reach the scheduler, and ends when that ends. HOST is what its runs call their host. It
opens one port, through which only who holds the campaign's certificate gets.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
from distributed import Security, Worker
from distributed.comm.addressing import get_address_host
from distributed.utils import get_ip

from pinscope.fleet import host
from pinscope.store.new_file import check_private, make_private, own_folder

QUIET: Mapping[str, Any] = {
    "distributed.diagnostics.nvml": False,  # it would ask each GPU twice a second
    "distributed.worker.profile.enabled": False,
    "distributed.admin.system-monitor.interval": "60s",
    "distributed.admin.tick.interval": "1s",
    "distributed.worker.preload": [],
}
"""So that a worker does next to nothing while its child measures."""
logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what a campaign must know it says itself
JOIN_SECONDS = 60.0
"""How long a scheduler is looked for."""


class QuietWorker(Worker):
    """A worker without the page about itself that Dask would serve to anybody."""

    def start_http_server(self, *_arguments: Any, **_options: Any) -> None:
        """Serve nothing."""


async def _serve(order: Mapping[str, Any]) -> None:
    """Work until the scheduler is gone, a signal comes or the input ends."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    loop.add_reader(0, lambda: None if os.read(0, 1) else (loop.remove_reader(0), loop.call_soon(stopped.set)))
    worker = await QuietWorker(
        order["scheduler"],
        host=f"tls://{get_ip(get_address_host(order['scheduler']))}",  # else it listens on every network
        nthreads=1,
        name=order["name"],
        local_directory=order.get("folder") or str(_own_folder()),
        security=Security(require_encryption=True, **order["security"]),
        memory_limit=0,
        death_timeout=JOIN_SECONDS,
    )
    finished = asyncio.ensure_future(worker.finished())
    finished.add_done_callback(lambda _: stopped.set())
    await stopped.wait()
    host.end(order["campaign"])
    await worker.close()


def _own_folder() -> Path:
    """Where this user's workers keep their files: nobody else may look in. What a killed worker left goes with the
    start of the next one.

    Raises:
        OSError: another user may write there.
    """
    folder = own_folder(Path(tempfile.gettempdir())) / "fleet"
    make_private(folder)
    check_private(folder)
    return folder


def main(arguments: list[str]) -> int:
    """Join the campaign; 0 when it has ended."""
    order = {"name": socket.gethostname(), **json.loads(sys.stdin.readline())}
    host.HERE.share = order.get("share", host.HERE.share)
    host.HERE.name = arguments[0] if arguments else order["name"] if order.get("pretends") else None
    os.umask(0o077)
    with dask.config.set(QUIET):
        try:
            with suppress(asyncio.CancelledError):
                asyncio.run(_serve(order))
        except (OSError, RuntimeError, ValueError) as error:
            print(f"pinscope: {str(error).splitlines()[0]}", file=sys.stderr)  # noqa: T201 - its starter reads it
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
