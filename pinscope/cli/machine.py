"""``pinscope doctor`` and ``pinscope plan``: what this machine can do, and what pinning an amount takes on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

from pinscope.analysis.machine import machine_findings
from pinscope.cli.main import AsJson, switch
from pinscope.cli.outcome import print_below_verdict, print_findings
from pinscope.cli.terminal import print_json, print_line, print_prose, print_table
from pinscope.errors import BadInput, InvalidParameter, NotPossible
from pinscope.planning.plan import OPTIONS, Level, PlanParams, amount_words, safety_of
from pinscope.planning.reading import origin_words, plan_as_stated
from pinscope.probes.environment import capabilities, capture_environment
from pinscope.records.base import Capability
from pinscope.report.facts import environment_facts, version_text
from pinscope.report.write import plan_document
from pinscope.store.database import place_of_runs
from pinscope.store.store import Store
from pinscope.units import format_bytes

FORMAT = 1
"""Version of ``doctor --json``; additive changes keep it."""


def doctor(
    check: Annotated[bool, switch("--check", "Exit with code 1 where something is worse than it should be.")] = False,
    as_json: AsJson = False,
) -> int:
    """Check this machine: what can be measured here, its links and limits, and what to change."""
    environment, database = capture_environment(), _database()
    abilities, findings = capabilities(environment), machine_findings(environment)
    code = int(check and any(finding.severity in ("warning", "critical") for finding in findings))
    if as_json:
        print_json(
            {
                "format": FORMAT,
                "environment": environment.model_dump(mode="json"),
                "capabilities": [ability.model_dump(mode="json") for ability in abilities],
                "findings": [finding.model_dump(mode="json") for finding in findings],
                "database": database,
            }
        )
        return code
    facts = [*environment_facts(environment), ("PinScope", version_text(environment)), ("Runs are kept in", database)]
    print_table(("", ""), facts, title="This machine")
    print_table(("", ""), [(ability.title, _answer(ability)) for ability in abilities], title="What works here")
    print_findings(findings)
    if not findings:
        print_line("Nothing to improve was found.")
    return code


def _database() -> str:
    """Where runs are kept, or why that cannot be said: the doctor answers all the same."""
    try:
        return place_of_runs()
    except (BadInput, NotPossible) as error:
        return f"n/a ({error})"


def _answer(capability: Capability) -> str:
    """Whether it works; if not, why not and what to do."""
    if capability.works:
        return "works"
    return f"no: {capability.reason}" + (f". {capability.advice}" if capability.advice else "")


_HELP = {name: field.description for name, field in PlanParams.model_fields.items()}
"""The form of the dashboard says the same."""
_STYLES: Mapping[Level, str] = {
    "safe": "bold green",
    "care": "bold yellow",
    "not_safe": "bold red",
    "unknown": "yellow",
    "elsewhere": "bold cyan",
}


def plan(
    pinned: Annotated[str | None, typer.Option(metavar="SIZE", help=_HELP["pinned"])] = None,
    pinned_total: Annotated[str | None, typer.Option(metavar="SIZE", help=_HELP["pinned_total"])] = None,
    processes: Annotated[int, typer.Option(metavar="N", help=_HELP["processes"])] = 1,
    shared: Annotated[bool, switch("--shared", _HELP["shared"])] = False,
    through: Annotated[str, typer.Option(metavar="any|cuda|pytorch|cupy", help=_HELP["through"])] = "any",
    gpus: Annotated[int, typer.Option(OPTIONS["gpus"], metavar="N", help=_HELP["gpus"])] = 1,
    all_gpus: Annotated[int, typer.Option(OPTIONS["all_gpus"], metavar="N", help=_HELP["all_gpus"])] = 1,
    gpu_memory: Annotated[str | None, typer.Option(metavar="SIZE", help=_HELP["gpu_memory"])] = None,
    like: Annotated[str, typer.Option(metavar="RUN|GPU", help=_HELP["like"], show_default=False)] = "",
    host_memory: Annotated[str | None, typer.Option(metavar="SIZE", help=_HELP["host_memory"])] = None,
    page_size: Annotated[str | None, typer.Option(metavar="4KiB|64KiB|2MiB", help=_HELP["page_size"])] = None,
    as_json: AsJson = False,
) -> None:
    """Calculate what pinned memory will take: page tables, contexts, time, and a safe amount. Nothing is pinned."""
    stated = {name: value for name, value in locals().items() if name in _HELP and value is not None}
    if (pinned is None) == (pinned_total is None):
        raise InvalidParameter("give --pinned, for each process, or --pinned-total, their sum: one of the two")
    with Store(at_once=False) as store:
        answer, reading = plan_as_stated(stated, store, capture_environment())
    if as_json:
        print_json(plan_document(answer, reading))
        return
    print_prose(reading.verdict or "", style=_STYLES[safety_of(answer).level])
    print_line()
    pages = f"pages of {format_bytes(round(answer.price.page_bytes))}, {origin_words(answer.price.origin)}"
    print_prose(
        f"{amount_words(answer.demand)} pinned; {pages}; GPUs of {format_bytes(answer.demand.gpu_memory_bytes)}"
    )
    print_line()
    print_below_verdict(reading)
