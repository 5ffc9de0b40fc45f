"""Commands over stored runs: list, show, cancel and delete, reports, and bundles to other machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pinscope.analysis.trend import series_words, step_words, verdict
from pinscope.cli.main import AsJson, MaybeRunId, RunId, RunIds, argument, duration, option, output_option, switch
from pinscope.cli.outcome import print_run, store_to_read
from pinscope.cli.terminal import (
    GAP,
    complain,
    print_answer,
    print_json,
    print_line,
    print_long_json,
    print_prose,
    print_table,
    terminal_columns,
)
from pinscope.errors import BadInput, StoreFailed
from pinscope.experiments.registry import GONE, find_reader, run_figures
from pinscope.records.run import LAB_TITLES, STATUSES, ExperimentRun, Origin, Run, Status, TraceRun
from pinscope.report.facts import Document, called, open_document, place
from pinscope.report.trend import runs_like, trend_document, trend_of
from pinscope.report.write import run_without_rows, write_report
from pinscope.runner.jobs import cancel, open_store
from pinscope.store.anonymous import ANONYMOUS, AnonymousStore
from pinscope.store.bundle import check_output, open_bundle, write_bundle
from pinscope.store.choice import ORDERS, Wanted
from pinscope.store.documents import DamagedRun, checked_labels
from pinscope.store.recordings import recorded_run, recording_name
from pinscope.store.store import Store
from pinscope.text import one_line, shortened, visible
from pinscope.tracing.stretch import extent, within
from pinscope.units import (
    format_bytes,
    format_count,
    format_heights,
    format_measured,
    format_seconds,
    format_share,
    format_value,
)

UNKNOWN_COLUMNS = 78
"""Runs in the small chart of a trend where nobody says how wide it may be; the newest ones."""
WIDE = 120
"""Columns from which a line also says where the run was measured."""
SECONDS_ID = len("20261121-031500")
"""Of an id up to its second, which narrower terminals show where no two of the list are alike."""
LEAST_ANSWER = 10
"""Characters of an answer, or of the name of the figure that stands for it."""
CALLED = 20
"""Characters of what a run is called that narrower terminals show."""
_HEADS = ("id", "experiment", "on", "called", "answer", "figure")
_Line = dict[str, str]
"""A run as the list shows it: heading → text, and the ``name`` of its figure."""


def print_runs(runs: Iterable[Run | DamagedRun]) -> bool:
    """Print the runs in the order given, those that ship with PinScope apart; false if there are none.

    A line ends with the figure that decides. Where a terminal has no room for the whole answer, the name of that figure
    stands for it. Elsewhere, as in a file, the answer is whole.
    """
    own, recordings = list[_Line](), list[_Line]()
    for run in runs:
        if isinstance(run, DamagedRun):
            complain(str(run))
            texts = (run.id, "?", "?", "", f"damaged: {run.why}", "", "")
        else:
            figure = run.figure if run.status == "done" else None
            what = (one_line(called(run)), one_line(answer(run)))
            text = format_measured(figure.value, figure.unit, figure.spread) if figure else ""
            run_id = recording_name(run) if recorded_run(run.id) else run.id
            texts = (run_id, run.experiment, place(run)[:40], *what, text, one_line(figure.name) if figure else "")
        line = dict(zip((*_HEADS, "name"), texts, strict=True))
        (recordings if isinstance(run, Run) and run.recording else own).append(line)
    for title, lines in (("", own), ("Recordings, which ship with PinScope:", recordings)):
        if lines:
            _print(title, lines)
    return bool(own or recordings)


def answer(run: Run) -> str:
    """What came out: the verdict, or what kept the run from one."""
    if run.status == "running":
        return f"running: {format_share(run.progress.fraction)} {run.progress.message}".rstrip()
    if run.status != "done":
        said = run.error or run.verdict
        return f"{run.status}: {said}" if said else run.status
    return run.verdict or f"done: {run.observations:,} observations"


def _print(title: str, lines: Sequence[_Line]) -> None:
    room = terminal_columns()
    is_narrow = room is not None and room < WIDE
    heads = [head for head in _HEADS if any(line[head] for line in lines) and not (is_narrow and head == "on")]
    if is_narrow:
        by_second = not title and len({line["id"][:SECONDS_ID] for line in lines}) == len(lines)
        for line in lines:
            line["id"] = line["id"][: SECONDS_ID if by_second else None]
            line["called"] = shortened(line["called"], CALLED)
    if room is not None:
        others = [max(len(head), *(len(line[head]) for line in lines)) for head in heads if head != "answer"]
        left = max(room - sum(others) - len(GAP) * len(others), LEAST_ANSWER)
        for line in lines:
            if len(line["answer"]) > left:
                line["answer"] = shortened(line["name"] or line["answer"], left)
    numbers = [place for place, head in enumerate(heads) if head == "figure"]
    print_table(heads, [[line[head] for head in heads] for line in lines], title=title, numbers=numbers)


SUFFIX = ".perfetto.json"


def stretch_for_perfetto(document: Document, begin_seconds: float | None, length_seconds: float | None) -> Document:
    """The document of a trace with the events of a stretch only: from its begin, ``None``: the program's, for a length,
    ``None``: to the end.

    Raises:
        BadInput: it is no trace, or nothing was recorded then.
    """
    if not isinstance(document.run, TraceRun):
        raise BadInput(f"--start-after and --for choose a stretch of a trace, and {document.run.id} is none")
    whole = extent(document.attached, document.rows)
    if whole is None:
        return document
    begin = int((begin_seconds or 0.0) * 1e9)
    end = whole.end_ns if length_seconds is None else begin + int(length_seconds * 1e9)
    if end <= whole.begin_ns or begin >= whole.end_ns:
        first, last = (format_seconds(moment / 1e9) for moment in (whole.begin_ns, whole.end_ns))
        raise BadInput(f"nothing was recorded then: events of {document.run.id} are from {first} to {last}")
    return replace(document, attached=within(document.attached, whole, begin, end))


app = typer.Typer(add_completion=False, help="List, show, name, cancel or delete stored runs.", rich_markup_mode=None)

_UNLISTED = {"params", "environment", "notes", "progress", "process", "attachments", "figures", "budget"}
RUN_LIST_FIELDS = set(ExperimentRun.model_fields) - _UNLISTED
"""Fields of a run that ``runs list --json`` prints, beside ``host``."""
Order = Literal["newest", "oldest", "experiment", "name", "host", "figure"]
"""As :data:`~pinscope.store.choice.ORDERS` has them."""
Anonymous = Annotated[bool, switch("--anonymous", ANONYMOUS)]


@app.command("list", short_help="List runs, the newest first.")
def list_runs(
    experiment: Annotated[
        str | None,
        option(
            "NAME",
            "Only runs of this experiment; timeline: those of `pinscope record`; trace: those of `pinscope trace`.",
        ),
    ] = None,
    lab: Annotated[
        Origin | None,
        option(
            "|".join(LAB_TITLES), "Only runs on a GPU, on the host model, of the live view, or of a traced program."
        ),
    ] = None,
    status: Annotated[Status | None, option("STATUS", f"Only runs that are: {', '.join(STATUSES)}.")] = None,
    tag: Annotated[list[str] | None, option("TAG", "Only runs with this tag; may be repeated.")] = None,
    search: Annotated[
        str | None, option("WORDS", "Only runs with all these words in id, name, tags, note, verdict, host or GPU.")
    ] = None,
    sort: Annotated[
        Order, typer.Option(metavar="|".join(ORDERS), help="In which order; figure: the greatest first, by experiment.")
    ] = "newest",
    recordings: Annotated[
        bool, switch("--recordings/--no-recordings", "Also list the recorded runs that ship with PinScope.")
    ] = True,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="List the first N of these only.")] = None,
    as_json: AsJson = False,
) -> None:
    """List runs, then the recorded runs that ship with PinScope. A star marks those that others are compared with."""
    if experiment is not None and experiment not in GONE:
        find_reader(experiment)
    with store_to_read() as store:
        wanted = Wanted(experiment=experiment, lab=lab, status=status, tags=tag, search=search, recordings=recordings)
        runs = islice(_sorted(store.listed(**wanted), sort), limit)
        if as_json:
            print_json([run_object(run) for run in runs])
            return
        if not print_runs(runs):
            is_narrowed = experiment or lab or status or tag or search
            print_line("No run matches." if is_narrowed else "No runs yet. Start one: pinscope run bandwidth --quick")


def _sorted(runs: Iterable[Run | DamagedRun], order: Order) -> Iterable[Run | DamagedRun]:
    """In that order, those that cannot be read last; the store gives the newest first."""
    if order == "newest":
        return runs
    return sorted(runs, key=lambda run: (1,) if isinstance(run, DamagedRun) else (0, ORDERS[order](run)))


@app.command("trend", short_help="A figure over all runs of a machine: its steps, and what changed there.")
def trend(
    experiment: Annotated[str, argument("EXPERIMENT", "Whose runs.")],
    figure: Annotated[str | None, argument("[FIGURE]", "Its key, such as pinned.h2d.rate; default: the first.")] = None,
    like: Annotated[str | None, option("ID", "Runs like this one; default: the newest of this machine.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a figure over all stored runs of a machine: where it steps, and what changed in the machine there.

    Runs are alike where machine, lab and parameters are the same. A step is named where it cannot be chance; that takes
    9 runs at least."""
    with Store() as store:
        runs, others = runs_like(store, experiment, like)
        course = trend_of(store, runs, figure)
    if as_json:
        print_json(trend_document(course, others))
        return
    values, columns, unit = course.values, terminal_columns() or UNKNOWN_COLUMNS, course.figure.unit
    low, high, places = min(values), max(values), {step.place for step in course.steps}
    marks = "".join("▲" if place in places else " " for place in range(len(values)))[-columns:]
    print_line(f"{course.figure.name} · {series_words(course.runs)}")
    print_line(format_heights([1 + 7 * (value - low) / ((high - low) or 1.0) for value in values[-columns:]]))
    print_line(marks.rstrip())
    print_line(f"{format_count(len(values), 'run')}, {format_value(low, unit)} to {format_value(high, unit)}")
    for words in [f"▲ {step_words(step, unit)}" for step in course.steps] or [verdict(course)]:
        print_prose(words, hanging="  ")
    if others:
        complain(f"{others} further runs of {experiment} have another machine, lab or parameters: --like ID")
    if course.left_out:
        complain(course.left_out)


