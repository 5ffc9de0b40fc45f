"""What the store promises, whatever database stands behind it (see the fixture ``url``)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from pinscope.errors import BadInput, InvalidParameter, StoreFailed, UnknownName
from pinscope.records.labels import LABELS
from pinscope.records.run import Progress
from pinscope.store import rows as rows_module
from pinscope.store.bundle import render_bundle
from pinscope.store.documents import checked_labels
from pinscope.store.figures import experiments_with_figures, runs_without_figures, stored_figures
from pinscope.store.store import Store
from tests.unit.store.runs import in_another_process, new_rows, new_run, parse_bundle, repeats


def raw(url: str, statement: str, **values: str) -> None:
    """Change the database behind the store's back."""
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.begin() as connection:
            connection.execute(text(statement), values)
    finally:
        engine.dispose()


# Runs


@pytest.fixture
def labelled(store: Store) -> Store:
    """Five runs, the last one first: e, d of overlap, c, b, a."""
    store.add(new_run("a-first", name="slow host", note="BIOS 2.1", status="done"))
    store.add(new_run("b-second", name="twice", tags=["x", "driver-575"], baseline=True))
    store.add(new_run("c-third", name="twice", tags=["x"], verdict="Pinned is faster."))
    store.add(new_run("d-fourth", experiment="overlap"))
    store.add(new_run("e-fifth", name="latest"))
    return store


def test_a_word_or_a_name_stands_for_a_run(labelled: Store) -> None:
    for word, meant in [
        ("latest", "e-fifth"), ("@", "e-fifth"), ("@-1", "d-fourth"), ("@-4", "a-first"),
        ("latest:overlap", "d-fourth"), ("@-1:bandwidth", "c-third"), ("baseline", "b-second"),
        ("baseline:bandwidth", "b-second"), ("slow host", "a-first"), ("c", "c-third"),
    ]:  # fmt: skip
        assert labelled.run(word).id == meant


def test_a_word_that_fits_no_run_is_refused_as_an_id_is(labelled: Store) -> None:
    for word in ["@-5", "@1", "latest:scatter", "baseline:overlap", "slow", "@-1:"]:
        with pytest.raises(UnknownName, match=f"no run '{word}'"):
            labelled.run(word)


def test_a_name_that_two_runs_have_is_refused_with_their_ids(labelled: Store) -> None:
    with pytest.raises(UnknownName, match="2 runs are called 'twice': c-third, b-second; write an id"):
        labelled.run("twice")


def test_runs_are_chosen_by_what_their_user_wrote_on_them(labelled: Store) -> None:
    for wanted, fitting in [
        ({"tags": ["x"]}, "cb"), ({"tags": ["x", "driver-575"]}, "b"), ({"search": "FASTER twice"}, "c"),
        ({"search": "bios"}, "a"), ({"search": "faster bios"}, ""), ({"baseline": True}, "b"),
        ({"experiment": "overlap", "tags": []}, "d"), ({"host": "elsewhere"}, ""),
        ({"host": new_run().environment.host, "status": "done"}, "a"),
    ]:  # fmt: skip
        assert [run.id[0] for run in labelled.runs(recordings=False, **wanted)] == list(fitting)


def test_a_label_that_could_not_be_written_is_refused() -> None:
    for label, complaint in [
        ({"name": " "}, "name: a name has 1 to 80"), ({"name": "x" * 81}, "name: a name has"),
        ({"name": "a\x1bb"}, "name: a name has"), ({"tags": ["a b"]}, "tags.0: a tag has 1 to 40"),
        ({"tags": ["a,b"]}, "no blank, comma or #"), ({"tags": ["x"] * 21}, "tags"),
        ({"note": ""}, "note: a note has"),
    ]:  # fmt: skip
        with pytest.raises(InvalidParameter, match=complaint):
            checked_labels(**label)
        assert checked_labels(name=" a   b ", tags=("x",)) == {"name": "a b", "tags": ("x",)}


