"""Parameters that nobody means well with: each is answered at once, in one short line."""

from __future__ import annotations

import json
import random
import string
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pinscope.cli.run import parse_settings
from pinscope.errors import BadInput, NotPossible, PinScopeError
from pinscope.experiments.contract import budget_of
from pinscope.experiments.registry import EXPERIMENTS
from pinscope.planning.plan import PlanParams
from pinscope.probes.environment import capture_environment
from pinscope.records.environment import Environment
from pinscope.records.parameters import Inputs
from pinscope.runner.jobs import Request, prepare
from pinscope.text import error_line, quoted, visible
from pinscope.units import parse_seconds
from tests.faults.campaign import Campaign, whole_only
from tests.faults.child import run_pinscope

CPU_SECONDS = 0.5
MOST_CHARACTERS = 400
"""Of a line that says what is allowed: all 17 ways of staging fit."""
NUMBERS = (
    "0", "-1", "1e309", "-1e309", "1e-309", "nan", "inf", "1e9999", "1E18", "0x10", "1_000", "٣GiB", "３MiB", "²",
    "1,5", "1.5.5GiB", "9223372036854775807", "9223372036854775808", "18446744073709551616", "1e18", "4EiB", "true",
    "yes", "None", "null", "", " ", ",", ",,,", "[[1],[2]]", '{"a": 1}', "$(id)", "../..", "--json", "%s", "\\x00",
)  # fmt: skip
PIECES = (
    "1", "9", ",", " ", "KiB", "GiB", "e", ".", "-", "\u202e", "\u200b", "\x1b[2J", "\x9b31m", "\r", "\n", "\t", "٣",
    "漢", "\U000e0041", "🙂", "é", "'", '"', "\\", "pinned", "near", "host", "<b>", "[red]",
)  # fmt: skip
EXPERIMENT_PARAMS = {entry.experiment.name: entry.experiment for entry in EXPERIMENTS}
PLAN = "plan"


def value(rng: random.Random) -> Any:  # noqa: PLR0911 - one kind after the other
    """One that a command line, a form or a program hands over."""
    kind = rng.randrange(9)
    if kind == 0:
        return rng.choice(NUMBERS)
    if kind == 1:  # long, of one piece
        return rng.choice(PIECES) * rng.choice((60, 100, 2000, 4000, 40_000, 120_000))
    if kind == 2:
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(60)))
    if kind == 3:
        return ",".join(rng.choice(NUMBERS + PIECES) for _ in range(rng.choice((3, 50, 1000))))
    if kind == 4:
        return "".join(chr(rng.randrange(1, 0x3000)) for _ in range(rng.choice((5, 50, 5000))))
    if kind == 5:
        return "".join(rng.choice(string.digits) for _ in range(rng.randrange(1, 25))) + rng.choice(("", "KiB", "TiB"))
    if kind == 6:
        return rng.choice((10**5000, -1, 2**63, 2**64, 1e309, float("nan"), -0.0, True, None, 1.5, 10**30))
    if kind == 7:
        return rng.choice(([[1, [2, [3]]]], ("1GiB",) * 2000, {"a": {"b": 1}}, [None], [["x" * 5000]], ("",), b"1GiB"))
    return str(rng.randrange(1, 2**40) * 8)


def answer(environment: Environment, name: str, overrides: dict[str, Any]) -> None:
    """What the form and the command line call; raises what they show."""
    if name == PLAN:
        PlanParams().with_overrides(overrides)
        return
    if all(isinstance(each, str) for each in overrides.values()):
        overrides = dict(parse_settings([f"{key}={each}" for key, each in overrides.items()]))
    experiment = EXPERIMENT_PARAMS[name]
    if experiment.labs.get("host") is None:
        prepare(Request(name, "host", 0, True, overrides), environment)
    params = experiment.Params.preset("cuda", False).with_overrides(overrides)
    budget_of(experiment, params, environment)


def wrong(call: Callable[[], object]) -> str | None:
    """What is wrong with how a call answers; ``None`` if nothing is."""
    begun = time.process_time()
    problem = None
    try:
        call()
    except (BadInput, NotPossible) as error:
        problem = _line_problem(str(error))
    except PinScopeError as error:
        problem = f"{type(error).__name__}: {error}"[:300]
    except Exception:  # noqa: BLE001 - what a user would see as a traceback
        problem = traceback.format_exc()[-500:]
    seconds = time.process_time() - begun
    return problem or (f"took {seconds:.2f} s" if seconds > CPU_SECONDS else None)


def _line_problem(text: str) -> str | None:
    line = error_line(text)
    return f"{len(line)} characters: {line!r}" if len(line) > MOST_CHARACTERS else None


@pytest.fixture(scope="module")
def environment() -> Environment:
    return capture_environment()


