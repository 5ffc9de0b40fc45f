"""Snapshots of captured hosts, and what must hold of every snapshot."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from pinscope.live.source import snapshot
from pinscope.probes.proc import Answer, Proc
from pinscope.records.base import Record
from pinscope.records.snapshot import DeviceFigures, Holder, Snapshot


def without_reason(record: Record, path: str = "") -> list[str]:
    """Every figure, at any depth, that is ``None`` and says not why."""
    missing = getattr(record, "missing", {})
    bare = []
    for name in type(record).model_fields:
        value = getattr(record, name)
        if value is None and name not in ("advice", "gpu_instance", "probe", "copies") and not missing.get(name):
            bare.append(f"{path}{name}")
        parts = value if isinstance(value, tuple) else (value,)
        for part in parts:
            if isinstance(part, Record) and name != "link":  # a link's reasons are its device's
                bare += without_reason(part, f"{path}{name}.")
    return bare


def captured_gpus(folder: Path) -> Answer[tuple[DeviceFigures, ...]] | None:
    """What the driver told when scripts/capture-proc copied a host; ``None``: it was not asked."""
    gpus = folder / "gpus.json"
    return Answer(TypeAdapter(tuple[DeviceFigures, ...]).validate_json(gpus.read_bytes())) if gpus.exists() else None


def captured(folder: Path) -> Snapshot:
    """The snapshot of a host that scripts/capture-proc copied."""
    return snapshot(Proc.below(folder), captured_gpus(folder))


def holder_of(seen: Snapshot, pid: int) -> Holder:
    """The process, which is one."""
    return next(holder for holder in seen.holders if holder.pid == pid)
