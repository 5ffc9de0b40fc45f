"""``pinscope run``: measure, follow the child, and tell what came out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from pinscope.cli.following import follow, say_how_it_ended
from pinscope.cli.options import AsJson
from pinscope.cli.reading import print_outcome
from pinscope.cli.run_help import RunCommand
from pinscope.cli.stop import Stop
from pinscope.cli.terminal import complain, print_json
from pinscope.errors import BadInput, InvalidParameter, MeasurementFailed, NotPossible, StoreFailed, UnknownName
from pinscope.experiments.registry import EXPERIMENTS
from pinscope.probes.environment import capture_environment
from pinscope.records.environment import Environment
from pinscope.records.run import LAB_TITLES, ExperimentRun, LabKind, Run
from pinscope.report.document import open_document
from pinscope.report.json_report import run_document
from pinscope.runner.jobs import Request, cancel, mark_interrupted, prepare, reconcile, start, usable_gpu
from pinscope.runner.suite import ALL, select
from pinscope.store.bundle import read_bundle
from pinscope.store.rescue import find_saved
from pinscope.store.rows import Row
from pinscope.store.store import Store
from pinscope.text import quoted

PATIENCE_SECONDS = 15.0
"""How long a database may be away when a run has ended, until its result is not printed."""


app = typer.Typer(add_completion=False, rich_markup_mode=None)


def experiment_names() -> list[tuple[str, str]]:
    """The experiments and what each is about: for the shell's completion."""
    return [*((entry.name, entry.experiment.summary) for entry in EXPERIMENTS), (ALL, "All of them")]


@app.command("run", cls=RunCommand)
def run(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT|all",
            help="Name of an experiment, or all of them.",
            show_default=False,
            autocompletion=experiment_names,
        ),
    ],
    lab: Annotated[
        str | None,
        typer.Option(
            metavar="cuda|host",
            help="Where to run: on a GPU (cuda), or on the host model, which needs none. Default: on a GPU if one can "
            "be used here.",
            autocompletion=lambda: ["cuda", "host"],
        ),
    ] = None,
    device: Annotated[int, typer.Option(metavar="N", help="Number of the GPU, as nvidia-smi counts them.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer sizes and repeats: seconds instead of minutes.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a parameter of the experiment, such as sizes=64KiB,1MiB, all_devices=off or precision=2%; "
            "may be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Run an experiment and print its result; with --json, every observation too. Ctrl-C cancels and keeps its data."""
    environment = capture_environment()
    chosen = cast("LabKind | None", lab)  # prepare() checks that it is one
    asked = Request(experiment, chosen, device, quick, parse_settings(settings or ()))
    selection = select(asked, environment)
    for line in selection.left_out:
        complain(f"left out: {line}")
    _say_which_lab(lab, environment)
    documents: list[dict[str, Any]] = []
    code = 0
    store = Store()
    with Stop(hangup=True) as stop, store:  # closed before a signal can end this again
        reconcile(store)
        for request in selection.requests:
            ended, rows, run_code = _measure(store, prepare(request, capture_environment()), stop)
            document = open_document(ended, rows, with_charts=False)
            if as_json:
                documents.append(run_document(document))
            else:
                print_outcome(document)
            code = code or run_code
            if stop.asked:
                break
    if as_json:
        print_json({"format": documents[0]["format"], "runs": documents} if experiment == ALL else documents[0])
    return code


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """``key=value`` texts as a mapping.

    Raises:
        InvalidParameter: no ``=``, no key, or a key given twice.
    """
    settings: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        key = key.strip()
        if not separator or not key:
            raise InvalidParameter(f"--set takes KEY=VALUE, such as sizes=4KiB,1MiB; not {quoted(text)}")
        if key in settings:
            raise InvalidParameter(f"--set {key} is given twice; give several values by comma")
        settings[key] = value.strip()
    return settings


def _say_which_lab(lab: str | None, environment: Environment) -> None:
    if lab is None and not usable_gpu(environment):
        complain(f"no usable GPU here (pinscope doctor says why): this runs on the {LAB_TITLES['host']}")


def _measure(store: Store, prepared: ExperimentRun, stop: Stop) -> tuple[Run, Sequence[Row], int]:
    """Start the child, follow it to its end; the run as it ended, its observations, and the exit code that fits.

    A run that failed or was stopped is reported on stderr at once; its result is still printed.
    """
    job = start(store, prepared)
    follow(store, prepared, job, stop)
    if stop.asked:
        complain(f"cancelling run {prepared.id} …")
        try:
            cancel(store, prepared.id)
        except (BadInput, StoreFailed):  # it has just ended, or the database fails: it saves what that does not take
            job.stop()
    child_code = job.wait()
    ended, rows, is_stored = _ended(store, prepared.id)
    code = say_how_it_ended(ended)
    if code == MeasurementFailed.exit_code and child_code == NotPossible.exit_code:
        code = child_code
    return ended, rows, code or (0 if is_stored else StoreFailed.exit_code)


def _ended(store: Store, run_id: str) -> tuple[Run, Sequence[Row], bool]:
    """A run whose child has ended, its observations, and whether the database has them.

    What the database did not take, the child has saved to a bundle. A database that fails in this very moment is
    waited for: it may have the run whole.

    Raises:
        MeasurementFailed: somebody deleted the run.
        StoreFailed: the database does not come back.
    """
    if saved := find_saved(run_id):
        ((ended, rows),) = read_bundle(saved)
        return ended, rows, False
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if store.run(run_id).status == "running":  # killed before it could say how it ended
                mark_interrupted(store, run_id)
            return store.run(run_id), store.observations(run_id), True
        except UnknownName:
            raise MeasurementFailed(f"run {run_id} is no longer in the database; was it deleted?") from None
        except StoreFailed as error:
            if time.monotonic() > deadline:
                raise StoreFailed(
                    f"run {run_id} has ended, but cannot be read: {error}; "
                    f"pinscope runs show {run_id} shows it when that has passed"
                ) from None
            time.sleep(0.5)