def test_labels_are_the_user_s_and_stay_when_the_run_goes_on_or_comes_again(store: Store, tmp_path: Path) -> None:
    run = store.add(new_run(name="given"))
    store.append(run.id, new_rows(2))
    store.update(run.id, name="mine", tags=["kept"], baseline=True)
    store.restore(run.model_copy(update={"status": "interrupted"}), new_rows(3))
    store.import_runs([(run.model_copy(update={"status": "done", "note": "theirs"}), new_rows(5))])
    kept = store.run(run.id)
    assert (kept.name, kept.tags, kept.note, kept.baseline) == ("mine", ("kept",), None, True)
    assert (kept.status, kept.observations) == ("done", 5)
    with Store(f"sqlite:///{tmp_path / 'elsewhere.db'}") as elsewhere:
        elsewhere.import_runs(parse_bundle(exported(store, run.id), "x"))
        assert elsewhere.run("mine") == kept
        assert elsewhere.import_runs([(run.model_copy(update={"status": "done"}), new_rows(5))]).skipped == (run.id,)


def test_a_run_comes_back_as_it_was_stored(store: Store) -> None:
    run = new_run(notes=("left out: 4 TiB",), progress=Progress(fraction=0.25, message="warm-up"))
    store.add(run)
    assert store.run(run.id) == run
    with pytest.raises(BadInput, match="in the database already"):
        store.add(run)


def test_an_id_that_could_not_name_a_file_is_refused(store: Store) -> None:
    for run_id in ("", "../x", "a b", ".hidden", "x" * 101, "é", "a\n"):
        with pytest.raises(InvalidParameter, match="cannot be a run's id"):
            store.add(new_run().model_copy(update={"id": run_id}))


def test_a_run_is_found_by_a_beginning_that_only_it_has(store: Store) -> None:
    for run_id in ("20250101-aa", "20250102-bb", "20250102-bc", "20250102-bcd"):
        store.add(new_run(run_id))
    assert store.run("20250101").id == "20250101-aa"
    assert store.run("20250102-bc").id == "20250102-bc"
    with pytest.raises(UnknownName, match=r"3 runs begin with .*: 20250102-bb, 20250102-bc, 20250102-bcd"):
        store.run("20250102")


def test_an_unknown_run_is_named(store: Store) -> None:
    store.add(new_run("run-x"))
    for name in ("", "nothing", "%", "_", "RUN", "\udc80", "run-x\0", "é" * 300):
        with pytest.raises(UnknownName, match=f"no run '{name if name.isascii() and name.isprintable() else ''}"):
            store.run(name)


def test_runs_are_listed_newest_first_and_by_what_they_are(store: Store) -> None:
    now = datetime.now(UTC)
    old = store.add(new_run(created_at=now - timedelta(days=3), experiment="overlap", status="done"))
    new = store.add(new_run(created_at=now + timedelta(days=3), lab="cuda"))
    middle = store.add(new_run(created_at=now, status="failed"))
    every = store.runs(recordings=False)
    assert [run.id for run in every] == [new.id, middle.id, old.id]
    assert store.runs(experiment="overlap", recordings=False) == [old]
    assert store.runs(lab="host", recordings=False) == [middle, old]
    assert store.runs(lab="host", status="failed", recordings=False) == [middle]
    assert store.runs(experiment="nothing", recordings=False) == []
    assert store.unfinished() == [new]


def test_times_of_other_zones_sort_by_the_moment_they_mean(store: Store) -> None:
    later = store.add(new_run(created_at=datetime.fromisoformat("2025-06-01T10:00:00-05:00")))
    earlier = store.add(new_run(created_at=datetime.fromisoformat("2025-06-01T14:00:00+02:00")))
    assert [run.id for run in store.runs(recordings=False)] == [later.id, earlier.id]
    assert store.run(later.id).created_at == later.created_at


# Changes


def test_an_update_changes_what_it_names_and_no_more(store: Store) -> None:
    run = store.add(new_run())
    changed = store.update(run.id, notes=("one",), progress=Progress(fraction=0.5, waiting_for="run x"))
    assert changed == store.run(run.id)
    assert changed == run.model_copy(update={"notes": ("one",), "progress": changed.progress})
    assert changed.progress.waiting_for == "run x"


def test_an_update_that_makes_no_sense_changes_nothing(store: Store) -> None:
    run = store.add(new_run())
    senseless: list[dict[str, Any]] = [{"status": "fine"}, {"quick": []}]
    for changes in senseless:
        with pytest.raises(InvalidParameter):
            store.update(run.id, error="nothing of this", **changes)
        assert store.run(run.id) == run


