"""What a shared store keeps for a fleet: imported rows in blocks, figures beside the runs; and how old runs go."""

from __future__ import annotations

import io
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select

from pinscope.errors import BadInput
from pinscope.experiments.registry import run_figures
from pinscope.records.run import Run
from pinscope.store import documents, tables
from pinscope.store.bundle import BundleReader, render_bundle
from pinscope.store.figures import runs_without_figures, stored_figures
from pinscope.store.packed import pack, unpack
from pinscope.store.recordings import recorded_observations, recorded_run
from pinscope.store.store import Store
from tests.unit.store.runs import new_rows, new_run, parse_bundle

REAL = "20261122-020513-c356c8"
"""A run of pinning_strategy on an H100: 28 rows."""


def real_run(**changes: object) -> Run:
    run = recorded_run(REAL)
    assert run is not None
    figures = run_figures(run, recorded_observations(REAL))
    return run.model_copy(update={"recording": False, "id": "real", "figures": figures, **changes})


def count(store: Store, table: str) -> int:
    with store.reading() as connection:
        return int(connection.scalar(select(func.count()).select_from(tables.METADATA.tables[table])) or 0)


class Lines:
    """Rows as a bundle has them."""

    def __init__(self, *lines: str) -> None:
        self._lines = [line.encode() for line in lines]

    def __len__(self) -> int:
        return len(self._lines)

    def __iter__(self) -> Iterator[documents.StoredRow]:
        return (documents.load_json(line) for line in self._lines)

    def lines(self) -> Iterator[bytes]:
        yield b"".join(line + b"\n" for line in self._lines)

    def deflated(self) -> bytes | None:
        """They are not."""


def test_imported_rows_lie_in_blocks_and_read_as_any_others(store: Store) -> None:
    run, rows = new_run(status="done"), new_rows(2500)
    with BundleReader(io.BytesIO(render_bundle([(run, rows)])), "x") as bundle:
        store.import_runs(bundle.items())
    assert (count(store, "observations"), count(store, "observation_blocks")) == (0, 3)
    kept = store.observations(run.id)
    assert list(kept) == rows
    assert [kept[0], kept[-1], *kept[998:1003]] == [rows[0], rows[-1], *rows[998:1003]]
    assert b"\n".join(kept.lines()).count(b"\n") == 2499  # type: ignore[attr-defined]
    assert parse_bundle(render_bundle([(run, kept)]), "x")[0][1] == rows


def test_rows_that_come_after_an_import_stand_behind_the_blocks(store: Store) -> None:
    run, rows = new_run(status="interrupted"), new_rows(1500)
    store.import_runs([(run, rows[:1200])])
    store.import_runs([(run.model_copy(update={"status": "done"}), rows)])
    assert list(store.observations(run.id)) == rows
    assert list(store.observations(run.id, 1100)) == rows[1100:]


PLAIN = '{"repeat":0,"warmup":false,"note":"a","seconds":1.5}'
ONE_BY_ONE = {
    "a secret": (PLAIN, '{"repeat":1,"warmup":false,"note":"--password=sesame","seconds":1.5}'),
    "an escape": (PLAIN, '{"repeat":1,"warmup":false,"note":"caf\\u00e9","seconds":1.5}'),
}
REFUSED = {
    "no repeat": (PLAIN, '{"warmup":false}'),
    "no number": (PLAIN, '{"repeat":1,"warmup":false,"seconds":1e999}'),
    "too long a number": (PLAIN, '{"repeat":1,"warmup":false,"seconds":100000000000000000000}'),
    "not flat": (PLAIN, '{"repeat":1,"warmup":false,"seconds":{"a":1}}'),
    "a list": (PLAIN, '{"repeat":1,"warmup":false,"seconds":[1]}'),
    "a truth value": (PLAIN, '{"repeat":true,"warmup":false}'),
    "no JSON": (PLAIN, '{"repeat":01,"warmup":false,"note":"a","seconds":1.5}'),
}


