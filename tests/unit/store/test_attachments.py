"""Attachments: tables of events that a run carries, written, read, exported, imported and deleted part by part."""

from __future__ import annotations

import io
import json
import signal
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pinscope.errors import BadBundle, BadInput, InvalidParameter, StoreFailed
from pinscope.records.base import PART_BYTES, PART_COLUMNS, PART_ROWS
from pinscope.records.run import Run
from pinscope.store.attachments import read_part
from pinscope.store.bundle import BundleReader, open_bundle, render_bundle, write_bundle
from pinscope.store.store import Store
from tests.data.events import SCHEMA, events
from tests.unit.store.runs import in_another_process, new_rows, new_run


def run_with_events(store: Store, count: int, **changes: Any) -> Run:
    """A run that carries so many events as ``copies``, and three observations."""
    run = store.add(new_run(**changes))
    store.append(run.id, new_rows(3))
    with store.attach(run.id, "copies", SCHEMA) as writer:
        for first in range(0, count, 50_000):
            writer.write(events(first, min(50_000, count - first)))
    return store.run(run.id)


def read(store: Store, run_id: str) -> pa.Table:
    """The whole table ``copies``."""
    return pa.concat_tables([piece.cast(SCHEMA) for piece in store.attached(store.run(run_id)).tables("copies")])


