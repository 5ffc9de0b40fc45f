"""``pinscope fleet``: the same question on many hosts, and what their answers say together."""

from __future__ import annotations

import csv
import secrets
import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pinscope.cli.fleet_view import baseline, outliers, show
from pinscope.cli.main import AsJson, duration, option
from pinscope.cli.outcome import progress_shown
from pinscope.cli.run import Quick, Settings, experiment_names, parse_settings
from pinscope.cli.terminal import Stop, complain, print_json, print_line, print_table
from pinscope.errors import BadInput, Cancelled, MeasurementFailed, StoreFailed
from pinscope.records.run import LabKind, Run
from pinscope.report.facts import place
from pinscope.store.store import Store
from pinscope.text import one_line

if TYPE_CHECKING:
    from pinscope.fleet.campaign import Asked, Missing, Result

app = typer.Typer(
    add_completion=False, help="Run experiments on many hosts, and compare the hosts.", rich_markup_mode=None
)


app.command("show", short_help="Which GPUs are worse than others like them, in what, and why.")(show)
app.command("outliers", short_help="Only who is worse, a line each; for cron.")(outliers)
app.add_typer(baseline, name="baseline")


@app.callback()
def _fleet() -> None:
    """Run experiments on many hosts, and compare the hosts."""


@app.command("run", short_help="Run experiments on every GPU of many hosts.")
def run(
    experiments: Annotated[
        list[str],
        typer.Argument(metavar="EXPERIMENT|all", help="Experiments, in this order.", autocompletion=experiment_names),
    ],
    scheduler: Annotated[
        str | None,
        option(
            "ADDRESS", "Hosts of a Dask cluster that stands, such as tls://head:8786. TLS as in Dask's configuration."
        ),
    ] = None,
    local: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="N workers on this machine; several pretend to be a host each."),
    ] = None,
    ssh: Annotated[
        str | None, option("HOSTS", "Hosts that ssh reaches without asking: by comma, or @FILE with one a line.")
    ] = None,
    slurm: Annotated[int | None, typer.Option(min=1, metavar="N", help="N nodes, by srun.")] = None,
    kubernetes: Annotated[int | None, typer.Option(min=1, metavar="N", help="N nodes, by kubectl.")] = None,
    image: Annotated[str | None, option("IMAGE", "Of --kubernetes: the image with PinScope.")] = None,
    gpus: Annotated[
        int, typer.Option(min=0, metavar="N", help="Of --kubernetes: GPUs of a node that are asked for.")
    ] = 1,
    options: Annotated[
        str, option("TEXT", "Further options of ssh, srun or kubectl, such as '--partition=gpu --gres=gpu:8'.")
    ] = "",
    python: Annotated[
        str | None, option("PATH", "The Python with PinScope there. Default: the path of this one.")
    ] = None,
    listen: Annotated[
        str | None,
        option(
            "ADDRESS", "Where workers reach this machine. Default: 127.0.0.1 for --local, else its outward address."
        ),
    ] = None,
    at_once: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most N hosts measure at once. Default: all.")
    ] = None,
    limit: Annotated[
        str, option("DURATION", "How long one run may take, its turn in the queue included. Default: 30m.")
    ] = "30m",
    join: Annotated[str, option("DURATION", "How long hosts are waited for. Default: 2m.")] = "2m",
    campaign: Annotated[
        str | None,
        option(
            "NAME", "What its runs belong to, as the tag fleet=NAME. Of a name that is there only what is missing runs."
        ),
    ] = None,
    label: Annotated[
        list[str] | None, option("KEY=VALUE", "A tag of all its runs, such as rack=r12; may be repeated.")
    ] = None,
    labels: Annotated[
        Path | None, option("FILE", "Tags by host: a CSV file with the column host, and one a label, such as rack.")
    ] = None,
    lab: Annotated[LabKind, option("cuda|host", "On GPUs (cuda), or on the host model.")] = "cuda",
    quick: Quick = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> int:
    """Run experiments on every GPU of many hosts, and store what comes. Ctrl-C ends all of it."""
    from pinscope.fleet import cluster, launch
    from pinscope.fleet.campaign import Asked, Campaign, requests

    asked = Asked(
        campaign or f"{datetime.now(UTC):%Y%m%d-%H%M}-{secrets.token_hex(2)}",
        requests(experiments, lab, quick, parse_settings(settings or ())),
        tuple(map(_label, label or ())),
        _host_labels(labels) if labels else {},
        duration("--limit", limit) or 0.0,
        duration("--join", join) or 0.0,
        at_once,
    )
    further = shlex.split(options)
    plans = {
        "--scheduler": None,
        "--local": local and launch.local(local),
        "--ssh": ssh and launch.ssh(_hosts(ssh), further, python),
        "--slurm": slurm and launch.slurm(slurm, further, python),
        "--kubernetes": kubernetes and launch.kubernetes(kubernetes, image, gpus, further, python),
    }
    given = [plan for plan in plans.values() if plan]
    if len(given) + (scheduler is not None) != 1:
        raise BadInput(f"fleet run takes one of {', '.join(plans)}: where the hosts are")
    listen = listen or ("127.0.0.1" if local else None)
    way = cluster.existing(scheduler) if scheduler else cluster.own(asked.campaign, given[0], listen)
    with Stop() as stop, Store() as store:
        if store.refusal:
            raise StoreFailed(f"nothing can be stored in {store.name}: {store.refusal}")
        complain(f"campaign {asked.campaign}; Ctrl-C ends it and keeps what is stored")
        with progress_shown() as show, way as there:
            result = Campaign(there, store, asked, lambda: stop.asked, show).carry_out()
    _print(asked, result, as_json)
    return Cancelled.exit_code if stop.asked else MeasurementFailed.exit_code if result.missing else 0


