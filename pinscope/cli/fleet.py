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

from pinscope.analysis.outliers import Fleet
from pinscope.cli.check import File, keep_baseline
from pinscope.cli.main import AsJson, duration, group, option, output_option, switch
from pinscope.cli.outcome import print_parts, progress_shown
from pinscope.cli.run import Quick, Settings, parse_settings, several_experiments
from pinscope.cli.terminal import Stop, complain, print_json, print_line, print_table
from pinscope.errors import BadInput, Cancelled, MeasurementFailed, NotPossible
from pinscope.experiments.registry import find
from pinscope.records.run import LAB_TITLES, LabKind, Run
from pinscope.report import fleet as report
from pinscope.runner.jobs import open_store
from pinscope.store.figures import experiments_with_figures
from pinscope.store.new_file import check_new, write_new
from pinscope.store.store import Store
from pinscope.text import one_line
from pinscope.units import format_bytes

if TYPE_CHECKING:
    from pinscope.fleet.campaign import Asked, Campaign

app = group("Run experiments on many hosts, and compare them.")
baseline = group("Keep the fleet's own figures, for check.")
app.add_typer(baseline, name="baseline")


def count(meaning: str, *names: str, least: int = 1) -> Any:
    """An option that is a number of things."""
    return typer.Option(*names, min=least, metavar="N", help=meaning, show_default=False)


Names = Annotated[list[str] | None, several_experiments("Whose runs; without one, all that have runs.")]
Lab = Annotated[LabKind, option("cuda|host", "Runs on GPUs, or of the host model.")]


@app.command("run", short_help="Run experiments on every GPU of many hosts.")
def run(
    experiments: Annotated[list[str], several_experiments("Experiments, in this order.", "EXPERIMENT|all")],
    scheduler: Annotated[str | None, option("ADDRESS", "A Dask cluster that stands, as tls://head:8786.")] = None,
    local: Annotated[int | None, count("Workers on this machine, each as a host of its own.")] = None,
    ssh: Annotated[str | None, option("HOSTS", "Hosts by comma, or @FILE with one a line; ssh asks nothing.")] = None,
    slurm: Annotated[int | None, count("Nodes, by srun.")] = None,
    kubernetes: Annotated[int | None, count("Nodes, by kubectl.")] = None,
    image: Annotated[str | None, option("IMAGE", "Of --kubernetes: the image with PinScope.")] = None,
    gpus: Annotated[int, count("Of --kubernetes: GPUs of a node that are asked for.", least=0)] = 1,
    options: Annotated[str, option("TEXT", "Further options of ssh, srun or kubectl, as '--gres=gpu:8'.")] = "",
    python: Annotated[str | None, option("PATH", "The Python with PinScope there. Default: as here.")] = None,
    listen: Annotated[str | None, option("ADDRESS", "This machine, as workers reach it. Default: known.")] = None,
    at_once: Annotated[int | None, count("Hosts that measure at once, at most. Default: all, --local 1.")] = None,
    limit: Annotated[str, option("DURATION", "How long a run and its queueing may take. Default: 30m.")] = "30m",
    join: Annotated[str, option("DURATION", "How long hosts are waited for. Default: 2m.")] = "2m",
    campaign: Annotated[str | None, option("NAME", "A name, as a tag fleet=NAME; its runs stay.")] = None,
    label: Annotated[list[str] | None, option("KEY=VALUE", "A tag of all its runs, as rack=r12; repeatable.")] = None,
    labels: Annotated[Path | None, option("FILE", "Tags by host: CSV, a column host and one a label.")] = None,
    lab: Lab = "cuda",
    quick: Quick = False,
    settings: Settings = None,
    as_json: AsJson = False,
) -> int:
    """Run experiments on every GPU of many hosts, and store what comes. Ctrl-C ends all of it."""
    from pinscope.fleet import cluster
    from pinscope.fleet.campaign import Asked, Campaign, requests

    asked = Asked(
        campaign or f"{datetime.now(UTC):%Y%m%d-%H%M}-{secrets.token_hex(2)}",
        requests(experiments, lab, quick, parse_settings(settings or ())),
        tuple(f"{key}={value}" for key, value in parse_settings(label or (), "--label", "rack=r12").items()),
        _host_labels(labels) if labels else {},
        duration("--limit", limit) or 0.0,
        duration("--join", join) or 0.0,
        at_once or (1 if local else None),  # hosts that one machine pretends to be share its processors and links
        lab,
    )
    further = shlex.split(options)
    plans = {
        "--scheduler": None,
        "--local": local and cluster.local(local),
        "--ssh": ssh and cluster.ssh(_hosts(ssh), further, python),
        "--slurm": slurm and cluster.slurm(slurm, further, python),
        "--kubernetes": kubernetes and cluster.kubernetes(kubernetes, image, gpus, further, python),
    }
    given = [plan for plan in plans.values() if plan]
    if len(given) + (scheduler is not None) != 1:
        raise BadInput(f"fleet run takes one of {', '.join(plans)}: where the hosts are")
    listen = listen or ("127.0.0.1" if local else None)
    way = cluster.existing(scheduler) if scheduler else cluster.own(asked.campaign, given[0], listen)
    with Stop() as stop, open_store(to_write=True) as store:
        complain(f"campaign {asked.campaign}; Ctrl-C ends it and keeps what is stored")
        with progress_shown() as show, way as there:
            result = Campaign(there, store, asked)
            result.carry_out(lambda: stop.asked, show)
    _print_campaign(asked, result, as_json)
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


