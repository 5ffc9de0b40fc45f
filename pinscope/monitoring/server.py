"""Serves the metrics over HTTP, on this machine only unless its user wants otherwise."""

from __future__ import annotations

import errno
import ipaddress
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from socketserver import ThreadingTCPServer
from typing import Any, Self
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, MetricsHandler
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import pinscope
from pinscope.errors import InvalidParameter, NotPossible
from pinscope.live.sampler import History
from pinscope.records.environment import Link
from pinscope.records.figure import Figure, Number, figures
from pinscope.records.snapshot import DeviceFigures, GpuUse, Holder, HostTotals, Snapshot
from pinscope.text import quoted

DEFAULT_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 10435
"""Outside 9100 to 9999, the ports that Prometheus' exporters share out among them."""
PATH = "/metrics"
CLIENT_SECONDS = 10.0
"""Without a byte for so long, a client is hung up on."""
STOP_SECONDS = 0.1
"""How soon the server notices that it is to stop."""


class MetricsServer:
    """A server in threads of its own, from entering to leaving it.

    Args:
        collector: what it serves.
        address: an IP address or ``localhost``.
        port: 0 to 65535; 0 takes a free one.

    Raises:
        InvalidParameter: no such address or port.
        NotPossible: another program listens there, or this user may not.
    """

    def __init__(self, collector: Collector, address: str = DEFAULT_ADDRESS, port: int = DEFAULT_PORT) -> None:
        host = checked_address(address)
        if not 0 <= port <= 65535:
            raise InvalidParameter(f"{port} is no port number; it must be from 0 (any free one) to 65535")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        handler = type("_Handler", (_Handler,), {"registry": registry, "only_local": is_loopback(address)})
        try:
            self._server = (_Server6 if host.version == 6 else _Server)((str(host), port), handler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise NotPossible(f"port {port} of {address} is in use; choose another with --port") from None
            raise NotPossible(f"cannot listen on port {port} of {address}: {error.strerror}") from None
        name = f"[{host}]" if host.version == 6 else str(host)
        self.url = f"http://{name}:{self._server.server_address[1]}{PATH}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(STOP_SECONDS,), name="pinscope-metrics", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def checked_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The address to listen on.

    Raises:
        InvalidParameter: it is neither an IP address nor ``localhost``.
    """
    try:
        return ipaddress.ip_address(DEFAULT_ADDRESS if address == "localhost" else address)
    except ValueError:
        raise InvalidParameter(
            f"{quoted(address)} is no IP address; 127.0.0.1 is this machine alone, 0.0.0.0 all"
        ) from None


def is_loopback(address: str) -> bool:
    """True if only programs on this machine can reach it."""
    return checked_address(address).is_loopback


def _is_local_name(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class _Handler(MetricsHandler):
    """Answers /metrics; on loopback only to those who ask for this machine by a local name.

    A page from the internet whose name was made to point here (DNS rebinding) asks for that name, and is refused.
    """

    timeout = CLIENT_SECONDS
    only_local = True

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        """Answer, or say in one line why not."""
        if self.only_local and not _is_local_name(self.headers.get("Host", "")):
            self.send_error(HTTPStatus.FORBIDDEN, "Only programs on this machine may ask for this")
        elif urlsplit(self.path).path != PATH:
            self.send_error(HTTPStatus.NOT_FOUND, f"There is only {PATH}")
        else:
            super().do_GET()


class _Server(ThreadingTCPServer):
    """Serves each connection in a thread."""

    allow_reuse_address = True
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client hung up: nothing is wrong here."""


class _Server6(_Server):
    address_family = socket.AF_INET6


MOST_HOLDERS = 25
"""Holders with series of their own."""
OTHER = "other"
"""Pid and name under which the rest of the holders is summed."""
_OTHERS = (OTHER, OTHER, "", "")
STALE_INTERVALS = 5
STALE_SECONDS = 10.0
"""A snapshot older than so many intervals and so many seconds more is not exported any longer."""
HOLDER_LABELS = ("pid", "name", "user", "container")
GPU_LABELS = ("gpu", "uuid")

HOST, HOLDER, HOLDER_GPU, GPU, LINK = (
    tuple(figure for figure in figures(record) if figure.metric)
    for record in (HostTotals, Holder, GpuUse, DeviceFigures, Link)
)
OTHERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "pinscope_up": ("1 if the last reading of the host succeeded and is not old.", ()),
    "pinscope_snapshot_age_seconds": ("Time since the figures were read.", ()),
    "pinscope_snapshot_cpu_seconds": ("Processor time that reading the figures took.", ()),
    "pinscope_unreadable": ("How many things could not be read.", ()),
    "pinscope_holders_hidden": ("1 if there may be holders that are not seen.", ()),
    "pinscope_gpus_readable": ("1 if the GPUs' driver answers.", ()),
    "pinscope_holders": ("Processes that hold pinned or locked memory, or may.", ()),
    "pinscope_probe_lost_events_total": ("Calls that came faster than the probe could read them.", ()),
    "pinscope_host_memory_stalled_seconds_total": (
        "Time in which tasks stalled for memory since boot: at least one (some), or all at once (full).",
        ("tasks",),
    ),
    "pinscope_gpu_info": ("Always 1; the labels name the GPU.", (*GPU_LABELS, "model")),
    "pinscope_exporter_cpu_seconds_total": ("Processor time of the exporter.", ()),
    "pinscope_scrape_seconds": ("Time that it took to make this answer.", ()),
    "pinscope_build_info": ("Always 1; the label names the version of PinScope.", ("version",)),
}
"""Metrics that are no figures: name → help and labels. Those that end in ``_total`` are counters."""
_UNLESS_MIG = "unattributed_bytes"
"""Of a GPU with MIG instances the driver does not say what belongs to which process."""


