"""Recordings that ship with PinScope: members of the lists, and never changed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pinscope.errors import BadInput, StoreFailed
from pinscope.experiments.registry import EXPERIMENTS, readers
from pinscope.store import recordings
from pinscope.store.bundle import read_bundle, render_bundle
from pinscope.store.store import Store
from tests.data.quoted_figures import QUOTED, renewed
from tests.data.recorded import RECORDED, document, forget_recordings, reading
from tests.unit.store.runs import new_rows, new_run

ROOT = Path(__file__).parents[3]
OLD = new_run("rec-old", status="done", lab="cuda", created_at=datetime(2025, 1, 1, tzinfo=UTC))
NEW = new_run("rec-new", status="done", experiment="overlap", created_at=datetime(2025, 2, 1, tzinfo=UTC))


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of recordings in place of the package's."""
    folder = tmp_path / "recordings"
    folder.mkdir()
    (folder / "a.pinscope").write_bytes(render_bundle([(OLD, new_rows(3)), (NEW, new_rows(2))]))
    (folder / "notes.txt").write_text("not a bundle")
    monkeypatch.setattr(recordings, "folder", lambda: folder)
    forget_recordings()
    yield folder
    forget_recordings()


@pytest.fixture
def store(url: str, shipped: Path) -> Iterator[Store]:
    with Store(url) as opened:
        yield opened


def test_recordings_come_last_and_are_marked(store: Store) -> None:
    own = store.add(new_run(created_at=datetime(2024, 1, 1, tzinfo=UTC)))
    assert [(run.id, run.recording) for run in store.runs()] == [(own.id, False), ("rec-new", True), ("rec-old", True)]
    assert [run.id for run in store.runs(recordings=False)] == [own.id]
    assert [run.id for run in store.runs(lab="cuda")] == ["rec-old"]
    assert [run.id for run in store.runs(experiment="overlap", status="done")] == ["rec-new"]


def test_a_recording_opens_like_any_run(store: Store) -> None:
    run = store.run("rec-o")
    assert run == OLD.model_copy(update={"recording": True, "observations": 3})
    assert store.observations("rec-old") == new_rows(3)
    assert store.observations("rec-old", start=2) == new_rows(1, first=2)


def test_a_reader_may_change_what_he_got(store: Store) -> None:
    store.observations("rec-old")[0]["repeat"] = 99
    assert store.observations("rec-old") == new_rows(3)


def test_a_recording_cannot_be_changed(store: Store) -> None:
    for action in (store.delete, store.update, lambda run_id: store.append(run_id, new_rows(1))):
        with pytest.raises(BadInput, match="run rec-old is a recording that ships with PinScope"):
            action("rec-old")


def test_a_recording_that_is_imported_again_is_skipped(store: Store, shipped: Path) -> None:
    assert store.import_runs(read_bundle(shipped / "a.pinscope")).skipped == ("rec-old", "rec-new")
    assert store.runs(recordings=False) == []


def test_a_stored_run_stands_before_the_recording_of_its_id(store: Store) -> None:
    store.add(OLD)
    assert [(run.id, run.recording) for run in store.runs()] == [("rec-old", False), ("rec-new", True)]
    assert not store.run("rec-old").recording
    assert store.observations("rec-old") == []


def test_a_damaged_recording_is_told(store: Store, shipped: Path) -> None:
    (shipped / "b.pinscope").write_bytes(b"PK nothing")
    forget_recordings()
    with pytest.raises(StoreFailed, match=r"a recording that ships with PinScope cannot be read \(b\.pinscope"):
        store.runs()


def test_every_experiment_ships_a_recording_from_a_known_commit() -> None:
    """What is only kept, such as a timeline, may ship one: `pinscope record` makes one anywhere in no time."""
    forget_recordings()
    runs = recordings.recorded_runs()
    recorded = {run.experiment for run in runs}
    runnable = {entry.experiment.name for entry in EXPERIMENTS}
    assert runnable <= recorded <= {reader.kind.name for reader in readers()}
    labs = {entry.experiment.name: entry.experiment.labs for entry in EXPERIMENTS}
    kept = {"timeline": "live", "trace": "traced"}
    for run in runs:
        assert run.environment.pinscope_commit
        assert (run.recording, run.status) == (True, "done")
        on_gpu = "cuda" if labs.get(run.experiment, {}).get("cuda") is None else "host"
        assert run.lab == kept.get(run.experiment, on_gpu)
        assert bool(run.environment.devices) or run.lab == "host"


@pytest.mark.xdist_group("readings")
def test_verdicts_and_the_figures_that_pages_quote_are_what_this_version_reads() -> None:
    """scripts/write-verdicts writes both."""
    readings = {name: reading(name) for name in RECORDED}
    for name, run in RECORDED.items():
        assert len(document(name).rows) == run.observations > 0
        assert run.verdict is not None
        assert run.verdict == readings[name].verdict
    assert len(readings) == len(recordings.recorded_runs())
    quoting = [page for page in (ROOT / "docs").rglob("*.md") if QUOTED.search(page.read_text())]
    assert ROOT / "docs" / "claims.md" in quoting
    for page in quoting:
        assert renewed(page.read_text(), readings) == page.read_text(), page.name
