"""Files that name nobody: planted names, hosts, folders and arguments are in no byte of any of them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pinscope.cli.main import main
from pinscope.records.run import Process, Run, parse_run
from pinscope.report.facts import open_document
from pinscope.report.write import SUFFIXES
from pinscope.store.anonymous import SUFFIX, AnonymousStore, Pseudonyms
from pinscope.store.attachments import read_part
from pinscope.store.bundle import open_bundle, read_bundle
from pinscope.store.documents import StoredRow
from pinscope.store.store import Store
from pinscope.tracing.trace.answer import LINES
from tests.data import synthetic, synthetic_timeline
from tests.data import synthetic_trace as trace
from tests.data.synthetic_snapshot import GIB, holder

HOST, MACHINE, USER, OTHER = "lovelace-ws7.example.org", "0123456789abcdef", "ada.lovelace", "babbage"
FOLDER, CONTAINER = "analytical-engine", "feedc0ffee12"
GPU = "GPU-12345678-9abc-4def-8123-456789abcdef"
NAMES = (
    HOST,
    "lovelace-ws7",
    MACHINE,
    USER,
    OTHER,
    FOLDER,
    CONTAINER,
    GPU,
    "secret-argument",
    "the project",
    "alculat",
)
FILE = f"/home/{USER}/{FOLDER}/train.py"
SAME_NAME = f"/home/{USER}/the project/train.py"


def environment(host: str = HOST) -> Any:
    """A machine that says more of its owner than it should."""
    usual = synthetic.environment()
    devices = tuple(device.model_copy(update={"uuid": GPU}) for device in usual.devices)
    missing = {"virtualization": f"/home/{USER}/the project/x could not be read on {HOST}; see /proc/meminfo"}
    changes = {"host": host, "machine_id": MACHINE, "devices": devices, "missing": missing}
    return usual.model_copy(update=changes)


def named(run: Run, **changes: Any) -> Run:
    """The run on that machine, with names in all its texts."""
    notes = (
        f"'/home/{USER}/the project/{FOLDER}/x.json' is {OTHER}'s, on {HOST}.",
        f"No room in /mnt/{FOLDER}/tmp (lovelace-ws7: {GPU}); /sys/fs/cgroup/{FOLDER}/memory.max is full.",
        f"sqlite:////srv/{FOLDER}/runs.db and ~{OTHER}/{FOLDER}/y took copies of h2d/d2h at 3 GB/s.",
    )
    process = Process(pid=1, started=1.0, boot_id=f"boot-of-{MACHINE}")
    fields = {
        **{"environment": environment(), "notes": notes, "process": process, "verdict": f"{FILE}:3 copied 1 GiB"},
        **{"name": "the Calculating Engine", "tags": ("calculator-2",), "note": "Calculation of both"},
    }
    return run.model_copy(update={**fields, **changes})


def timeline() -> tuple[Run, list[StoredRow]]:
    """Two holders of two users, one in a container."""
    rows = synthetic_timeline.watched(
        5,
        holders=lambda number: (
            holder(1, user=USER, name=f"{OTHER}-job", container=f"docker {CONTAINER}", host_alloc_bytes=number * GIB),
            holder(2, user=OTHER, name="python"),
            holder(3, user="root", name="nvidia-persist"),
        ),
    )
    return named(synthetic_timeline.run(id="kept-timeline")), rows


def traced() -> tuple[Run, list[StoredRow]]:
    """A trace of two files of the same name."""
    stack = f"step.<locals>.f ({FILE}:3)\n<module> (/home/{USER}/the project (old)/run.py:9)"
    source = f"x = load('/home/{USER}/the project/{FOLDER}/data.pt').cuda()"
    rows = [
        trace.program(),
        trace.site(3, file=FILE, stack=stack, source_line=source, ranges=f"{HOST} step"),
        trace.site(3, number=4, file=SAME_NAME, stack="", bytes=500 * trace.MIB),
        trace.row("redirected", count=1, bytes=1, gather_seconds=1.0, wait_seconds=1.0, pin_seconds=1.0,
                  pinned_bytes=1, file=FILE, line=3, reason=f"{FILE} was changed"),
        trace.row("early_read", call="item", count=1, in_flight_count=1, file=FILE, line=4, copy_file=FILE,
                  copy_line=3),
        trace.row("difference", output=USER, count=1, file=FILE, line=5),
    ]  # fmt: skip
    params = {
        "program": [FILE, "--data", "secret-argument"],
        "what_if": [f"{FILE}:3", f"{SAME_NAME}:3"],
        "waits": [f"{FILE}:3"],
        "python": f"/home/{USER}/the {FOLDER}/bin/python, 3.9",
        "cupti": f"/home/{USER}/the {FOLDER}/libcupti.so.12, of the program",
    }
    return named(trace.run(**params), id="kept-trace"), rows


CALLS = pa.table({
    "at_ns": [0, 5, 10], "took_ns": [2, 2, 2], "call": ["cuMemcpyHtoDAsync"] * 3, "thread": [1, 1, 1],
    "file": [FILE, SAME_NAME, ""], "line": pa.array([3, 3, 0], pa.int32()),
    "process": pa.array([1, 1, 1], pa.int32()),
})  # fmt: skip
KERNELS = pa.table({
    "at_ns": [3], "took_ns": [2], "device": pa.array([0], pa.int32()), "stream": [7],
    "process": pa.array([1], pa.int32()),
})  # fmt: skip


@pytest.fixture
def store() -> Iterator[Store]:
    """A run of each kind, full of names; the shipped recordings come with it."""
    with Store() as opened:
        opened.import_runs([
            (named(synthetic.run("overlap", id="kept-experiment")), synthetic.overlap_rows(
                balances=("balanced",), depths=(1, 2), every_combination=False, repeats=3, chunks=8)),
            timeline(),
        ])  # fmt: skip
        run, rows = traced()
        opened.add(run.model_copy(update={"status": "running"}))
        opened.append(run.id, rows)
        for name, table in (("calls", CALLS), ("kernels", KERNELS)):
            with opened.attach(run.id, name, table.schema) as writer:
                for batch in table.to_batches():
                    writer.write(batch)
        opened.update(run.id, status="done")
        yield opened


KEPT = ("kept-experiment", "kept-timeline", "kept-trace")


def contents(file: Path) -> Iterator[tuple[str, bytes]]:
    """Every piece of a file that is packed by itself, and the text in its columns."""
    data = file.read_bytes()
    yield file.name, data
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            for name in archive.namelist():
                yield name, name.encode() + archive.read(name)
                if name.endswith(".parquet"):
                    yield from columns(name, archive.read(name))
    elif file.suffix == ".parquet":
        yield from columns(file.name, data)


def columns(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """What a Parquet file says, decoded."""
    whole = pq.ParquetFile(io.BytesIO(data))
    yield f"{name}: table", json.dumps(whole.read().to_pylist(), default=str).encode()
    yield f"{name}: metadata", b"".join((whole.schema_arrow.metadata or {}).values())


def names_in(file: Path, names: tuple[str, ...] = NAMES) -> list[str]:
    """Where which of the planted names stands."""
    return [f"{name} in {piece}" for piece, held in contents(file) for name in names if name.encode() in held]


def exported(run_id: str, folder: Path, *options: str) -> Path:
    """A bundle of that run."""
    file = folder / f"{run_id}{'-'.join(options)}.pinscope"
    assert main(["export", run_id, "-o", str(file), *options]) == 0
    return file


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("run_id", KEPT)
def test_no_byte_of_an_anonymous_bundle_or_report_names_anybody(run_id: str, tmp_path: Path) -> None:
    for suffix in SUFFIXES:
        if suffix == ".perfetto.json" and run_id == "kept-timeline":
            continue
        report = tmp_path / f"anonymous{suffix}"
        assert main(["report", run_id, "-o", str(report), "--anonymous"]) == 0
        assert names_in(report) == []
    assert names_in(exported(run_id, tmp_path))
    file = exported(run_id, tmp_path, "--anonymous")
    assert names_in(file) == []
    (run, rows), *_ = read_bundle(file)
    assert run.id == run_id + SUFFIX
    assert run.process is None
    notes = " ".join(run.notes)
    assert all(word in notes for word in ("x.json", "memory.max", "runs.db", "h2d/d2h at 3 GB/s"))
    assert rows


@pytest.mark.parametrize("run_id", KEPT)
def test_an_anonymous_run_is_imported_and_reads_as_the_run_does(run_id: str, store: Store, tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'elsewhere.db'}") as elsewhere:
        with open_bundle(exported(run_id, tmp_path, "--anonymous")) as bundle:
            assert elsewhere.import_runs(bundle.items(), bundle.parts).added == (run_id + SUFFIX,)
        run = elsewhere.run(run_id)
        there = open_document(run, elsewhere.observations(run.id), attached=elsewhere.attached(run))
    here = open_document(store.run(run_id), store.observations(run_id), attached=store.attached(store.run(run_id)))
    figures = [
        [(figure.key, figure.value) for figure in reading.headline if figure.unit != "text"]
        for reading in (here.reading, there.reading)
    ]
    assert figures[0] == figures[1]
    assert [chart.title for chart in there.charts] == [chart.title for chart in here.charts]
    for ours, theirs in zip(here.reading.findings, there.reading.findings, strict=True):
        assert (ours.rule, ours.severity, ours.evidence) == (theirs.rule, theirs.severity, theirs.evidence)
    numbers = [{key: value for key, value in row.items() if not isinstance(value, str)} for row in here.rows]
    assert numbers == [{key: row[key] for key in kept} for kept, row in zip(numbers, there.rows, strict=True)]


def test_lines_of_a_trace_are_told_apart_and_found_by_the_last_name_of_their_file(store: Store) -> None:
    source = AnonymousStore(store)
    run = source.run("kept-trace")
    document = open_document(run, source.observations(run.id))
    (lines,) = (table for table in document.reading.tables if table.title == LINES)
    assert [row[0] for row in lines.rows] == ["train.py:3", "train.py:3"]
    sites = {row["number"]: row["file"] for row in document.rows if row["kind"] == "site"}
    assert sites[3] != sites[4]
    assert run.params["program"] == ["train.py", "…"]
    assert run.params["what_if"] == [f"{sites[3]}:3", f"{sites[4]}:3"]
    (calls,) = source.attached(run).tables("calls")
    assert calls.column("file").to_pylist() == [sites[3], sites[4], ""]
    site = document.rows[1]
    assert site["source_line"] == "x = load('…/data.pt').cuda()"
    assert site["stack"].startswith(f"step.<locals>.f ({sites[3]}:3)\n<module> (")
    assert site["stack"].endswith("/run.py:9)")


def test_attachments_without_names_in_them_stay_byte_for_byte(store: Store) -> None:
    source = AnonymousStore(store)
    run = source.run("kept-trace")
    kept = store.run("kept-trace")
    for name, is_same in (("kernels", True), ("calls", False)):
        there, here = run.attachment(name), kept.attachment(name)
        assert there
        assert here
        theirs, ours = b"".join(source.parts(run, there)), b"".join(store.parts(kept, here))
        assert (theirs == ours) is is_same
        assert there.bytes == len(theirs)
        assert read_part(theirs).num_rows == here.rows


def test_the_same_machine_has_the_same_pseudonym_in_each_run_and_another_one_has_another(store: Store) -> None:
    runs = [AnonymousStore(store).run(run_id) for run_id in (*KEPT, "kept-trace")]
    (environment_of_all,) = {(run.environment.host, run.environment.machine_id) for run in runs}
    assert environment_of_all[0] == f"machine-{environment_of_all[1][:8]}"
    assert {run.environment.devices[0].uuid for run in runs if run.environment.devices} != {GPU}
    other = Pseudonyms(environment().model_copy(update={"machine_id": "fedcba9876543210"}), [USER])
    same = Pseudonyms(environment("renamed"), [USER])
    assert same.host == environment_of_all[0] != other.host
    assert same.user(USER) != other.user(USER)
    assert same.user("root") == "root"


@pytest.mark.parametrize("word", ["host", "h2d", "1000"])
def test_a_host_or_user_that_is_called_like_a_word_of_ours_changes_no_label(word: str, store: Store) -> None:
    run, rows = timeline()
    run = parse_run({**dict(run), "id": "odd", "environment": environment(word), "notes": ("1000 of x pinned",)})
    store.import_runs([(run, [{**row, "user": word} if row.get("user") else row for row in rows])])
    source = AnonymousStore(store)
    anonymous = source.run("odd")
    assert anonymous.environment.host.startswith("machine-")
    kinds = [
        {key: row.get(key) for key in ("kind", "event", "what", "gone")} for row in source.observations("odd" + SUFFIX)
    ]
    assert kinds == [{key: row.get(key) for key in ("kind", "event", "what", "gone")} for row in rows]
    assert open_document(anonymous, source.observations(anonymous.id)).reading.headline


def test_an_anonymous_run_stays_as_it_is_when_it_is_given_away_again(store: Store, tmp_path: Path) -> None:
    first = exported("kept-trace", tmp_path, "--anonymous")
    with open_bundle(first) as bundle:
        store.import_runs(bundle.items(), bundle.parts)
    again = exported(f"kept-trace{SUFFIX}", tmp_path, "--anonymous")
    assert read_bundle(again) == read_bundle(first)
    with open_bundle(again) as bundle:
        assert store.import_runs(bundle.items(), bundle.parts).skipped == (f"kept-trace{SUFFIX}",)


def shipped() -> Mapping[str, Run]:
    """The recordings, by experiment and machine."""
    with Store() as opened:
        return {f"{run.experiment} on {run.environment.host}": run for run in opened.runs() if run.recording}


@pytest.mark.parametrize("name", ["bandwidth on h200", "trace on h200", "timeline on h200"])
def test_a_recording_can_be_given_away_without_names_and_imported_beside_itself(name: str, tmp_path: Path) -> None:
    run = shipped()[name]
    file = exported(run.id, tmp_path, "--anonymous")
    uuids = tuple(device.uuid for device in run.environment.devices)
    assert names_in(file, (run.environment.machine_id, f'"{run.environment.host}"', "/opt/", *uuids)) == []
    ((anonymous, rows),) = read_bundle(file)
    with Store() as store:
        assert len(rows) == len(store.observations(run.id))
        if run.experiment in ("trace", "timeline"):
            assert store.import_runs([(anonymous.model_copy(update={"attachments": ()}), rows)]).added == (
                anonymous.id,
            )
            assert open_document(anonymous, rows).reading.verdict == run.verdict