class SnapshotCollector(Collector):
    """Gives the sampler's latest snapshot to each scrape; takes none itself."""

    def __init__(self, history: Callable[[], History], now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._history = history
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """All metrics of one scrape."""
        begun = time.perf_counter()
        history = self._history()
        age = None if history.latest is None else (self._now() - history.latest.taken_at).total_seconds()
        fresh = age is not None and age <= STALE_INTERVALS * history.interval_seconds + STALE_SECONDS
        yield _other("pinscope_up", fresh and history.trouble is None)
        if age is not None:
            yield _other("pinscope_snapshot_age_seconds", max(age, 0.0))
        if history.latest is not None and fresh:
            yield from _of_snapshot(history.latest)
        yield _other("pinscope_exporter_cpu_seconds_total", time.process_time())
        yield _other("pinscope_scrape_seconds", time.perf_counter() - begun)
        yield _other("pinscope_build_info", {(pinscope.__version__,): 1})


def _of_snapshot(seen: Snapshot) -> Iterator[Metric]:
    yield _other("pinscope_snapshot_cpu_seconds", seen.cpu_seconds)
    yield _other("pinscope_unreadable", len(seen.unreadable))
    yield _other("pinscope_holders_hidden", any(gap.hides_holders for gap in seen.unreadable))
    yield _other("pinscope_gpus_readable", all(gap.what != "GPUs" for gap in seen.unreadable))
    yield _other("pinscope_holders", len(seen.holders))
    if seen.probe is not None:
        yield _other("pinscope_probe_lost_events_total", seen.probe.lost_events)
    for figure in HOST:
        yield from _family(figure, (), [((), getattr(seen.host, figure.field))])
    if (pressure := seen.host.pressure) is not None:
        yield _other(
            "pinscope_host_memory_stalled_seconds_total",
            {("some",): pressure.some_total_seconds, ("full",): pressure.full_total_seconds},
        )
    yield from _holders(seen.holders)
    yield from _gpus(seen.devices)
    if seen.devices:
        yield _other("pinscope_gpu_info", {(str(gpu.index), gpu.uuid, gpu.name): 1 for gpu in seen.devices})


def _other(name: str, values: float | Mapping[tuple[str, ...], float]) -> Metric:
    """One of :data:`OTHERS`, with its value, or one for each of its labels' values."""
    words, labels = OTHERS[name]
    family = (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(name, words, labels=labels)
    for names, value in values.items() if isinstance(values, Mapping) else [((), values)]:
        family.add_metric(names, value)
    return family


def _holders(holders: Sequence[Holder]) -> Iterator[Metric]:
    named, rest = holders[:MOST_HOLDERS], holders[MOST_HOLDERS:]
    for figure in HOLDER:
        values = [(_identity(holder), getattr(holder, figure.field)) for holder in named]
        others = figure.together(getattr(holder, figure.field) for holder in rest)
        yield from _family(figure, HOLDER_LABELS, [*values, (_OTHERS, others)])
    for figure in HOLDER_GPU:
        values = [(_identity(holder, use.index), getattr(use, figure.field)) for holder in named for use in holder.gpus]
        for index in sorted({use.index for holder in rest for use in holder.gpus}):
            others = figure.together(getattr(use, figure.field) for use in _uses(rest, index))
            values.append(((*_OTHERS, str(index)), others))
        yield from _family(figure, (*HOLDER_LABELS, "gpu"), values)


def _gpus(devices: Sequence[DeviceFigures]) -> Iterator[Metric]:
    for figure in (*GPU, *LINK):
        values = [
            ((str(device.index), device.uuid), getattr(device.link if figure in LINK else device, figure.field, None))
            for device in devices
            if not (device.mig and figure.field == _UNLESS_MIG)
        ]
        yield from _family(figure, GPU_LABELS, values)


def _family(
    figure: Figure, labels: Sequence[str], values: Iterable[tuple[Sequence[str], Number]]
) -> Iterator[GaugeMetricFamily]:
    """The metric of a figure, with those of the values that are known; nothing if none is."""
    family = GaugeMetricFamily(figure.metric or "", figure.help, labels=labels)
    for names, value in values:
        if value is not None:
            family.add_metric(names, value)
    if family.samples:
        yield family


def _identity(holder: Holder, *gpu: int) -> tuple[str, ...]:
    return str(holder.pid), holder.name, holder.user or "", holder.container or "", *map(str, gpu)


def _uses(holders: Sequence[Holder], index: int) -> Iterator[GpuUse]:
    return (use for holder in holders for use in holder.gpus if use.index == index)
