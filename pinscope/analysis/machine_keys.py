"""What two sides of runs have in common, and in which they differ, of machines and software: key by key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pinscope.records.run import Run
from pinscope.units import format_value

MACHINE = "machine_id"
"""The key that tells one machine from another."""
_FLEETING = frozenset(
    {
        "captured_at", "missing", "host_available_bytes", "cgroup_headroom_bytes", "memlock_headroom_bytes",
        "shm_free_bytes", "hugetlb_free_pages", "available_bytes", "memory_free_bytes", "generation_now", "link_errors",
        "link_errors_after",
    }
)  # fmt: skip
"""Fields that differ from one moment to the next: how much is free, and a link that slows down while it is idle."""
_TITLES: Mapping[str, str] = {
    "gpu.name": "GPU", "gpu.uuid": "GPU's own name", "gpu.memory_total_bytes": "GPU memory", "gpu.iommu": "IOMMU",
    "gpu.link.width_now": "PCIe lanes in use", "gpu.link.generation_max": "PCIe generation", "driver": "driver",
    "gpu.link.limit_bytes_per_second": "limit of the link", "cuda_driver": "CUDA of the driver", "kernel": "kernel",
    MACHINE: "machine", "os": "system", "cpu": "processor", "cpus": "processors", "numa_nodes": "NUMA nodes",
    "huge_pages.transparent": "transparent huge pages", "limits.host_total_bytes": "memory",
    "pinscope_version": "PinScope", "pinscope_commit": "PinScope's commit", "gpu.link.width_max": "PCIe lanes",
    "gpu.link.kind": "link", "gpu.bar1_bytes": "GPU memory that the host can map",
}  # fmt: skip
"""Key → what people call it, in the order in which these are said; others follow by their key."""


@dataclass(frozen=True)
class MachineKey:
    """A key that differs: what each side has, several by ``|``."""

    key: str
    title: str
    a: str
    b: str


@dataclass(frozen=True)
class MachineKeys:
    """All keys of both sides.

    Attributes:
        different: known of both, and not the same.
        same: title → what both have.
        unknown: titles of keys that one side did not record.
    """

    different: Sequence[MachineKey]
    same: Mapping[str, str]
    unknown: Sequence[str]

    @property
    def is_one_machine(self) -> bool:
        """Whether all was measured on one."""
        return all(key.key != MACHINE for key in self.different)


def key_words(keys: Sequence[MachineKey]) -> str:
    """``driver 580.1 → 590.2; kernel 6.18 → 6.19``."""
    return "; ".join(f"{key.title} {key.a} → {key.b}" for key in keys)


def machine_keys(a: Sequence[Run], b: Sequence[Run]) -> MachineKeys:
    """What differs between the machines and the software of two sides, and what is the same."""
    sides = [[_flat(run) for run in runs] for runs in (a, b)]
    names = dict.fromkeys([*_TITLES, *(name for side in sides for run in side for name in run)])
    different, same, unknown = list[MachineKey](), dict[str, str](), list[str]()
    for name in names:
        first, second = ({run[name]: None for run in side if name in run} for side in sides)
        title, words = _TITLES.get(name, name), (" | ".join(first), " | ".join(second))
        if first and second:
            if first.keys() == second.keys():
                same[title] = words[0]
            else:
                different.append(MachineKey(name, title, *words))
        elif first or second:
            unknown.append(title)
    return MachineKeys(different, same, unknown)


_OWN = frozenset({"host", MACHINE, "gpu.uuid", "gpu.pci_bus_id", "gpu.index", "pinscope_commit"})
"""Keys that tell a machine or a GPU from others that are like it."""


def surroundings(run: Run) -> dict[str, str]:
    """What is known of a run's machine, but for what it alone has: each key as text."""
    return {key: text for key, text in _flat(run).items() if key not in _OWN}


def key_title(key: str) -> str:
    """What people call a key."""
    return _TITLES.get(key, key)


def _flat(run: Run) -> dict[str, str]:
    """Each key that is known, as text; of the GPUs that which was measured."""
    fields = run.environment.model_dump()
    devices = fields.pop("devices")
    gpus = {"gpu": run.gpu.model_dump()} if run.gpu else {f"gpu{number}": gpu for number, gpu in enumerate(devices)}
    return dict(_flattened({**fields, **gpus, "gpus": len(devices)}))


def _flattened(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(inner, dict | list | tuple) and name not in _FLEETING:
            yield from _flattened(inner, f"{path}{name}.")
        elif inner is not None and name not in _FLEETING:
            yield f"{path}{name}", _text(f"{path}{name}", inner)


@lru_cache(maxsize=4096, typed=True)
def _text(path: str, value: Any) -> str:
    """Cached: the machines of a fleet are alike."""
    if path.endswith("bytes_per_second"):
        return format_value(value, "bytes/second")
    return format_value(value, "bytes" if path.endswith("bytes") else "count")
