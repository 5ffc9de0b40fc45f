"""``pinscope doctor``: what this machine can do, and what to change."""

from __future__ import annotations

from pinscope.analysis.machine import machine_findings
from pinscope.cli.options import AsJson
from pinscope.cli.reading import print_findings
from pinscope.cli.terminal import print_json, print_line, print_table
from pinscope.errors import BadInput, NotPossible
from pinscope.probes.capabilities import capabilities
from pinscope.probes.environment import capture_environment
from pinscope.records.base import Capability
from pinscope.report.facts import environment_facts, version_text
from pinscope.store.database import place_of_runs

FORMAT = 1
"""Version of ``doctor --json``; additive changes keep it."""


def doctor(as_json: AsJson = False) -> None:
    """Check this machine: what can be measured here, its links and limits, and what to change."""
    environment, database = capture_environment(), _database()
    able, findings = capabilities(environment), machine_findings(environment)
    if as_json:
        print_json(
            {
                "format": FORMAT,
                "environment": environment.model_dump(mode="json"),
                "capabilities": [one.model_dump(mode="json") for one in able],
                "findings": [one.model_dump(mode="json") for one in findings],
                "database": database,
            }
        )
        return
    facts = [*environment_facts(environment), ("PinScope", version_text(environment)), ("Runs are kept in", database)]
    print_table(("", ""), facts, title="This machine")
    print_table(("", ""), [(one.title, _answer(one)) for one in able], title="What works here")
    print_findings(findings)
    if not findings:
        print_line("Nothing to improve was found.")


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
