"""``pinscope run`` and ``pinscope record``: measure, or keep the live view, and say what came out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pinscope.cli.main import AsJson, Interval, Name, Pids, Probe, Tags, checked_pids, duration, option, output_option
from pinscope.cli.outcome import follow, print_outcome, progress_shown, say_how_it_ended
from pinscope.cli.terminal import Stop, complain, print_json, print_table
from pinscope.errors import InvalidParameter, MeasurementFailed, NotPossible, StoreFailed
from pinscope.experiments.contract import AnyExperiment
from pinscope.experiments.registry import EXPERIMENTS, find
from pinscope.live.source import open_source
from pinscope.live.timeline.reading import TimelineParams
from pinscope.probes.environment import capture_environment
from pinscope.records.run import ExperimentRun, LabKind, Run
from pinscope.report.facts import Document, open_document, parameter_defaults, quantity_text
from pinscope.report.write import run_document
from pinscope.runner import jobs
from pinscope.runner.timeline import Recorded, TimelineRecorder, prepare_timeline
from pinscope.store.bundle import check_output
from pinscope.store.documents import StoredRow, checked_labels
from pinscope.store.recordings import recorded_answer
from pinscope.store.safe_writer import saved_line
from pinscope.store.store import Store
from pinscope.text import one_line, quoted
from pinscope.units import format_seconds


class RunCommand(TyperCommand):
    """``run --help`` lists the experiments; with the name of one it shows that one only."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take note of what else stands on the line, for the help."""
        if set(args) & set(ctx.help_option_names):
            given, _, _ = self.make_parser(ctx).parse_args(list(args))
            ctx.meta[__name__] = given.get("experiment")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write it.

        Raises:
            UnknownName: there is no such experiment.
        """
        name = ctx.meta.get(__name__)
        if isinstance(name, str) and name != jobs.ALL:
            _format_experiment(find(name).experiment, formatter)
            return
        super().format_help(ctx, formatter)
        with formatter.section("Experiments"):
            formatter.write_dl([(entry.name, _summary_of(entry.experiment)) for entry in EXPERIMENTS])
        formatter.write_paragraph()
        formatter.write_text("What an experiment asks and takes: pinscope run EXPERIMENT --help")


def _summary_of(experiment: AnyExperiment) -> str:
    """What it is about, and whether it needs a GPU."""
    return f"{experiment.summary}{' (GPU only)' if experiment.labs.get('host') else ''}"


def _format_experiment(experiment: AnyExperiment, formatter: Any) -> None:
    formatter.write_usage("pinscope run", f"{experiment.name} [OPTIONS]")
    reason = experiment.labs.get("host")
    runs_on = f"It needs a GPU ({reason})." if reason else "It runs on a GPU or, without one, on the host model."
    for text in (experiment.question, runs_on):
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)
    with formatter.section("Parameters, each set by --set NAME=VALUE"):
        formatter.write_dl(list(_parameter_help(experiment)))
    formatter.write_paragraph()
    formatter.write_text("Options of every run: pinscope run --help")
    formatter.write_text(f"Method, and how to read the result: pinscope docs {experiment.name} --text")


def _parameter_help(experiment: AnyExperiment) -> Iterator[tuple[str, str]]:
    """Name of each parameter, and what it means, how it is written and what it is by default."""
    for parameter, defaults in parameter_defaults(experiment):
        values = "; ".join(f"{when}: {text}" for when, text in defaults.items())
        yield parameter.name, " ".join(filter(None, (parameter.description, parameter.takes, f"[{values}]")))


app = typer.Typer(add_completion=False, rich_markup_mode=None)


def experiment_names() -> list[tuple[str, str]]:
    """The experiments and what each is about: for the shell's completion."""
    return [*((entry.name, entry.experiment.summary) for entry in EXPERIMENTS), (jobs.ALL, "All of them")]


def several_experiments(meaning: str, metavar: str = "[EXPERIMENT]...") -> Any:
    """The argument for one or several experiments by name, which by default may be left out."""
    return typer.Argument(metavar=metavar, help=meaning, show_default=False, autocompletion=experiment_names)


Lab = Annotated[
    LabKind | None,
    option(
        "cuda|host",
        "Where to run: on a GPU (cuda), or on the host model, which needs none. Default: on a "
        "GPU if one can be used here.",
    ),
]
Device = Annotated[int, typer.Option(metavar="N", help="Number of the GPU, as nvidia-smi counts them.")]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer sizes and repeats: seconds instead of minutes.")]
Settings = Annotated[
    list[str] | None,
    option(
        "KEY=VALUE",
        "Change a parameter of the experiment, such as sizes=64KiB,1MiB, all_devices=off or "
        "precision=2%; may be repeated.",
        "--set",
    ),
]