@app.command("edit", short_help="Name, tag, annotate or star a run.")
def edit(
    run_id: RunId,
    name: Annotated[str | None, option("TEXT", "Its name; '' takes it away.")] = None,
    tag: Annotated[list[str] | None, option("TAG", "A further tag; may be repeated.")] = None,
    untag: Annotated[list[str] | None, option("TAG", "A tag to take away; may be repeated.")] = None,
    note: Annotated[str | None, option("TEXT", "A note; '' takes it away.")] = None,
    baseline: Annotated[bool | None, switch("--baseline/--no-baseline", "Star it: others are set against it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Name, tag, annotate or star a run, also while it goes on. What is not given stays."""
    with Store() as store:
        run = store.run(run_id)
        given: dict[str, Any] = {"name": name, "note": note, "baseline": baseline}
        changes = {field: None if value == "" else value for field, value in given.items() if value is not None}
        if tag or untag:
            there = dict.fromkeys((*run.tags, *(tag or ())))
            changes["tags"] = [word for word in there if word not in (untag or ())]
        if not changes:
            raise BadInput("nothing was changed; give --name, --tag, --untag, --note, --baseline or --no-baseline")
        run = store.update(run.id, **checked_labels(**changes))
    if as_json:
        print_json(run_object(run))
    else:
        print_runs([run])


@app.command("show", short_help="Show one run and what was concluded from it.")
def show(run_id: RunId, as_json: AsJson = False) -> None:
    """Show one run: parameters, headline, tables, findings; with --json, every observation too."""
    with store_to_read() as store:
        run = store.run(run_id)
        document = open_document(run, store.observations(run.id))
        if as_json:  # the observations come from the database while they are printed
            print_long_json(run_without_rows(document), "observations", document.rows)
            return
    print_run(document)
    if run.experiment in GONE:  # nothing is read from its rows
        for row in document.rows:
            print_line(json.dumps({name: value for name, value in row.items() if value is not None}))


@app.command("cancel", short_help="Stop a run that is still going.")
def cancel_run(run_id: RunId, as_json: AsJson = False) -> None:
    """Stop a run that is still going, wherever it was started; what it measured is kept."""
    with open_store() as store:
        cancel(store, run_id)
        run = store.run(run_id)
    if run.status != "cancelled" and run.lab not in ("live", "traced"):
        raise BadInput(f"run {run.id} ended before it could be cancelled; it is {run.status}")
    said = f"Stopped run {run.id}; it is {run.status}. What it measured: pinscope runs show {run.id}"
    print_answer({"cancelled": run.id, "status": run.status}, said, as_json)


@app.command("delete", short_help="Delete a run and its observations, or all that are older than some days.")
def delete(
    run_id: MaybeRunId = None,
    older_than: Annotated[str | None, option("AGE", "All that began longer ago, as 90d, but starred ones.")] = None,
    yes: Annotated[bool, switch("--yes", "Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete a run and its observations. A run that is still going must be cancelled first. The recorded runs that ship
    with PinScope cannot be deleted."""
    age = duration("--older-than", older_than)
    if (run_id is None) == (age is None):
        raise BadInput("name a run, or give --older-than, such as --older-than 90d")
    with open_store() as store:
        if age is not None:
            _delete_old(store, age, yes, as_json)
            return
        try:
            run = store.run(str(run_id))
        except StoreFailed:
            run = None  # this very run cannot be read: its whole id will do
        whole_id = run.id if run else str(run_id)
        if not yes:
            what = f"{run.experiment}, {run.observations} observations" if run else "cannot be read"
            _ask(f"run {whole_id}", what)
        store.delete(whole_id)
    print_answer({"deleted": whole_id}, f"Deleted run {whole_id}.", as_json)


def _delete_old(store: Store, age: float, yes: bool, as_json: bool) -> None:
    begin = datetime.now(UTC) - timedelta(seconds=age)
    ids = store.older_than(begin)
    if ids and not yes:
        _ask(f"{len(ids):,} runs", f"those that began before {begin:%Y-%m-%d %H:%M} UTC")
    count = store.delete_many(ids)
    said = f"Deleted {count:,} runs that began before {begin:%Y-%m-%d %H:%M} UTC."
    print_answer({"deleted": count}, said, as_json)


def report(
    run_ids: RunIds,
    output: Annotated[
        Path,
        output_option(
            "File to write, which must not exist yet. Its suffix is the format: .html, .md, .csv, .parquet, .json, "
            ".perfetto.json (timeline of overlap or of a trace)."
        ),
    ],
    start_after: Annotated[
        str | None,
        option(
            "DURATION", "Of a trace for Perfetto: leave out what came before the program had run so long, such as 10s."
        ),
    ] = None,
    for_: Annotated[
        str | None,
        option("DURATION", "Of a trace for Perfetto: how long a stretch, such as 500ms. Default: to the end.", "--for"),
    ] = None,
    anonymous: Anonymous = False,
    as_json: AsJson = False,
) -> None:
    """Write a report of one or more runs to a file."""
    begin, length = duration("--start-after", start_after), duration("--for", for_)
    is_stretch = begin is not None or length is not None
    if is_stretch and not output.name.lower().endswith(SUFFIX):
        raise BadInput(f"--start-after and --for choose a stretch for Perfetto: the file must end in {SUFFIX}")
    with store_to_read() as store:
        source = AnonymousStore(store) if anonymous else store
        runs = _chosen(source, run_ids)
        documents = [open_document(run, source.observations(run.id), source.attached(run)) for run in runs]
        if is_stretch:
            documents = [stretch_for_perfetto(document, begin, length) for document in documents]
        write_report(output, documents)
    _say_written(output, runs, as_json)


def export_runs(
    run_ids: RunIds,
    output: Annotated[Path, output_option("File to write, which must not exist yet, such as runs.pinscope.")],
    anonymous: Anonymous = False,
    as_json: AsJson = False,
) -> None:
    """Write runs with all their observations into a bundle, which `pinscope import` reads on another machine."""
    check_output(output)
    with store_to_read() as store:
        source = AnonymousStore(store) if anonymous else store
        runs = _chosen(source, run_ids)
        items = ((run, source.observations(run.id)) for run in runs)
        whole = [(run.model_copy(update={"figures": run_figures(run, rows)}), rows) for run, rows in items]
        write_bundle(output, whole, source.parts)
    _say_written(output, runs, as_json)


def import_runs(
    bundle: Annotated[Path, argument("FILE", "A bundle that `pinscope export` wrote.")], as_json: AsJson = False
) -> None:
    """Read the runs of a bundle into the database: all of them, or none if one is damaged."""
    with open_bundle(bundle, whole=False) as opened, open_store() as store:  # what the bundle completes is marked
        outcome = asdict(store.import_runs(opened.items(), opened.parts))
    if as_json:
        print_json(outcome)
        return
    words = {"added": "Imported", "completed": "Completed", "skipped": "Already here"}
    for key, ids in outcome.items():
        if ids:
            print_line(f"{words[key]}: {', '.join(ids)}.")


def run_object(run: Run | DamagedRun) -> dict[str, Any]:
    """A run in ``runs list --json``: flat, without its environment and observations.

    What its kind has not, or what is not known of a run that cannot be read, is null.
    """
    if isinstance(run, DamagedRun):
        return {**dict.fromkeys([*RUN_LIST_FIELDS, "host"]), "id": run.id, "status": "damaged", "error": run.why}
    fields = run.model_dump(mode="json", include=RUN_LIST_FIELDS)
    return {**fields, **dict.fromkeys(sorted(RUN_LIST_FIELDS - set(fields))), "host": run.environment.host}


def _chosen(source: Store | AnonymousStore, run_ids: list[str]) -> list[Run]:
    return [source.run(run_id) for run_id in dict.fromkeys(run_ids)]


def _say_written(file: Path, runs: list[Run], as_json: bool) -> None:
    size = file.stat().st_size
    ids = [run.id for run in runs]
    said = f"Wrote {file} ({format_bytes(size)}): {', '.join(ids)}."
    print_answer({"file": str(file), "bytes": size, "runs": ids}, said, as_json)


def _ask(name: str, what: str) -> None:
    if not sys.stdin.isatty():
        raise BadInput(f"{name} would be deleted for good; add --yes to do so without being asked")
    if not typer.confirm(visible(f"Delete {name} ({what}) for good?"), err=True):
        raise BadInput(f"{name} was not deleted")
