"""Bundles from elsewhere: whatever one claims, it is taken whole or refused in one line, in bounded memory and time."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from pinscope.errors import BadInput
from pinscope.report.facts import open_document
from pinscope.store.bundle import BundleReader, render_bundle
from pinscope.store.store import Imported, Store
from tests.faults.campaign import WHOLE, Campaign, whole_only
from tests.faults.child import run_pinscope
from tests.faults.hostile_bundles import (
    RUN_ID,
    all_different,
    many_runs,
    members_of,
    mutated,
    of_rows,
    packed,
    real_rows,
)

ABOVE_BASE = 300 * 2**20
SECONDS = 400.0
"""Longest a command may take on a machine that does much else; alone, the longest took 60 s."""


def test_mutated_bundles(campaign: Campaign, tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/runs.db") as store:
        inputs = [content for _, content in campaign.corpus()]
        attempts = campaign.size(sample=60, whole=20_000)
        for attempt in range(len(inputs) + attempts):
            content = inputs[attempt] if attempt < len(inputs) else mutated(campaign.random(attempt - len(inputs)))
            campaign.count("bundles")
            try:
                complaint = _attempt(store, content)
            except Exception as error:  # noqa: BLE001 - this is what the campaign looks for
                complaint = f"{type(error).__name__}: {error}"
            if complaint:
                campaign.fail(f"{attempt}: {complaint[:300]}", content, f"{attempt}.pinscope")
                for run in list(store.each_run(recordings=False)):
                    store.delete(run.id)


def _attempt(store: Store, content: bytes) -> str | None:
    """Import a bundle into an empty database; what it did that it must not."""
    try:
        imported = _import(store, content)
    except BadInput as error:
        if "\n" in str(error) or len(str(error)) > 500:
            return f"not one line: {str(error)[:200]!r}"
        return "something was stored" if list(store.each_run(recordings=False)) else None
    for run_id in imported.added:
        run, rows = store.run(run_id), store.observations(run_id)
        with suppress(BadInput):  # sound as data, but no observations of that experiment
            open_document(run, rows)
        before, exported = list(rows), render_bundle([(run, rows)])
        store.delete(run_id)
        _import(store, exported)
        if (store.run(run_id), list(store.observations(run_id))) != (run, before):
            return f"run {run_id} came back changed"
        store.delete(run_id)
    return "a run was left" if list(store.each_run(recordings=False)) else None


def _import(store: Store, content: bytes) -> Imported:
    with BundleReader(io.BytesIO(content), "some.pinscope") as bundle:
        bundle.check()
        return store.import_runs(bundle.items())


_SMALLEST = b'{"repeat":0,"warmup":false}'
REFUSED: Mapping[str, tuple[str, Callable[[], bytes]]] = {
    "parameters": (
        "run.json is", lambda: packed(members_of("registration", params={f"{n:x}": 0 for n in range(500_000)})),
    ),
    "rows, stored": (
        "should have", lambda: of_rows("registration", [_SMALLEST] * 3_000_000, zipfile.ZIP_STORED, observations=9),
    ),
    "too many rows": (
        "more than 1,000,000", lambda: of_rows("registration", [_SMALLEST] * 1_000_001, zipfile.ZIP_STORED),
    ),
    "newlines, stored": (
        "more than 1,000,000", lambda: of_rows("registration", [b""] * 50_000_000, zipfile.ZIP_STORED),
    ),
    "a long line": (
        "is longer than", lambda: of_rows("registration", [b'{"x":"' + b"x" * 80_000_000 + b'"}'], zipfile.ZIP_STORED),
    ),
    "many fields": (
        "different fields",
        lambda: of_rows("registration", [
            json.dumps({"repeat": 0, "warmup": False, **{f"f{n}_{k}": 1 for k in range(100)}}).encode()
            for n in range(9)
        ]),
    ),
    "a deep row": ("Invalid JSON", lambda: of_rows("registration", [b"[" * 200_000])),
    "many members": (
        "it has no manifest.json", lambda: packed({f"{n:0100}": b"" for n in range(60_000)}, zipfile.ZIP_STORED),
    ),
    "a large manifest": (
        "manifest.json is", lambda: packed({"manifest.json": b"[" + b"[]," * 2_000_000 + b"[]]"}, zipfile.ZIP_STORED),
    ),
    "many names": (
        "manifest.json: ",
        lambda: packed({"manifest.json": b'{"format":1,"runs":[' + b"0," * 900_000 + b"0]}"}, zipfile.ZIP_STORED),
    ),
}  # fmt: skip
SAMPLE = ("a deep row",)


@pytest.mark.parametrize("claim", REFUSED if WHOLE else SAMPLE)
def test_hostile_bundles_are_refused(campaign: Campaign, claim: str, tmp_path: Path) -> None:
    why, make = REFUSED[claim]
    (tmp_path / "x.pinscope").write_bytes(make())
    campaign.count("bundles")
    outcome = run_pinscope("import", str(tmp_path / "x.pinscope"), environment=_database(tmp_path), time_limit=SECONDS)
    if (outcome.exit_code, outcome.traceback, outcome.stderr.count("\n")) != (2, False, 1) or why not in outcome.stderr:
        campaign.fail(f"{claim}: {outcome.exit_code} {outcome.stderr[-300:]}")
    if outcome.above_base > ABOVE_BASE:
        campaign.fail(f"{claim}: {outcome.above_base >> 20} MiB over the base")


TAKEN: Mapping[str, Callable[[], bytes]] = {
    "a million real rows": lambda: real_rows("bandwidth", 1_000_000),
    "250,000 rows of a timeline": lambda: real_rows("timeline", 250_000),
    "250,000 holders": lambda: all_different("timeline", 250_000, "pid"),
    "250,000 GPUs": lambda: all_different("timeline", 250_000, "device"),
    "sizes": lambda: all_different("bandwidth", 50_000, "bytes"),
    "large records": lambda: many_runs(1500),
}
REPORTS = ("html", "md", "csv", "json", "parquet")


@whole_only
@pytest.mark.parametrize("claim", TAKEN)
def test_large_bundles_are_taken(campaign: Campaign, claim: str, tmp_path: Path) -> None:
    (tmp_path / "x.pinscope").write_bytes(TAKEN[claim]())
    run_id = "r0" if claim == "large records" else RUN_ID
    commands = [
        ("import", f"{tmp_path}/x.pinscope"), ("runs", "list"), ("runs", "show", run_id),
        ("runs", "show", run_id, "--json"), ("export", run_id, "-o", f"{tmp_path}/again.pinscope"),
        *(("report", run_id, "-o", f"{tmp_path}/report.{suffix}") for suffix in REPORTS),
        ("runs", "delete", run_id, "--yes"),
    ]  # fmt: skip
    for command in commands:
        campaign.count("bundles")
        outcome = run_pinscope(*command, environment=_database(tmp_path), time_limit=SECONDS)
        if outcome.exit_code or outcome.traceback:
            campaign.fail(f"{claim}, {' '.join(command[:2])}: {outcome.exit_code} {outcome.stderr[-300:]}")
        if outcome.above_base > ABOVE_BASE:
            campaign.fail(f"{claim}, {command[:2]}: {outcome.above_base >> 20} MiB over the base")
        print(claim, command[-1][-20:], f"{outcome.seconds:.0f} s, {outcome.above_base >> 20} MiB")  # noqa: T201


def _database(folder: Path) -> dict[str, str]:
    return {"PINSCOPE_DATABASE": f"sqlite:///{folder}/runs.db"}
