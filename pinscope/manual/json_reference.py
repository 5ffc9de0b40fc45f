"""The reference of the JSON documents: their own keys stand here, those of their records come from the records."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pinscope.experiments.registry import readers
from pinscope.manual.keys import Key, keys_of, records_in, table
from pinscope.planning.plan import ContextPrice, Demand, HostBudget, Origin, Pace, Sharing
from pinscope.planning.safety import Safety
from pinscope.records.capability import Capability
from pinscope.records.environment import Environment
from pinscope.records.finding import Finding, Table
from pinscope.records.run import ExperimentRun, Observation, TimelineRun, TraceRun
from pinscope.records.snapshot import Snapshot
from pinscope.records.timeline import Event
from pinscope.store.store import Imported

_FORMAT = Key("format", "integer", "Version of the document. Keys may be added without raising it.")
_FINDINGS = Key("findings", "list of [Finding](#finding)", "What was concluded.")
_VERDICT = Key("verdict", "text or null", "The answer to the question in one sentence; null where there is none.")
_HEADLINE = Key("headline", "list of [Quantity](#quantity)", "The figures that answer the question.")
_TABLES = Key("tables", "list of [Table](#table)", "All figures that were derived.")
_ORIGIN = Key("origin", "[Origin](#origin)", "Where the figure comes from.")
_FILE = (
    Key("file", "text", "The file that was written."),
    Key("bytes", "integer", "Its size."),
    Key("runs", "list of text", "Ids of the runs in it."),
)


@dataclass(frozen=True)
class Part:
    """One table of the reference.

    Attributes:
        title: its heading.
        level: of the heading.
        text: what stands above the table.
        keys: the rows.
    """

    title: str
    level: int
    text: str
    keys: Sequence[Key] = ()

    def markdown(self) -> str:
        """The heading, the text and the table."""
        parts = [f"{'#' * self.level} {self.title}", self.text, table(self.keys) if self.keys else ""]
        return "\n\n".join(part for part in parts if part)


def json_reference(listed: Collection[str]) -> str:
    """All documents and all their keys, as Markdown.

    Args:
        listed: keys of a run that ``runs list --json`` prints, beside ``host``.
    """
    return "\n\n".join(part.markdown() for part in json_parts(listed))


def json_parts(listed: Collection[str]) -> Iterator[Part]:
    """The tables in the order of the page."""
    yield from _run_parts()
    yield from _observation_parts()
    yield from _list_and_doctor(listed)
    yield from _plan_parts()
    yield from _live_parts()
    yield from _small_parts()
    yield Part("Records", 2, "These objects stand in several documents.")
    seen: list[type] = []
    for top in (ExperimentRun, TimelineRun, TraceRun, Finding, Table, Capability, Snapshot, Event):
        for record in (top, *records_in(top)):
            if record not in seen:
                seen.append(record)
    for record in seen:
        yield _record(record, 3, _RUN_KEYS if record in (ExperimentRun, TimelineRun, TraceRun) else ())


_RUN_KEYS = (
    Key("title", "text", "Title of the experiment."),
    Key("question", "text", "What the experiment asks."),
    Key("method", "text", "How the answer was measured."),
    _HEADLINE,
    _TABLES,
    _FINDINGS,
)
"""What a run's document has beside the record: what was derived from the observations."""