def parquet(table: pa.Table, **options: Any) -> bytes:
    """A Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"compression": "none", "store_schema": False, **options})
    return bytes(sink.getvalue().to_pybytes())


def bundle_of(run: Run, *parts: bytes, rows: int) -> io.BytesIO:
    """A bundle whose attachment has other content than PinScope would write."""
    attachment = {"name": "copies", "rows": rows, "parts": len(parts), "bytes": sum(map(len, parts))}
    carrying = type(run).model_validate({**dict(run), "attachments": [attachment], "observations": 0})
    return io.BytesIO(render_bundle([(carrying, [])], lambda *_: iter(parts)))


def test_events_come_back_as_they_were_written(store: Store) -> None:
    run = run_with_events(store, PART_ROWS + 1000)
    (attachment,) = run.attachments
    assert (attachment.name, attachment.rows, attachment.parts) == ("copies", PART_ROWS + 1000, 2)
    assert run.format == 2
    assert read(store, run.id).equals(pa.Table.from_batches([events(0, PART_ROWS + 1000)]))
    attached = store.attached(run)
    assert attached.rows == {"copies": PART_ROWS + 1000}
    assert [len(table) for table in attached.tables("copies", lambda number: number == 1)] == [1000]
    assert not list(attached.tables("kernels"))


def test_events_are_there_while_the_run_goes_on(store: Store) -> None:
    run = store.add(new_run())
    with store.attach(run.id, "copies", SCHEMA) as writer:
        assert store.run(run.id).attachments == ()
        writer.write(events(0, 10))
        writer.flush()
        store.update(run.id, notes=("changed meanwhile",))
        writer.write(events(10, 5))
    assert read(store, run.id).equals(pa.Table.from_batches([events(0, 15)]))
    assert store.run(run.id).notes == ("changed meanwhile",)


def test_a_table_without_events_has_its_columns_and_a_part_that_is_stored_twice_is_there_once(store: Store) -> None:
    run = run_with_events(store, 0)
    (part,) = store.parts(run, run.attachments[0])
    assert read_part(part).cast(SCHEMA).num_rows == run.attachments[0].rows == 0
    store._append_part(run.id, "copies", 0, part, 10)
    assert store.run(run.id).attachments == run.attachments


def test_an_attachment_has_a_name_of_its_own(store: Store) -> None:
    run = run_with_events(store, 10)
    with pytest.raises(BadInput, match="has an attachment 'copies' already"):
        store.attach(run.id, "copies", SCHEMA)


def test_deleting_a_run_deletes_its_events(store: Store) -> None:
    run = run_with_events(store, 10, status="done")
    store.delete(run.id)
    with store.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM attachments").scalar() == 0
    with pytest.raises(StoreFailed, match="part 0 of copies"):
        list(store.parts(run, run.attachments[0]))


def test_events_travel_in_a_bundle_and_any_parquet_reader_opens_them(store: Store, tmp_path: Path) -> None:
    run = run_with_events(store, PART_ROWS + 10, status="done")
    bundle = tmp_path / "run.pinscope"
    write_bundle(bundle, [(run, store.observations(run.id))], store.parts)
    with zipfile.ZipFile(bundle) as archive:
        assert json.loads(archive.read("manifest.json"))["format"] == 2
        archive.extractall(tmp_path / "open")
    table = pq.read_table(tmp_path / "open" / "runs" / run.id / "attachments" / "copies")
    assert table.cast(SCHEMA).equals(pa.Table.from_batches([events(0, PART_ROWS + 10)]))
    with Store(f"sqlite:///{tmp_path}/other.db") as other, open_bundle(bundle) as opened:
        assert other.import_runs(opened.items(), opened.parts).added == (run.id,)
        assert other.run(run.id) == run
        assert read(other, run.id).equals(read(store, run.id))
        assert other.import_runs(opened.items(), opened.parts).skipped == (run.id,)


def test_a_bundle_with_more_events_completes_a_run_that_was_interrupted(store: Store, tmp_path: Path) -> None:
    run = run_with_events(store, 10, status="done")
    bundle = render_bundle([(run, store.observations(run.id))], store.parts)
    with Store(f"sqlite:///{tmp_path}/other.db") as other:
        other.add(run.model_copy(update={"status": "interrupted", "attachments": ()}))
        with BundleReader(io.BytesIO(bundle), "b") as opened:
            assert other.import_runs(opened.items(), opened.parts).completed == (run.id,)
        assert read(other, run.id).equals(read(store, run.id))


def test_a_run_of_the_same_id_with_other_events_is_a_different_run(store: Store) -> None:
    run = run_with_events(store, 10, status="done")
    changed = parquet(pa.Table.from_batches([events(5, 10)]))
    with BundleReader(bundle_of(run, changed, rows=10), "b") as opened, pytest.raises(BadInput, match="different run"):
        store.import_runs(opened.items(), opened.parts)


def test_a_writer_that_is_killed_leaves_what_it_stored(url: str, store: Store) -> None:
    run = store.add(new_run())
    program = f"""
        from tests.data.events import SCHEMA, events
        writer = store.attach({run.id!r}, "copies", SCHEMA)
        for first in range(0, 10**9, 1000):
            writer.write(events(first, 1000))
            writer.flush()
            print(first, flush=True)
    """
    child = in_another_process(url, program)
    assert child.stdout is not None
    said = [int(child.stdout.readline()) for _ in range(5)][-1]
    child.send_signal(signal.SIGKILL)
    child.communicate()
    rows = store.run(run.id).attachments[0].rows
    assert rows >= said + 1000
    assert read(store, run.id).equals(pa.Table.from_batches([events(0, rows)]))


# Parts from elsewhere


FOREIGN: dict[str, tuple[Callable[[], bytes], str]] = {
    "lists": (lambda: parquet(pa.table({"a": [[1]]})), "not flat"),
    "a compressed page of zeros": (
        lambda: parquet(pa.table({"a": pa.array([0.0] * PART_ROWS)}), compression="zstd", use_dictionary=False),
        "compressed",
    ),
    "too many rows": (lambda: parquet(pa.table({"a": pa.array([1] * (PART_ROWS + 1))})), "rows; a part"),
    "too many columns": (
        lambda: parquet(pa.table({str(number): [1] for number in range(PART_COLUMNS + 1)})),
        "columns; an attachment",
    ),
    "text of which each value repeats the one before": (
        lambda: parquet(
            pa.table({"a": ["x" * 10_000] * 1000}), use_dictionary=False, column_encoding={"a": "DELTA_BYTE_ARRAY"}
        ),
        "cannot be read",
    ),
    "a schema of Arrow's own": (lambda: parquet(pa.table({"a": [1]}), store_schema=True), "not a part"),
    "row groups of one row": (lambda: parquet(pa.table({"a": list(range(100))}), row_group_size=1), "not a part"),
    "bytes that are no text": (lambda: parquet(pa.table({"a": [b"\xff"]})), "of type"),
    "no Parquet": (lambda: b"PAR1 no", "cannot be read"),
    "nothing": (lambda: b"", "cannot be read"),
}


def test_a_part_that_pinscope_would_not_write_is_refused() -> None:
    for make, why in FOREIGN.values():
        part = make()
        with pytest.raises(InvalidParameter, match=why):
            read_part(part)
        with (
            BundleReader(bundle_of(new_run(status="done"), part, rows=1), "hostile") as opened,
            pytest.raises(BadBundle, match="a part of copies"),
        ):
            opened.check()


def test_a_part_of_many_equal_texts_takes_the_memory_of_one() -> None:
    text = pa.DictionaryArray.from_arrays(pa.array([0] * PART_ROWS, pa.int32()), pa.array(["x" * 2**20]))
    part = parquet(pa.table({"a": text}))
    before = pa.total_allocated_bytes()
    table = read_part(part)
    assert table.num_rows == PART_ROWS
    assert pa.total_allocated_bytes() - before < 8 * 2**20


def test_a_part_that_is_too_large_is_not_opened() -> None:
    with pytest.raises(InvalidParameter, match="are allowed"):
        read_part(b"PAR1" * (PART_BYTES // 4 + 1))


@pytest.mark.parametrize("rows", [9, 11])
def test_a_bundle_whose_events_are_not_as_many_as_it_says_is_refused(rows: int) -> None:
    part = parquet(pa.Table.from_batches([events(0, 10)]))
    with BundleReader(bundle_of(new_run(), part, rows=rows), "b") as opened, pytest.raises(BadBundle, match="as long"):
        opened.check()