def _read(file: Path) -> list[str]:
    """The lines of a file.

    Raises:
        BadInput: it cannot be read.
    """
    try:
        return file.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise BadInput(f"{file}: {getattr(error, 'strerror', None) or 'it is not text'}") from None


def _hosts(text: str) -> list[str]:
    """The hosts of ``--ssh``, each once.

    Raises:
        BadInput: there are none.
    """
    words = _read(Path(text[1:])) if text.startswith("@") else text.split(",")
    if not (hosts := list(dict.fromkeys(filter(None, map(str.strip, words))))):
        raise BadInput("--ssh takes hosts, such as node1,node2 or @hosts.txt")
    return hosts


def _label(text: str) -> str:
    key, separator, value = text.partition("=")
    if not (key and separator and value):
        raise BadInput(f"--label takes KEY=VALUE, such as rack=r12; not {text!r}")
    return text


def _host_labels(file: Path) -> dict[str, list[str]]:
    """Host → its labels as tags.

    Raises:
        BadInput: the file has no column ``host``.
    """
    rows = list(csv.DictReader(_read(file)))
    if not all(row.get("host") and None not in row for row in rows):
        raise BadInput(
            f"{file}: the first line names its columns: host, and one a label; each further line has as many"
        )
    return {row.pop("host"): [f"{key}={value}" for key, value in row.items() if value] for row in rows}


def _print(asked: Asked, result: Result, as_json: bool) -> None:
    if as_json:
        done = {"stored": result.stored, "already": result.already}
        runs = {key: [_run_object(run) for run in some] for key, some in done.items()}
        print_json({"campaign": asked.campaign, **runs, "missing": [asdict(line) for line in result.missing]})
        return
    if result.stored:
        rows = [
            (run.environment.host, run.id, run.experiment, place(run), one_line(run.verdict or run.status))
            for run in result.stored
        ]
        print_table(("host", "id", "experiment", "on", "answer"), rows, title=f"Campaign {asked.campaign}")
    if result.missing:
        print_table(
            ("host", "what", "why"), [(line.host, _what(line), line.reason) for line in result.missing], title="Missing"
        )
    there = f", {len(result.already)} were there" if result.already else ""
    print_line(f"{len(result.stored)} runs stored{there}, {len(result.missing)} missing.")
    if known := [*result.stored, *result.already]:
        lab = " --lab host" if known[0].lab == "host" else ""
        print_line("Next:")
        for experiment in dict.fromkeys(run.experiment for run in known):
            print_line(f"  pinscope fleet show {experiment}{lab}")
        print_line(f"  pinscope runs list --tag {asked.tag}")
    if result.missing:
        print_line(f"The same command with --campaign {asked.campaign} runs what is missing.")


def _what(line: Missing) -> str:
    return f"{line.experiment}, GPU {line.device}" if line.experiment else "all that is left"


def _run_object(run: Run) -> dict[str, Any]:
    chosen = {"id", "experiment", "device", "status"}
    return {"host": run.environment.host, **run.model_dump(mode="json", include=chosen)}