def test_a_run_ends_once(store: Store) -> None:
    run = store.add(new_run())
    ended = datetime.now(UTC)
    store.update(run.id, status="cancelled", finished_at=ended)
    late = store.update(
        run.id, status="done", finished_at=ended + timedelta(seconds=5), progress=Progress(fraction=1), notes=("late",)
    )
    assert (late.status, late.finished_at, late.progress.fraction) == ("cancelled", ended, 0)
    assert late.notes == ("late",)


def test_what_two_processes_write_to_one_run_at_once_is_all_there(store: Store, url: str) -> None:
    run = store.add(new_run())
    child = in_another_process(
        url,
        f"""
        print("ready", flush=True)
        for number in range(1, 41):
            store.update({run.id!r}, progress=Progress(fraction=number / 40, message="measuring"))
        """,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    for number in range(20):
        store.update(run.id, notes=(f"note {number}",))
    store.update(run.id, status="cancelled")
    assert child.wait() == 0
    child.stdout.close()
    stored = store.run(run.id)
    assert (stored.status, stored.notes, stored.progress.fraction) == ("cancelled", ("note 19",), 1.0)


# Observations


def test_observations_come_back_in_order_and_bit_by_bit(store: Store) -> None:
    run = store.add(new_run())
    numbers = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, 2**53 + 1, -(2**63)]
    values = [*numbers, "µs \U0001f4cc", "", "\x00", None, True]
    rows = [{"repeat": number, "warmup": False, "value": value} for number, value in enumerate(values)]
    store.append(run.id, rows[:5])
    store.append(run.id, rows[5:])
    assert [repr(row) for row in store.observations(run.id)] == [repr(row) for row in rows]


def test_the_json_of_observations_comes_in_their_order_batch_by_batch(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "LINES", 4)
    run, rows = store.add(new_run()), new_rows(10)
    store.append(run.id, rows)
    batches = [text.splitlines() for text in store.observations(run.id).lines()]
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert [json.loads(line) for batch in batches for line in batch] == rows


def test_appending_counts(store: Store) -> None:
    run = store.add(new_run())
    assert store.append(run.id, new_rows(3)) == 3
    assert store.append(run.id, []) == 3
    assert store.append(run.id, new_rows(2, first=3)) == 5
    assert store.run(run.id).observations == 5
    assert repeats(store.observations(run.id)) == [0, 1, 2, 3, 4]
    assert repeats(store.observations(run.id, start=3)) == [3, 4]
    assert store.observations(run.id, start=9) == []


NO_OBSERVATIONS: tuple[tuple[Any, str], ...] = (
    ({"warmup": False}, "repeat"),
    ({"repeat": True, "warmup": False}, "repeat"),
    ({"repeat": 0}, "warmup"),
    *(
        ({"repeat": 0, "warmup": False, "x": value}, f"x: {why}")
        for value, why in ((float("nan"), "nan"), ([1], "a list"), (2**63, "the number"), ("\udcff", "the text"))
    ),
    ({"repeat": 0, "warmup": False, 1: 2}, "1 cannot be a label"),
    ("row", "a str is no observation"),
)


def test_a_row_that_is_no_observation_is_refused_with_all_that_came_with_it(store: Store) -> None:
    run = store.add(new_run())
    for row, complaint in NO_OBSERVATIONS:
        with pytest.raises(InvalidParameter, match=f"observation 2: {complaint}"):
            store.append(run.id, [*new_rows(2), row])
    assert store.observations(run.id) == []
    assert store.run(run.id).observations == 0


def test_a_repeated_append_adds_nothing_twice(store: Store) -> None:
    run = store.add(new_run())
    store.append(run.id, new_rows(3), start=0)
    assert store.append(run.id, new_rows(5), start=0) == 5
    assert store.append(run.id, new_rows(2, first=1), start=1) == 5
    assert repeats(store.observations(run.id)) == [0, 1, 2, 3, 4]
    with pytest.raises(BadInput, match="has 5 observations; none can be number 7"):
        store.append(run.id, new_rows(1), start=7)


def test_an_append_that_fails_halfway_leaves_nothing(store: Store, url: str) -> None:
    run = store.add(new_run())
    store.append(run.id, new_rows(2))
    # Row 5 exists already, so the third row of the next append cannot be stored.
    raw(url, "INSERT INTO observations (run_id, sequence, row) VALUES (:id, 4, '{}')", id=run.id)
    with pytest.raises(StoreFailed):
        store.append(run.id, new_rows(4, first=2))
    raw(url, "DELETE FROM observations WHERE sequence = 4")
    assert store.run(run.id).observations == 2
    assert repeats(store.observations(run.id)) == [0, 1]


