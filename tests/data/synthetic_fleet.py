"""A fleet made of one real run: hosts that differ as hosts do, runs that differ as runs do, and a few hosts at fault.

How far they differ is what was measured on H100 hosts (docs/fleet.md): run to run a standard deviation of 0.1 to 0.7 %
of pinned copies, 2 to 5 % of pageable ones, 10 to 15 % of pageable ones of 4 KiB; host to host 1.1 % of pinned copies
from 1 MiB on, 4 % of smaller ones, 9 % of pageable ones. Half of what hosts differ by is of all cells of a host alike,
and normal: a host that is far out as a whole is what is searched for. The other half is each cell's own; that, and what
runs differ by, has longer tails (Student's t of 6 degrees of freedom).
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import numpy as np

from pinscope.analysis.comparison import CellFigure
from pinscope.analysis.figures import NODE, named_figures
from pinscope.analysis.machine_keys import surroundings
from pinscope.analysis.outliers import FLOAT, FleetRun
from pinscope.experiments.bandwidth.experiment import EXPERIMENT
from pinscope.experiments.registry import run_figures
from pinscope.records.run import ExperimentRun, RunFigures
from pinscope.store import tables
from pinscope.store.figures import row_of
from pinscope.store.recordings import recorded_observations, recorded_run
from pinscope.store.store import NewRows, Store, as_columns

RECORDINGS = {"bandwidth": "20261122-020303-045079", "pinning_strategy": "20261122-020513-c356c8"}
"""Real runs on an H100."""
KINDS = ("link", "node", "processor", "huge pages")
RACK = 32
TAILS = 6


@cache
def base(experiment: str = "bandwidth") -> tuple[ExperimentRun, list[dict[str, Any]]]:
    """A real run of quick size, with its figures, and its rows."""
    run = recorded_run(RECORDINGS[experiment])
    assert isinstance(run, ExperimentRun)
    rows = recorded_observations(run.id)
    if experiment == "bandwidth":
        quick = EXPERIMENT.Params.preset("cuda", True)
        rows = [
            row
            for row in rows
            if row["bytes"] in quick.sizes and row["backing"] in (None, "4k") and row["cache"] in (None, "cold")
        ]
        rows = [row for row in rows if row["repeat"] < 8]
    return run.model_copy(update={"recording": False, "figures": run_figures(run, rows)}), rows


def is_pageable(figure: CellFigure) -> bool:
    return figure.labels.get("memory") == "pageable"


def levels(figures: Sequence[CellFigure]) -> tuple[np.ndarray, np.ndarray]:
    """Of each figure the standard deviation between hosts and between runs, relative."""
    hosts, runs = [], []
    for figure in figures:
        size = figure.labels.get("bytes", 0)
        if "memory" not in figure.labels:
            hosts.append(0.10 if figure.value.unit == "seconds" else 0.011)
            runs.append(0.03 if figure.value.unit == "seconds" else 0.004)
        elif is_pageable(figure):
            hosts.append(0.09)
            runs.append(0.125 if size == 4096 else 0.035)
        else:
            hosts.append(0.011 if size >= 2**20 else 0.04)
            runs.append(0.004)
    return np.array(hosts), np.array(runs)


def slower(kind: str, figure: CellFigure) -> float:
    """How many times as long what a figure tells takes where a host is at fault."""
    is_copy = "memory" in figure.labels or figure.figure == "copy_bytes_per_second"
    is_large = figure.labels.get("bytes", 2**30) >= 2**20 or not figure.labels.get("bytes")
    is_touched = figure.figure in ("touch_seconds", "total_seconds") and "touch" in str(figure.labels.get("strategy"))
    if kind == "link":
        return 1.95 if is_copy and is_large and not is_pageable(figure) else 1.0
    if kind == "node":
        return {True: 1.5, False: 1.2 if is_large else 1.05}[is_pageable(figure)] if is_copy else 1.25
    if kind == "processor":
        return 1.8 if is_pageable(figure) or is_touched else 1.0
    return 2.1 if "thp" in str(figure.labels.get("strategy")) and figure.value.unit == "seconds" else 1.0


FACTS: Mapping[str, Mapping[str, str]] = {
    "link": {"gpu.link.width_now": "8"},
    "node": {NODE: "another than the GPU's"},
    "processor": {},
    "huge pages": {"huge_pages.transparent": "never"},
}
"""What the environment of such a host says: of a slow processor nothing."""


@dataclass(frozen=True)
class Host:
    """A host of the fleet; ``fault``: what is wrong with it."""

    number: int
    fault: str | None

    @property
    def name(self) -> str:
        return f"node{self.number:05}"

    @property
    def tag(self) -> str:
        return f"rack=r{self.number // RACK}"


class SyntheticFleet:
    """Hosts, and their runs.

    Args:
        hosts: how many.
        faults: of each kind, on hosts that are drawn.
        seed: of all that is drawn.
        runs: of each host.
    """

    def __init__(self, hosts: int, faults: int, seed: int, runs: int = 3, kinds: Sequence[str] = KINDS) -> None:
        self._seed, self._runs = seed, runs
        chosen = np.random.default_rng([seed, 1]).permutation(hosts)[: faults * len(kinds)]
        at_fault = {int(number): kinds[place % len(kinds)] for place, number in enumerate(chosen)}
        self.hosts = [Host(number, at_fault.get(number)) for number in range(hosts)]

    @property
    def faults(self) -> dict[str, str]:
        """Host → what is wrong with it."""
        return {host.name: host.fault for host in self.hosts if host.fault}

    def values(self, experiment: str = "bandwidth") -> Iterator[tuple[Host, np.ndarray, np.ndarray]]:
        """Of each host the figures of its runs, and by how much each lies above that of the real run."""
        figures = base(experiment)[0].figures
        assert figures is not None
        named = named_figures(figures.layout)
        assert named is not None
        real = np.array([np.nan if value is None else value for value in figures.values])
        signs = np.array([-1.0 if figure.value.better == "more" else 1.0 for figure in named])
        of_host, of_run = levels(named)
        faults = {kind: np.log([slower(kind, figure) for figure in named]) for kind in KINDS}
        random = np.random.default_rng([self._seed, 2, zlib.crc32(experiment.encode())])
        unit = np.sqrt((TAILS - 2) / TAILS)  # a standard deviation of 1
        for host in self.hosts:
            common = random.standard_normal()
            own = random.standard_t(TAILS, len(named)) * unit
            runs = random.standard_t(TAILS, (self._runs, len(named))) * unit
            off = of_host * (common + own) / np.sqrt(2) + of_run * runs + (faults[host.fault] if host.fault else 0.0)
            yield host, real * np.exp(signs * off), signs * off

    def fleet_runs(self, experiment: str = "bandwidth") -> tuple[list[FleetRun], dict[str, str]]:
        """All runs as the store would give them, and the texts that they share."""
        run = base(experiment)[0]
        assert run.figures is not None
        around = {**surroundings(run), **run.figures.facts}
        texts = {"layout": run.figures.layout, "": json.dumps(around)}
        texts |= {kind: json.dumps({**around, **facts}) for kind, facts in FACTS.items()}
        runs = [
            FleetRun(
                f"{host.name}-{number}",
                host.name,
                host.name,
                0,
                f"GPU-{host.name}",
                "layout",
                host.fault or "",
                host.tag,
                values.astype(FLOAT).tobytes(),
            )
            for host, every, _ in self.values(experiment)
            for number, values in reversed([*enumerate(every)])
        ]
        return runs, texts

    def runs(self, experiment: str = "bandwidth") -> Iterator[tuple[ExperimentRun, np.ndarray]]:
        """All runs, with figures and without rows; and by how much each figure lies above that of the real run."""
        run = base(experiment)[0]
        assert run.figures is not None
        device = run.environment.devices[0]
        for host, every, offs in self.values(experiment):
            facts = FACTS.get(host.fault or "", {})
            link = device.link and device.link.model_copy(update={"width_now": 8} if host.fault == "link" else {})
            gpu = device.model_copy(update={"uuid": f"GPU-{host.name}", "link": link})
            pages = run.environment.huge_pages
            if host.fault == "huge pages":
                pages = pages.model_copy(update={"transparent": "never"})
            changes = {"host": host.name, "machine_id": host.name, "devices": (gpu,), "huge_pages": pages}
            environment = run.environment.model_copy(update=changes)
            node = {NODE: facts[NODE]} if NODE in facts else {}
            for number, values in enumerate(every):
                figures = RunFigures(
                    layout=run.figures.layout,
                    values=tuple(None if np.isnan(value) else float(f"{value:.6g}") for value in values),
                    facts={**run.figures.facts, **node},
                )
                yield (
                    run.model_copy(
                        update={
                            "id": f"{experiment}-{host.name}-{number}",
                            "environment": environment,
                            "created_at": run.created_at + timedelta(hours=number),
                            "tags": (host.tag,),
                            "figures": figures,
                        }
                    ),
                    offs[number],
                )


def scaled_rows(offs: np.ndarray) -> list[dict[str, Any]]:
    """The rows of the real run of ``bandwidth``, of each cell as much slower as the run's rate lies off."""
    run, rows = base()
    assert run.figures is not None
    named = named_figures(run.figures.layout)
    assert named is not None
    firsts = [(place, figure.labels) for place, figure in enumerate(named) if figure.is_first]
    times = {tuple(labels.values()): float(np.exp(-offs[place])) for place, labels in firsts}
    names = list(firsts[0][1])
    scaled = []
    for row in rows:
        factor = times[tuple(row[name] for name in names)]
        scaled.append(
            {
                name: value * factor if name.endswith("_seconds") and value is not None else value
                for name, value in row.items()
            }
        )
    return scaled