@app.command("run", cls=RunCommand)
def run(
    experiment: Annotated[str, several_experiments("Name of an experiment, or all of them.", "EXPERIMENT|all")],
    lab: Lab = None,
    device: Device = 0,
    quick: Quick = False,
    settings: Settings = None,
    name: Name = None,
    tag: Tags = None,
    as_json: AsJson = False,
) -> int:
    """Run an experiment and print its result; with --json, every observation too. Ctrl-C cancels and keeps its data."""
    labels = checked_labels(name=name, tags=tag or ())
    wanted = jobs.Request(experiment, lab, device, quick, parse_settings(settings or ()), labels)
    if experiment != jobs.ALL:
        find(experiment)
    environment = capture_environment()
    if lab is None and not jobs.usable_gpu(environment):
        complain(f"no usable GPU here (pinscope doctor says why){recorded_answer(experiment)}")
    selection = jobs.select_experiments(wanted, environment)
    for line in selection.left_out:
        complain(f"left out: {line}")
    documents: list[dict[str, Any]] = []
    summary: list[tuple[str, str, str]] = []
    code = 0
    store = Store()
    with Stop() as stop, store:  # closed before a signal can end this again
        jobs.reconcile(store)
        with jobs.workers_for(store, selection.requests) as workers:
            for request, worker in zip(selection.requests, workers, strict=True):
                ended, rows, run_code = measure(store, jobs.prepare(request, capture_environment()), worker, stop)
                document = open_document(ended, rows)
                if as_json:
                    documents.append(run_document(document))
                else:
                    print_outcome(document)
                    summary.append(_summary(document))
                code = code or run_code
                if stop.asked:
                    break
    if as_json:
        print_json({"format": documents[0]["format"], "runs": documents} if experiment == jobs.ALL else documents[0])
    elif experiment == jobs.ALL:
        print_table(("experiment", "verdict", "first figure"), summary, title="All experiments")
    return code


def _summary(document: Document) -> tuple[str, str, str]:
    """A run in the table of all: its experiment, what it says, and the figure that decides."""
    reading = document.reading
    figure = next(iter(reading.headline), None)
    return (
        document.title,
        one_line(reading.verdict or document.run.error or document.run.status),
        f"{figure.name}: {quantity_text(figure)}" if figure else "",
    )


def parse_settings(texts: Sequence[str], option: str = "--set", example: str = "sizes=4KiB,1MiB") -> dict[str, str]:
    """``key=value`` texts of an option as a mapping.

    Raises:
        InvalidParameter: no ``=``, no key, or a key given twice.
    """
    settings: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        key = key.strip()
        if not separator or not key:
            raise InvalidParameter(f"{option} takes KEY=VALUE, such as {example}; not {quoted(text)}")
        if key in settings:
            raise InvalidParameter(f"{option} {key} is given twice; give several values by comma")
        settings[key] = value.strip()
    return settings


def measure(
    store: Store, prepared: ExperimentRun, worker: jobs.Worker | None, stop: Stop
) -> tuple[Run, Sequence[StoredRow], int]:
    """Have a run measured to its end; the run as it ended, its observations, and the exit code that fits.

    A run that failed or was stopped is reported on stderr at once; its result is still printed.
    """
    with jobs.running(store, prepared, worker) as job:
        follow(store, prepared, job, stop)
        if stop.asked:
            complain(f"cancelling run {prepared.id} …")
    ended, rows, is_stored = jobs.ended_run(store, prepared.id)
    code = say_how_it_ended(ended)
    if code == MeasurementFailed.exit_code and job.child.returncode == NotPossible.exit_code:
        code = job.child.returncode
    return ended, rows, code or (0 if is_stored else StoreFailed.exit_code)


def record(
    for_: Annotated[
        str | None,
        option("DURATION", "How long to record, such as 90s, 10m, 2h or 1d. Default: until Ctrl-C.", "--for"),
    ] = None,
    output: Annotated[
        Path | None,
        output_option("Also write a bundle to this file, which must not exist yet, such as night.pinscope."),
    ] = None,
    interval: Interval = 1.0,
    pid: Pids = None,
    probe: Probe = False,
    name: Name = None,
    tag: Tags = None,
    as_json: AsJson = False,
) -> int:
    """Record the live view as a timeline, which is stored as a run. Ctrl-C ends the timeline and keeps it."""
    params = TimelineParams(
        interval_seconds=interval,
        for_seconds=duration("--for", for_),
        probe=probe,
        pids=tuple(sorted(checked_pids(pid))),
    )
    if output is not None:
        check_output(output)
    run = prepare_timeline(params, capture_environment(), checked_labels(name=name, tags=tag or ()))
    watched = open_source(probe=probe, interval_seconds=interval)
    with Stop() as stop, jobs.open_store(to_write=True) as store, watched as source:
        complain(f"recording run {run.id}{f' for {for_}' if for_ else ''}; Ctrl-C ends it well")
        with progress_shown(endless=for_ is None) as show:
            recorded = TimelineRecorder(store, source.take, lambda: stop.asked, show, output).record(run)
        return _print_recorded(recorded, output, as_json)


def _print_recorded(recorded: Recorded, output: Path | None, as_json: bool) -> int:
    """Print what was recorded; the exit code that fits how it ended."""
    document = open_document(recorded.run, recorded.rows)
    if as_json:
        print_json(run_document(document))
    else:
        print_outcome(document)
    if recorded.full_after_seconds is not None:
        long = format_seconds(recorded.full_after_seconds)
        complain(f"the timeline is {long} long and ended by itself: one timeline holds no more rows")
    if recorded.saved is not None:
        complain(saved_line(recorded.saved))
    if output is not None:
        complain(f"wrote {output}")
    return say_how_it_ended(recorded.run) or (StoreFailed.exit_code if recorded.saved is not None else 0)