def attempts(campaign: Campaign, count: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Number, experiment, and one or two of its parameters; what failed once comes first."""
    for kept, content in campaign.corpus():
        saved = json.loads(content)
        yield kept, saved["experiment"], saved["overrides"]
    for number in range(count):
        rng = campaign.random(number)
        name = rng.choice([*EXPERIMENT_PARAMS, PLAN])
        params: type[Inputs] = PlanParams if name == PLAN else EXPERIMENT_PARAMS[name].Params
        fields = rng.sample(list(params.model_fields), rng.choice((1, 1, 2)))
        if rng.random() < 0.02:
            fields = ["".join(rng.choice(PIECES) for _ in range(rng.choice((1, 5, 50_000)))).strip() or "x"]
        yield str(number), name, {field: value(rng) for field in fields}


def test_parameters(campaign: Campaign, environment: Environment) -> None:
    for number, name, overrides in attempts(campaign, campaign.size(sample=300, whole=10_000)):
        campaign.count("parameters")
        if problem := wrong(lambda name=name, overrides=overrides: answer(environment, name, overrides)):
            texts = {key: each if isinstance(each, str) else quoted(each) for key, each in overrides.items()}
            kept = json.dumps({"experiment": name, "overrides": texts}).encode()
            campaign.fail(f"{number} {name} {quoted(str(texts))}: {problem}", kept, f"{name}-{number}.json")


LONG = "1" * 100_000
COMMANDS: tuple[tuple[dict[str, str], tuple[str, ...]], ...] = (
    ({}, ("live", "--interval", LONG)), ({}, ("live", "--interval", f"{LONG}x")), ({}, ("live", "--pid", LONG)),
    ({}, ("live", f"--{LONG}")), ({}, (LONG,)), ({}, ("run", LONG)), ({}, ("run", "bandwidth", "--lab", LONG)),
    ({}, ("run", "bandwidth", "--device", LONG)), ({}, ("run", "bandwidth", "--lab", "host", "--set", f"{LONG}=1")),
    ({}, ("run", "all", "--set", LONG)), ({}, ("record", "--for", LONG)), ({}, ("runs", "show", LONG)),
    ({}, ("runs", "delete", f"\u202e{LONG}", "--yes")), ({}, ("plan", "--pinned", LONG)),
    ({}, ("plan", "--pinned", "1GiB", "--page-size", LONG)), ({}, ("plan", "--pinned", "1GiB", "--total-gpus", LONG)),
    ({}, ("exporter", "--address", LONG)), ({}, ("exporter", "--port", LONG)), ({}, ("dashboard", "--port", LONG)),
    ({}, ("report", LONG, "-o", "x.html")), ({}, ("report", "x", "-o", f"{LONG}.html")), ({}, ("import", LONG)),
    ({"PINSCOPE_PORT": LONG}, ("dashboard",)), ({"PINSCOPE_PORT": "٣٣٣٣"}, ("dashboard",)),
    ({"PINSCOPE_PORT": "\u202e1"}, ("dashboard",)), ({"PINSCOPE_DATABASE": LONG}, ("runs", "list")),
    ({"PINSCOPE_DATABASE": f"{LONG}://x"}, ("runs", "list")),
    ({"PINSCOPE_DATABASE": f"sqlite:////nowhere/{LONG}"}, ("runs", "list")),
)  # fmt: skip


@whole_only
def test_options_and_environment_variables(campaign: Campaign) -> None:
    for variables, arguments in COMMANDS:
        _command(campaign, variables, *arguments)


def test_durations_are_read_in_linear_time(campaign: Campaign) -> None:
    for text in (LONG, f"{LONG}s", " " * 100_000, "٣s", "1e5s", "\x1b[2J"):
        campaign.count("parameters")
        if problem := wrong(lambda text=text: parse_seconds(text)):
            campaign.fail(f"{text[:50]!r}: {problem}")


def _command(campaign: Campaign, variables: dict[str, str], *arguments: str) -> None:
    """Refused with exit 2 (1: the database cannot be opened; 0: there is none yet), in one line on stderr."""
    done = run_pinscope(*arguments, environment=variables)
    campaign.count("parameters")
    lines = done.stderr.splitlines()
    shown = " ".join(arguments)[:100]
    if done.exit_code not in ((0, 1, 2) if "PINSCOPE_DATABASE" in variables else (2,)) or done.traceback:
        campaign.fail(f"{shown!r}: exit {done.exit_code}: {done.stderr[:300]!r}")
    elif len(lines) != 1 or visible(lines[0]) != lines[0] or len(lines[0]) > MOST_CHARACTERS + len("pinscope: "):
        campaign.fail(f"{shown!r}: {len(lines)} lines, {len(done.stderr)} characters: {done.stderr[:400]!r}")