def fill(store: Store, made: SyntheticFleet, experiment: str = "bandwidth") -> None:
    """Store all runs, without rows, as an import would, but for the time that it takes to make sixty thousand of them
    and to look at each."""
    model = base(experiment)[0]
    known = row_of(model)
    assert known is not None
    row, texts = known
    around = json.loads(texts[row["surroundings"]])
    hashes = {None: row["surroundings"]}
    for kind, facts in FACTS.items():
        text = json.dumps({**around, **facts})
        hashes[kind] = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        texts = {**texts, hashes[kind]: text}
    run_row = {**as_columns(model), "observations": 0}
    with store.writing() as connection:
        store.figures.keep_texts(connection, texts)
        new = NewRows(connection)
        for host, every, _ in made.values(experiment):
            for number, values in enumerate(every):
                run_id = f"{experiment}-{host.name}-{number}"
                moment = row["created_at"] + timedelta(hours=number)
                new.add(tables.RUNS, {**run_row, "id": run_id, "created_at": moment})
                own = {"run_id": run_id, "created_at": moment, "machine": host.name, "host": host.name}
                own |= {"gpu": f"GPU-{host.name}", "tags": host.tag, "surroundings": hashes[host.fault]}
                new.add(tables.FIGURES, {**row, **own, "content": values.astype("<f4").tobytes()})
        new.write()