def _record(record: type, level: int, more: Sequence[Key] = ()) -> Part:
    words = (record.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
    return Part(record.__name__, level, " ".join(words.split()), [*keys_of(record), *more])


def _run_parts() -> Iterator[Part]:
    document = (
        _FORMAT,
        Key(
            "run",
            "[ExperimentRun](#experimentrun), [TimelineRun](#timelinerun) or [TraceRun](#tracerun)",
            "The run and what was concluded from it.",
        ),
        Key("observations", "list of objects", "Every reading as it was stored: see [Observations](#observations)."),
    )
    text = (
        "`pinscope run NAME --json`, `pinscope runs show ID --json`, `pinscope record --json`, "
        "`pinscope trace --json FILE` and a report in a `.json` file."
    )
    yield Part("A run", 2, text, document)
    several = (
        _FORMAT,
        Key("runs", "list of objects", "Of `pinscope run all --json`: one document for each run."),
        Key("documents", "list of objects", "Of a report of several runs: one document for each run."),
    )
    yield Part("Several runs", 3, "`pinscope run all --json`, and a report of several runs.", several)


def _observation_parts() -> Iterator[Part]:
    shared = keys_of(Observation)
    yield Part("Observations", 2, "Every observation of every experiment has these keys.", shared)
    names = {key.name for key in shared}
    for reader in readers():
        own = [key for key in keys_of(reader.kind.Observation) if key.name not in names]
        words = " ".join((reader.kind.Observation.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")
        yield Part(f"Observations of {reader.kind.name}", 3, words, own)


def _list_and_doctor(listed: Collection[str]) -> Iterator[Part]:
    rows = [key for key in keys_of(ExperimentRun) if key.name in listed]
    text = (
        "A list of objects. A run that cannot be read has the status `damaged`, and `error` says why; of the other "
        "keys only `id` is known."
    )
    yield Part("`pinscope runs list --json`", 2, text, [*rows, Key("host", "text", "Name of the machine.")])
    doctor = (
        _FORMAT,
        Key("environment", f"[{Environment.__name__}](#environment)", "This machine."),
        Key("capabilities", "list of [Capability](#capability)", "What can be used here."),
        _FINDINGS,
        Key("database", "text", "Where runs are kept."),
    )
    yield Part("`pinscope doctor --json`", 2, "", doctor)


def _plan_parts() -> Iterator[Part]:
    document = (
        _FORMAT,
        Key("demand", "[Demand](#demand)", "What is to be pinned."),
        Key("page", "object", "The page table of one process on one GPU: see [Page](#page)."),
        Key("page_sizes", "list of objects", "The same by formula at each page size: see [Page](#page)."),
        Key("context", "[ContextPrice](#contextprice) or null", "What one CUDA context takes."),
        Key("strategies", "list of [Sharing](#sharing)", "Ways to share the memory among the processes."),
        Key("pinning", "list of [Pace](#pace)", "Ways to pin, the fastest first."),
        Key("recommended", "object or null", "The recommended way: see [Recommended](#recommended)."),
        Key("budget", "[HostBudget](#hostbudget)", "What is safe on this host."),
        Key("safety", "[Safety](#safety)", "How safe the plan is here: the first words of the verdict."),
        _VERDICT,
        _HEADLINE,
        _TABLES,
        _FINDINGS,
    )
    yield Part("`pinscope plan --json`", 2, "", document)
    yield _record(Demand, 3)
    page = (
        Key("page_bytes", "number", "Page size of the GPU's page table."),
        Key("entries", "integer", "How many entries the table has; only in `page_sizes`."),
        Key("table_bytes", "integer", "What the table takes of GPU memory."),
        Key("origin", "[Origin](#origin)", "Where the page size comes from; only in `page`."),
    )
    yield Part("Page", 3, "", page)
    yield _record(ContextPrice, 3)
    yield _record(Sharing, 3)
    more = (Key("seconds", "number", "For the amount that is asked for."),)
    yield _record(Pace, 3, more)
    recommended = (
        Key("strategy", "text", "Its name in the experiment `pinning_strategy`."),
        Key("chunk_bytes", "integer or null", "Length of a chunk; `null`: one piece."),
        Key("call", "text", "Python code that pins the amount this way."),
    )
    yield Part("Recommended", 3, "", recommended)
    yield _record(HostBudget, 3)
    yield _record(Safety, 3)
    yield _record(Origin, 3)


def _live_parts() -> Iterator[Part]:
    text = (
        "`pinscope live --once --json` prints one document: the keys of a [Snapshot](#snapshot) and `findings`. "
        "Without `--once` there is one document on each line, with `events` and `growing` beside them."
    )
    more = (
        _FINDINGS,
        Key("events", "list of [Event](#event)", "What happened since the line before."),
        Key("growing", "list of integer", "Pids of the holders that take more and more and give nothing back."),
    )
    yield Part("`pinscope live --json`", 2, text, more)


def _small_parts() -> Iterator[Part]:
    yield Part("`pinscope report --json` and `pinscope export --json`", 2, "", _FILE)
    yield Part("`pinscope import --json`", 2, "", keys_of(Imported))
    deleted = (Key("deleted", "text", "Id of the run."),)
    yield Part("`pinscope runs delete --json`", 2, "", deleted)
    cancelled = (
        Key("cancelled", "text", "Id of the run."),
        Key("status", "text", "What it is now: `cancelled`, or `done` if it was a recording of the live view."),
    )
    yield Part("`pinscope runs cancel --json`", 2, "", cancelled)
    docs = (
        Key("page", "text", "Name of the page."),
        Key("file", "text", "The HTML file of the page on this machine."),
        Key("pages", "list of text", "Names of all pages."),
    )
    yield Part("`pinscope docs --json`", 2, "", docs)
