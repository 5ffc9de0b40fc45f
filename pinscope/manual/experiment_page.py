"""The page of an experiment: what its code says of itself, around what docs/experiments/ says of its results."""

from __future__ import annotations

from collections.abc import Iterator

from pinscope.analysis.kind import AnyKind
from pinscope.experiments.registry import EXPERIMENTS, find_reader, method, split_page
from pinscope.records.parameters import Inputs
from pinscope.report.parameters import form_parameters

BAR = r"\|"


def experiment_page(name: str, body: str, *, has_picture: bool) -> str:
    """Question, method and chart, the body, then the parameters and where the raw data is explained.

    Args:
        name: of the experiment.
        body: how to read it and what to do, as Markdown; may be empty.
        has_picture: whether ``pictures/NAME.png`` exists.
    """
    return "\n\n".join(part for part in _parts(find_reader(name).kind, body.strip(), has_picture) if part) + "\n"


def _parts(kind: AnyKind, body: str, has_picture: bool) -> Iterator[str]:
    yield f"# {kind.title}"
    yield f"**{kind.question}**"
    if has_picture:
        yield f"![{kind.title}: a recorded run](../pictures/{kind.name}.png)"
    yield split_page(body)[1].strip()
    yield f"## Method\n\n{method(kind)}"
    labs = next((entry.experiment.labs for entry in EXPERIMENTS if entry.name == kind.name), {})
    yield "\n".join(f"It does not run on the host model: {reason}." for reason in [labs.get("host")] if reason)
    if labs:
        yield (
            f"## Parameters\n\nSet one with `pinscope run {kind.name} --set NAME=VALUE`. The defaults are those of a "
            f"run on a GPU; `pinscope run {kind.name} --help` shows those of a run on this machine."
        )
        yield _parameters(kind.Params)
    anchor = f"observations-of-{kind.name}"
    yield f"## Raw data\n\nThe keys of an observation are in the [JSON reference](../reference/json.md#{anchor})."


def _parameters(params: type[Inputs]) -> str:
    lines = ["| parameter | meaning | default | with `--quick` |", "| --- | --- | --- | --- |"]
    full, quick = params.preset("cuda", False), params.preset("cuda", True)
    for one in form_parameters(params):
        usual, less = one.default(getattr(full, one.name)), one.default(getattr(quick, one.name))
        cells = (f"`{one.name}`", f"{one.description} {one.takes}", usual, less if less != usual else "")
        lines.append(f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |")
    return "\n".join(lines)