def _host_labels(file: Path) -> dict[str, list[str]]:
    """Host → its labels as tags.

    Raises:
        BadInput: the file has no column ``host``.
    """
    rows = list(csv.DictReader(_read(file)))
    if not all(row.get("host") and None not in row for row in rows):
        raise BadInput(f"{file}: its first line says its columns, host, and one a label; each line has as many")
    return {row.pop("host"): [f"{key}={value}" for key, value in row.items() if value] for row in rows}


def _print_campaign(asked: Asked, result: Campaign, as_json: bool) -> None:
    if as_json:
        stored, already = ([_run_object(run) for run in some] for some in (result.stored, result.already))
        missing = [asdict(line) for line in result.missing]
        print_json({"campaign": asked.campaign, "stored": stored, "already": already, "missing": missing})
        return
    rows = [(run.environment.host, _what(run), run.id, one_line(run.verdict or run.status)) for run in result.stored]
    rows += [(line.host, _what(line), "missing", line.reason) for line in result.missing]
    print_table(("host", "what", "run", "answer"), rows, title=f"Campaign {asked.campaign}")
    there = f", {len(result.already)} were there" if result.already else ""
    print_line(f"{len(result.stored)} runs stored{there}, {len(result.missing)} missing.")
    lab = " --lab host" if asked.lab == "host" else ""
    print_line(f"Next: pinscope fleet show {' '.join(request.experiment for request in asked.requests)}{lab}")
    print_line(f"Its runs: pinscope runs list --tag {asked.tag}")
    if result.missing:
        print_line(f"The same command with --campaign {asked.campaign} runs what is missing.")


def _what(of: Any) -> str:
    return f"{of.experiment}, GPU {of.device}" if of.experiment else "all that is left"


def _run_object(run: Run) -> dict[str, Any]:
    chosen = {"id", "experiment", "device", "status"}
    return {"host": run.environment.host, **run.model_dump(mode="json", include=chosen)}


# What the runs of many hosts say together


@app.command("show", short_help="Which GPUs are worse than others like them, in what, and why.")
def show(
    experiments: Names = None,
    label: Annotated[str | None, option("NAME", "Map by this label: as rack, of tags as rack=r7; or host.")] = None,
    lab: Lab = "cuda",
    everything: Annotated[bool, switch("--all", "Show also each figure and each GPU.")] = False,
    output: Annotated[Path | None, output_option("Write a report: a new file, .html, .csv or .json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the runs of many hosts together: of each GPU its newest runs, held against those of GPUs like it."""
    if output is not None:
        check_new(output, *report.SUFFIXES)
    fleets = _fleets(experiments, lab)
    if output is not None:
        if len(fleets) > 1:
            raise BadInput(f"a report is of one of {', '.join(fleet.experiment for fleet in fleets)}; name it")
        write_new(output, [report.render(fleets[0], output.suffix.lower(), label)])
        print_line(f"Wrote {output} ({format_bytes(output.stat().st_size)}).")
    elif as_json:
        print_json([report.fleet_document(fleet) for fleet in fleets])
    else:
        for fleet in fleets:
            further = [report.spread_table(fleet), report.gpu_table(fleet, label)] if everything else ()
            parts = (report.outlier_table(fleet, label), *further)
            print_parts(fleet.experiment, fleet.lab, report.verdict(fleet), parts)
        if not everything:
            print_line("Also every figure and every GPU: --all.")


@app.command("outliers", short_help="Only who is worse, a line each; for cron.")
def outliers(experiments: Names = None, lab: Lab = "cuda", as_json: AsJson = False) -> int:
    """Name the GPUs that are worse than others like them, a line each, with what explains it.

    A GPU is named where at least two of its runs agree. Exit code 0: there is none; 1: there are some; 3: too few are
    alike to tell. So cron, which mails what a command writes, tells when one comes."""
    fleets = _fleets(experiments, lab)
    if as_json:
        print_json([{key: document[key] for key in _BRIEF} for document in map(report.fleet_document, fleets)])
    else:
        for fleet in fleets:
            for outlier in fleet.outliers:
                print_line(f"{fleet.experiment}: {outlier.line}")
            for suspect in fleet.suspects:
                complain(f"run it again: {fleet.experiment}: {suspect.line}")
    if any(fleet.outliers for fleet in fleets):
        return 1
    if untold := [fleet for fleet in fleets if len(fleet.alone) == len(fleet.gpus)]:
        said = (f"{fleet.experiment}, {report.verdict(fleet).removesuffix('.')}" for fleet in untold)
        raise NotPossible("; ".join(said))
    return 0


_BRIEF = ("format", "experiment", "lab", "verdict", "outliers", "suspects")


@baseline.command("write", short_help="Write the fleet's own figures as a baseline of check.")
def write(file: File, experiments: Names = None, lab: Lab = "cuda", as_json: AsJson = False) -> None:
    """Write the figures of GPUs that are alike and not worse than others: what this fleet's hardware does.

    How far these GPUs lie apart is in the file: a host that is checked against it may differ as much."""
    check_new(file)
    fleets = _fleets(experiments, lab)
    with Store() as store:
        baseline = report.fleet_baseline(store, fleets)
    keep_baseline(file, baseline, as_json, " --other-machine")


def _fleets(experiments: list[str] | None, lab: LabKind) -> list[Fleet]:
    for name in experiments or ():
        find(name)
    with Store() as store:
        names = experiments or [name for name, of, _ in experiments_with_figures(store) if of == lab]
        if not names:
            further = "name an experiment, import runs, or give another --lab"
            raise BadInput(f"no finished run on {LAB_TITLES[lab]} with figures; {further}")
        return [report.read_fleet(store, name, lab, complain) for name in names]
