"""The help of ``pinscope run``: the experiments, or what one of them asks and takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from typer.core import TyperCommand

from pinscope.experiments.contract import AnyExperiment
from pinscope.experiments.registry import EXPERIMENTS, find
from pinscope.probes.environment import capture_environment
from pinscope.records.run import LabKind
from pinscope.report.parameters import Parameter, form_parameters
from pinscope.runner.jobs import usable_gpu
from pinscope.runner.suite import ALL


class RunCommand(TyperCommand):
    """``run --help`` lists the experiments; with the name of one it shows that one only."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take note of what else stands on the line, for the help."""
        if set(args) & set(ctx.help_option_names):
            ctx.meta[__name__], _, _ = self.make_parser(ctx).parse_args(list(args))
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write it.

        Raises:
            UnknownName: there is no such experiment.
        """
        given = ctx.meta.get(__name__, {})
        name, lab = given.get("experiment"), given.get("lab")
        if isinstance(name, str) and name != ALL:
            _format_experiment(find(name).experiment, lab, formatter)
            return
        super().format_help(ctx, formatter)
        with formatter.section("Experiments"):
            formatter.write_dl([(entry.name, _summary(entry.experiment)) for entry in EXPERIMENTS])
        formatter.write_paragraph()
        formatter.write_text("What an experiment asks and takes: pinscope run EXPERIMENT --help")


def _summary(experiment: AnyExperiment) -> str:
    return f"{experiment.summary}{' (GPU only)' if experiment.labs.get('host') else ''}"


def _format_experiment(experiment: AnyExperiment, lab: str | None, formatter: Any) -> None:
    name, chosen = experiment.name, _lab(experiment, lab)
    formatter.write_usage("pinscope run", f"{name} [OPTIONS]")
    reason = experiment.labs.get("host")
    runs_on = f"It needs a GPU ({reason})." if reason else "It runs on a GPU or, without one, on the host model."
    for text in (experiment.question, runs_on):
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)
    with formatter.section("Parameters, each set by --set NAME=VALUE"):
        formatter.write_text(_defaults(chosen))
        formatter.write_paragraph()
        formatter.write_dl(parameter_help(experiment, chosen))
    formatter.write_paragraph()
    formatter.write(f"Example: {example(experiment, chosen)}\n")  # whole, to be pasted
    formatter.write_text("Options of every run: pinscope run --help")
    formatter.write_text(f"Method, and how to read the result: pinscope docs {name} --text")


def _defaults(lab: LabKind) -> str:
    """Where the defaults hold; without a GPU, how to see those on one."""
    if lab == "cuda":
        return "The defaults shown are those on a GPU."
    return "The defaults shown are those of the host model, which stands in for a GPU; --lab cuda shows those of a GPU."


def _lab(experiment: AnyExperiment, lab: str | None) -> LabKind:
    """Where it would run here; a GPU where it would be refused."""
    known = {kind: kind for kind, reason in experiment.labs.items() if reason is None}
    wanted = lab or ("cuda" if usable_gpu(capture_environment()) else "host")
    return known.get(cast("LabKind", wanted), "cuda")


def parameter_help(experiment: AnyExperiment, lab: LabKind) -> list[tuple[str, str]]:
    """Name of each parameter, and what it means, how it is written and what it is by default."""
    full, quick = experiment.Params.preset(lab, False), experiment.Params.preset(lab, True)
    found = []
    for one in form_parameters(experiment.Params):
        usual, less = one.default(getattr(full, one.name)), one.default(getattr(quick, one.name))
        default = f"[default: {usual}]" if usual == less else f"[default: {usual}; --quick: {less}]"
        found.append((one.name, " ".join(part for part in (one.description, one.takes, default) if part)))
    return found


def example(experiment: AnyExperiment, lab: LabKind) -> str:
    """A command that sets the first parameter, and the first that is on or off."""
    quick = experiment.Params.preset(lab, True)
    parameters: Sequence[Parameter] = form_parameters(experiment.Params)
    words = [f"pinscope run {experiment.name} --quick"]
    first = parameters[0]
    words.append(f"--set {first.name}={first.written(getattr(quick, first.name))}")
    switches = [one for one in parameters[1:] if one.schema.get("type") == "boolean"]
    words += [f"--set {one.name}={one.written(not getattr(quick, one.name))}" for one in switches[:1]]
    return " ".join(words)
