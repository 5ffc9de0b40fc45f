"""Options that commands share, and checks of what they were given."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

import typer

from pinscope.errors import BadInput, InvalidParameter
from pinscope.probes.proc import HERE
from pinscope.units import parse_seconds

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunId = Annotated[str, typer.Argument(metavar="ID", help="Id of a run; its beginning is enough.", show_default=False)]
RunIds = Annotated[list[str], typer.Argument(metavar="ID", help="Ids of runs; the beginning of an id is enough.")]
Interval = Annotated[
    float,
    typer.Option(min=0.1, max=3600, metavar="SECONDS", help="Seconds from one snapshot to the next, 0.1 to 3600."),
]
Pids = Annotated[
    list[int] | None, typer.Option("--pid", metavar="PID", help="Only this process among the holders; may be repeated.")
]
Gpus = Annotated[
    bool, typer.Option("--gpu/--no-gpu", help="Include the figures of the GPUs, which NVIDIA's driver gives.")
]
PROBE_HELP = (
    "Also trace the calls that register memory (cudaHostRegister) or allocate it (cudaHostAlloc, cuMemCreate). Calls "
    "made before PinScope started are not seen. Needs root."
)
Probe = Annotated[bool, typer.Option("--probe", help=PROBE_HELP)]


def output_option(meaning: str) -> Any:
    """The option for the file that a command writes."""
    return typer.Option("-o", "--output", metavar="FILE", help=meaning, show_default=False)


def duration(option: str, text: str | None) -> float | None:
    """Seconds that an option was given; ``None`` where it was not.

    Raises:
        InvalidParameter: not a duration.
    """
    try:
        return None if text is None else parse_seconds(text)
    except InvalidParameter as error:
        raise InvalidParameter(f"{option}: {error}") from None


def checked_pids(pids: Collection[int] | None) -> frozenset[int]:
    """The pids as given; none for all processes.

    Raises:
        BadInput: one of them is no process here.
    """
    for pid in sorted(pids or ()):
        if not HERE.exists(f"/proc/{pid}"):
            raise BadInput(f"there is no process {pid}")
    return frozenset(pids or ())