def test_two_processes_that_append_to_one_run_lose_nothing(store: Store, url: str) -> None:
    run = store.add(new_run())
    program = f"""
        import sys
        print("ready", flush=True)
        for number in range(30):
            store.append({run.id!r}, [{{"repeat": number, "warmup": False}}] * 2)
    """
    children = [in_another_process(url, program) for _ in range(2)]
    for number in range(30):
        store.append(run.id, [{"repeat": number, "warmup": True}])
    for child in children:
        child.communicate()
        assert child.returncode == 0
    stored = store.observations(run.id)
    assert len(stored) == store.run(run.id).observations == 150
    assert [row["repeat"] for row in stored if row["warmup"]] == list(range(30))
    assert sorted(row["repeat"] for row in stored if not row["warmup"]) == sorted(list(range(30)) * 4)


def test_a_reader_does_not_wait_for_a_writer(store: Store, url: str) -> None:
    run = store.add(new_run())
    with Store(url) as other, other.writing() as connection:
        connection.execute(text("UPDATE runs SET status = 'failed'"))
        assert store.run(run.id).status == "running"
        assert [kept.status for kept in store.runs(recordings=False)] == ["running"]
    assert store.run(run.id).status == "failed"


# Deleting


def test_a_deleted_run_takes_its_observations_along(store: Store) -> None:
    run, other = store.add(new_run(status="done")), store.add(new_run())
    store.append(run.id, new_rows(3))
    store.append(other.id, new_rows(2))
    store.delete(run.id)
    assert store.runs(recordings=False) == [store.run(other.id)]
    with pytest.raises(UnknownName):
        store.observations(run.id)
    assert len(store.observations(other.id)) == 2


def test_a_running_run_is_not_deleted(store: Store) -> None:
    run = store.add(new_run())
    with pytest.raises(BadInput, match="still running"):
        store.delete(run.id)
    assert store.run(run.id) == run


def test_an_id_must_be_whole_where_something_hangs_on_it(store: Store) -> None:
    store.add(new_run("abc", status="done"))
    for action in (store.update, lambda run_id: store.append(run_id, []), store.delete, store.observations):
        with pytest.raises(UnknownName, match="no run 'ab'"):
            action("ab")


# Import


def exported(store: Store, *run_ids: str) -> bytes:
    return render_bundle([(store.run(run_id), store.observations(run_id)) for run_id in run_ids])


def test_runs_come_through_export_and_import_unchanged(store: Store, tmp_path: Path) -> None:
    runs = [store.add(new_run(status="done", notes=("µ",))), store.add(new_run(status="failed", error="broke"))]
    store.append(runs[0].id, new_rows(50))
    bundle = exported(store, *(run.id for run in runs))
    with Store(f"sqlite:///{tmp_path / 'elsewhere.db'}") as elsewhere:
        done = elsewhere.import_runs(parse_bundle(bundle, "x"))
        assert done.added == tuple(run.id for run in runs)
        for run in runs:
            assert elsewhere.run(run.id) == store.run(run.id)
            assert elsewhere.observations(run.id) == store.observations(run.id)


@pytest.mark.parametrize(
    ("here", "comes", "outcome"),
    [
        (("done", 3), ("done", 3), "skipped"),
        (("interrupted", 2), ("done", 5), "completed"),
        (("cancelled", 2), ("done", 5), "completed"),
        (("running", 2), ("running", 2), "skipped"),
        (("done", 5), ("running", 2), "skipped"),  # exported while it ran
        (("done", 3), ("done", 5), "refused"),
        (("interrupted", 3), ("done", 2), "refused"),
    ],
)
def test_what_becomes_of_a_run_that_is_here_already(
    store: Store, here: tuple[str, int], comes: tuple[str, int], outcome: str
) -> None:
    run = store.add(new_run(verdict="It is fast."))
    store.append(run.id, new_rows(here[1]))
    kept = store.update(run.id, status=here[0])
    incoming = run.model_copy(update={"status": comes[0], "verdict": "It is fast: 55 GB/s."})  # of another version
    if outcome == "refused":
        with pytest.raises(BadInput, match=f"a different run {run.id}"):
            store.import_runs([(new_run(), new_rows(1)), (incoming, new_rows(comes[1]))])
        assert [other.id for other in store.runs(recordings=False)] == [run.id]
    else:
        assert getattr(store.import_runs([(incoming, new_rows(comes[1]))]), outcome) == (run.id,)
    is_new = outcome == "completed"
    assert store.observations(run.id) == new_rows(comes[1] if is_new else here[1])
    # A run ends once.
    assert store.run(run.id).status == ("done" if is_new and here[0] == "interrupted" else here[0])
    assert store.run(run.id).verdict == (incoming if is_new else kept).verdict
    if is_new:
        assert store.import_runs([(incoming, new_rows(comes[1]))]).skipped == (run.id,)