def test_rows_that_are_not_plain_are_looked_at_one_by_one(store: Store) -> None:
    for name, lines in ONE_BY_ONE.items():
        run = new_run(status="done")
        store.import_runs([(run, Lines(*lines))])
        assert "sesame" not in str(list(store.observations(run.id))), name
    for name, lines in REFUSED.items():
        bad = [(new_run(name.replace(" ", "-"), status="done"), Lines(*lines))]
        with pytest.raises(BadInput):
            store.import_runs(bad)
    assert count(store, "runs") == len(ONE_BY_ONE)


def test_plain_rows_are_kept_as_they_came() -> None:
    written = PLAIN.replace("1.5", "-1.50e-07")
    (block,) = pack(Lines(written, written))
    assert unpack(block["content"], block["characters"]).decode().split("\n") == [written, written]


class MoreThanSaid(Lines):
    """A row more than the run says, which comes after all that it says."""

    def __len__(self) -> int:
        return super().__len__() - 1

    def lines(self) -> Iterator[bytes]:
        yield from (line + b"\n" for line in self._lines)

    def deflated(self) -> bytes:
        return b"of all"


def test_a_row_that_comes_after_all_that_the_run_says_is_refused() -> None:
    with pytest.raises(BadInput, match="should be 1"):
        list(pack(MoreThanSaid(PLAIN, PLAIN)))


def test_of_plain_rows_of_a_bundle_none_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    run, rows = new_run(status="done"), recorded_observations(REAL)
    with BundleReader(io.BytesIO(render_bundle([(run, rows)])), "x") as bundle:
        ((_, packed),) = bundle.items()
        monkeypatch.setattr(bundle, "each_row", None)
        (block,) = pack(packed)
    assert block["rows"] == len(rows)
    assert [documents.load_json(line) for line in unpack(block["content"], block["characters"]).split(b"\n")] == rows
    for damaged in (block["content"][:-50], block["content"][::-1]):
        with pytest.raises(ValueError, match=r"cut short|decompress"):
            unpack(damaged, block["characters"])


def test_figures_of_a_run_lie_beside_it_and_go_with_it(store: Store) -> None:
    run = real_run(tags=("rack=r7",))
    store.import_runs([(run, [])])
    assert store.run("real").figures is None  # lists do not carry them
    (row,) = stored_figures(store, "pinning_strategy", "cuda", 3)[0]
    assert (row.run_id, row.host, row.tags, len(row.content)) == ("real", "h100", "rack=r7", 4 * 60)
    store.update("real", tags=["rack=r8"])
    assert stored_figures(store, "pinning_strategy", "cuda", 3)[0][0].tags == "rack=r8"
    store.delete("real")
    assert not stored_figures(store, "pinning_strategy", "cuda", 3)[0]


def test_a_run_that_ends_keeps_its_figures_and_one_without_is_told(store: Store) -> None:
    run = real_run(status="running", figures=None)
    store.add(run)
    store.update("real", status="done", figures=real_run().figures)
    store.add(real_run(id="older", status="done", figures=None))
    assert [row.run_id for row in stored_figures(store, "pinning_strategy", "cuda", 3)[0]] == ["real"]
    assert runs_without_figures(store, "pinning_strategy", "cuda") == ["older"]


def test_of_each_gpu_the_newest_runs_are_read(store: Store) -> None:
    begun = real_run().created_at
    runs = [real_run(id=f"run-{number}", created_at=begun + timedelta(hours=number)) for number in range(5)]
    store.import_runs([(run, []) for run in runs])
    rows, texts = stored_figures(store, "pinning_strategy", "cuda", 2)
    assert [row.run_id for row in rows] == ["run-4", "run-3"]
    assert len(texts) == 2  # names and surroundings, once for all


def test_runs_that_are_too_old_go_but_for_those_that_run_or_are_starred(store: Store) -> None:
    old = datetime(2026, 1, 1, tzinfo=UTC)
    store.import_runs(
        [
            (new_run("gone", status="done", created_at=old), new_rows(2)),
            (new_run("starred", status="done", created_at=old, baseline=True), []),
            (new_run("young", status="done"), new_rows(1)),
        ]
    )
    store.add(new_run("going", created_at=old))
    ids = store.older_than(old + timedelta(days=1))
    assert ids == ["gone"]
    assert store.delete_many([*ids, "going"]) == 1
    assert {run.id for run in store.runs(recordings=False)} == {"starred", "young", "going"}
    assert count(store, "observation_blocks") == 1
