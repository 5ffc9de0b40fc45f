"""Values of arguments that are named like secrets are masked where runs and observations are stored."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from pinscope.runner.jobs import reconcile
from pinscope.store.bundle import read_bundle, write_bundle
from pinscope.store.documents import storable
from pinscope.store.safe_writer import SafeWriter
from pinscope.store.store import Store
from tests.data import synthetic_trace as trace
from tests.unit.store.runs import parse_bundle

SECRET = "s3cr3t-0f-mine"
PROGRAM = ["train.py", f"--hf-token={SECRET}", "--api-key", SECRET, f"WANDB_API_KEY={SECRET}", "--tokenizer", "t5"]
MASKED = ["train.py", "--hf-token=***", "--api-key", "***", "WANDB_API_KEY=***", "--tokenizer", "t5"]
ROWS = [
    trace.site(3, source_line=f'x = load(token="{SECRET}").cuda()', ranges=f"run --password {SECRET}"),
    trace.place("synchronisation", 4, call="cuStreamSynchronize", count=1, call_seconds=0.1, idle_seconds=0.1),
]


def running(**changes: Any) -> Any:
    """A trace of a program that was given secrets."""
    return trace.run(program=PROGRAM, part=f"TOKEN={SECRET}").model_copy(
        update={"status": "running", "notes": (f"it was started as x --token {SECRET}",), **changes}
    )


def database(store: Store) -> bytes:
    """All that lies on the disk."""
    return b"".join(path.read_bytes() for path in Path(store.name).parent.glob("store.db*"))


def unpacked(bundle: Path) -> bytes:
    """All members of a bundle."""
    with zipfile.ZipFile(bundle) as archive:
        return b"\n".join(archive.read(name) for name in archive.namelist())


def test_the_database_and_a_bundle_of_a_trace_hold_no_secret_and_all_else(store: Store, tmp_path: Path) -> None:
    run = store.add(running())
    store.append(run.id, ROWS)
    store.update(run.id, status="failed", error=f"x --auth {SECRET} ended", verdict=f"TOKEN={SECRET}")
    stored, rows = store.run(run.id), store.observations(run.id)
    assert stored.params["program"] == MASKED
    assert (stored.notes, stored.error) == (("it was started as x --token ***",), "x --auth *** ended")
    assert (rows[0]["source_line"], rows[0]["ranges"]) == ('x = load(token="***").cuda()', "run --password ***")
    assert rows[1] == ROWS[1]
    bundle = tmp_path / "trace.pinscope"
    write_bundle(bundle, [(stored, rows)])
    for held in (database(store), unpacked(bundle)):
        assert b"train.py" in held
        assert SECRET.encode() not in held


def test_what_was_given_to_the_writer_or_a_bundle_itself_is_masked(store: Store, tmp_path: Path) -> None:
    run = running()
    bundle = tmp_path / "direct.pinscope"
    write_bundle(bundle, [(run, ROWS)])
    assert SECRET.encode() not in unpacked(bundle)

    writer = SafeWriter(store, run)  # the store has no such run
    writer.append(ROWS)
    saved = writer.close(status="done")
    assert saved is not None
    assert SECRET not in str(writer.rows)
    assert SECRET not in saved.read_text()
    reconcile(store)
    assert store.run(run.id).params["program"] == MASKED


def test_a_bundle_from_elsewhere_is_masked_when_it_is_read_and_known_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    careless, bundle = tmp_path / "careless.pinscope", tmp_path / "again.pinscope"
    with monkeypatch.context() as patch:  # as another program would write it
        patch.setattr("pinscope.store.bundle.storable", lambda run: run)
        patch.setattr("pinscope.store.bundle.checked", iter)
        write_bundle(careless, [(running(status="done"), ROWS)])
    assert SECRET.encode() in unpacked(careless)
    assert SECRET not in str(parse_bundle(careless.read_bytes(), "careless"))
    added = store.import_runs(read_bundle(careless)).added
    assert SECRET.encode() not in database(store)
    write_bundle(bundle, [(store.run(run_id), store.observations(run_id)) for run_id in added])
    for again in (careless, bundle):
        assert store.import_runs(read_bundle(again)).skipped == added


def test_a_run_that_holds_no_secret_is_stored_as_it_is() -> None:
    run = trace.run(program=["train.py", "--tokenizer", "t5", "--max-tokens=100", "--", "-p", "80"])
    assert storable(run) == run