@pytest.mark.parametrize(("difference", "status"), [("rows", "interrupted"), ("run", "done")])
def test_a_different_run_of_the_same_id_stops_the_whole_import(store: Store, difference: str, status: str) -> None:
    run = store.add(new_run(status=status))
    store.append(run.id, new_rows(3))
    other = (run, new_rows(5, first=1)) if difference == "rows" else (new_run(run.id, status="done"), new_rows(3))
    with pytest.raises(BadInput, match=f"a different run {run.id}"):
        store.import_runs([(new_run(status="done"), new_rows(1)), other])
    assert [kept.id for kept in store.runs(recordings=False)] == [run.id]
    assert store.observations(run.id) == new_rows(3)


def test_a_run_exported_while_it_ran_arrives_as_interrupted(store: Store) -> None:
    run = new_run()
    store.import_runs([(run, new_rows(2))])
    stored = store.run(run.id)
    assert (stored.status, stored.process, stored.observations) == ("interrupted", None, 2)
    assert "still running when it was exported" in stored.notes[-1]
    assert store.import_runs([(run, new_rows(2))]).skipped == (run.id,)


# The database itself


def test_many_processes_may_open_a_new_database_at_once(url: str) -> None:
    children = [in_another_process(url, f"store.runs(); print({number})") for number in range(3)]
    outputs = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0] * 3
    assert outputs == [f"{number}\n" for number in range(3)]


NEW_IN_4 = ("observation_blocks", "figures", "shared_texts")


def test_an_older_schema_is_read_as_it_is_and_writing_brings_it_up_to_date_with_its_runs(url: str) -> None:
    with Store(url) as store:
        old = store.add(new_run(verdict="It is fast."))
        store.append(old.id, new_rows(3))
        document = old.model_dump(mode="json", exclude={"status", "progress", "observations", "recording"})
    for field in (*LABELS, "figure"):
        del document[field]
    raw(url, "UPDATE runs SET document = :document", document=json.dumps(document))
    for table in NEW_IN_4:
        raw(url, f"DROP TABLE {table}")
    raw(url, "UPDATE meta SET schema_version = 3")
    with Store(url) as store:
        assert store.run(old.id) == old.model_copy(update={"observations": 3})
        assert store.observations(old.id) == new_rows(3)
        assert list(experiments_with_figures(store)) == runs_without_figures(store, "bandwidth", "host") == []
        assert stored_figures(store, "bandwidth", "host", 3)[0] == []
        with pytest.raises(DBAPIError):
            raw(url, "SELECT * FROM figures")
        store.update(old.id, name="before", tags=["bios-2"], baseline=True)
        raw(url, "SELECT * FROM figures")
    with Store(url) as store:
        assert (store.run("before").tags, store.run("baseline").name) == (("bios-2",), "before")
        assert store.observations(old.id) == new_rows(3)


def test_a_newer_schema_is_refused_with_both_versions(url: str) -> None:
    Store(url).close()
    raw(url, "UPDATE meta SET schema_version = 5")
    with pytest.raises(BadInput, match=r"has schema version 5; PinScope \S+ reads up to 4: install a newer"):
        Store(url)


@pytest.mark.parametrize(
    "statement", ["DELETE FROM meta", "DROP TABLE observations", "ALTER TABLE meta ADD COLUMN more INTEGER"]
)
def test_somebody_elses_tables_are_refused_and_left_alone(url: str, statement: str) -> None:
    Store(url).close()
    raw(url, statement)
    for _ in range(2):
        with pytest.raises(StoreFailed, match="is not a PinScope database"):
            Store(url)
