"""The figures of several hosts, from their exporters: the live view of a fleet without a Prometheus."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from http.client import HTTPException
from operator import attrgetter
from typing import Any
from urllib.request import ProxyHandler, build_opener

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pinscope.analysis.read_rows import grouped
from pinscope.errors import InvalidParameter
from pinscope.monitoring.server import DEFAULT_PORT, PATH
from pinscope.text import quoted

ANSWER_SECONDS = 5.0
MOST_BYTES = 16 * 2**20
"""Of an answer; one of 500 holders has 200 KB."""
AT_ONCE, MOST_PORT = 64, 65535
_ADDRESS = re.compile(r"(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+\])(?::(?P<port>\d{1,5}))?")
Series = Mapping[str, Sequence[Sample]]
"""Name → samples with their labels."""


@dataclass(frozen=True)
class RemoteHolder:
    """A process that holds pinned memory there: ``bytes`` of its own and registered."""

    name: str
    pid: str
    user: str
    bytes: float


def _sum_of(metric: str, title: str) -> Any:
    """The sum of a metric, and what people call it."""
    return field(default=None, metadata={"metric": metric, "title": title})


@dataclass(frozen=True)
class RemoteHost:
    """What an exporter tells of its host; ``None``: it does not.

    Attributes:
        address: of the exporter.
        problem: why there are no figures.
        slow_links: GPU → lanes in use, and the best, where these differ.
        holders: those that hold most first.
    """

    address: str
    problem: str | None = None
    pinned_bytes: float | None = _sum_of("pinscope_host_pinned_bytes", "pinned")
    memory_bytes: float | None = _sum_of("pinscope_host_memory_bytes", "of memory")
    available_bytes: float | None = _sum_of("pinscope_host_memory_available_bytes", "available")
    other_bytes: float | None = _sum_of("pinscope_host_pinned_other_bytes", "without an owner")
    unattributed_bytes: float | None = _sum_of("pinscope_gpu_memory_unattributed_bytes", "GPU memory no process has")
    slow_links: Sequence[str] = ()
    holders: Sequence[RemoteHolder] = ()


FIGURES = [figure for figure in fields(RemoteHost) if figure.metadata]


def addresses(text: str) -> list[str]:
    """``a:10435,b`` as addresses with ports.

    Raises:
        InvalidParameter: one of them is none.
    """
    given = []
    for part in map(str.strip, text.split(",")):
        match = _ADDRESS.fullmatch(part)
        if not match or int(match["port"] or 0) > MOST_PORT:
            raise InvalidParameter(
                f"{quoted(part)} is no address of an exporter; --hosts takes host:port by comma, such as node1:10435"
            )
        given.append(f"{match['host']}:{match['port'] or DEFAULT_PORT}")
    return list(dict.fromkeys(given))


def read_hosts(names: Sequence[str]) -> list[RemoteHost]:
    """All of them at once, in their order; one that does not answer in time says so."""
    with ThreadPoolExecutor(min(AT_ONCE, len(names)), "pinscope-hosts") as pool:
        return list(pool.map(_read, names))


def _fetch(address: str) -> str:
    opener = build_opener(ProxyHandler({}))  # a proxy of the environment is for the internet, not for these
    with opener.open(f"http://{address}{PATH}", timeout=ANSWER_SECONDS) as answer:
        return answer.read(MOST_BYTES).decode("utf-8", "replace")  # type: ignore[no-any-return]


def _read(address: str) -> RemoteHost:
    try:
        families = text_string_to_metric_families(_fetch(address))
        series = grouped((sample for family in families for sample in family.samples), attrgetter("name"))
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        return RemoteHost(address, f"no answer: {getattr(reason, 'strerror', None) or reason}")
    except (ValueError, KeyError, IndexError):
        series = {}
    if "pinscope_up" not in series:
        return RemoteHost(address, "what answers there is no exporter of PinScope")
    if not _sum(series, "pinscope_up"):
        return RemoteHost(address, "its exporter cannot read the host now")
    figures = {figure.name: _sum(series, figure.metadata["metric"]) for figure in FIGURES}
    return RemoteHost(address, None, **figures, slow_links=list(_slow_links(series)), holders=_holders(series))


def _sum(series: Series, name: str) -> float | None:
    values = [sample.value for sample in series.get(name, ()) if math.isfinite(sample.value)]
    return sum(values) if values else None


def _slow_links(series: Series) -> Iterator[str]:
    """Lanes below the best. Not generations: an idle link trains down to save power."""
    best = {sample.labels.get("gpu"): sample.value for sample in series.get("pinscope_gpu_link_best_lanes", ())}
    for sample in series.get("pinscope_gpu_link_lanes", ()):
        gpu = sample.labels.get("gpu")
        if sample.value < best.get(gpu, sample.value):
            yield f"GPU {gpu}: {sample.value:.0f} of {best[gpu]:.0f} lanes"


def _holders(series: Series) -> list[RemoteHolder]:
    metrics = ("pinscope_holder_host_alloc_bytes", "pinscope_holder_registered_bytes")
    samples = (sample for metric in metrics for sample in series.get(metric, ()))
    held = grouped(samples, lambda of: (of.labels.get("name", ""), of.labels.get("pid", ""), of.labels.get("user", "")))
    some = [RemoteHolder(*who, sum(sample.value for sample in own)) for who, own in held.items()]
    return sorted((holder for holder in some if holder.bytes > 0), key=lambda holder: -holder.bytes)
