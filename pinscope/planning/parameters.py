"""What a plan is asked for. The form and the command-line options hold the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field

from pinscope.errors import InvalidParameter
from pinscope.planning.plan import Demand
from pinscope.records.environment import Environment
from pinscope.records.parameters import Bytes, Inputs
from pinscope.units import exact_bytes, parse_bytes

PAGE_SIZES: Mapping[str, int | None] = {"from_runs": None, "4KiB": 2**12, "64KiB": 2**16, "2MiB": 2**21}
"""Word → page size in bytes; ``None``: what a run measured, of this machine or a recorded one."""
USUAL_PINNED_BYTES = 64 * 2**30
USUAL_GPU_BYTES = 80 * 2**30
"""Where no GPU here and no recording tells."""


def _page_size(value: Any) -> Any:
    """``4096`` and ``4 KiB`` are ``4KiB``; anything else is for the list of choices to refuse."""
    try:
        size = parse_bytes(value)
    except InvalidParameter:
        return value
    return next((word for word, known in PAGE_SIZES.items() if known == size), value)


class PlanParams(Inputs):
    """What is to be pinned, by whom, and on what."""

    pinned: Bytes = Field(
        USUAL_PINNED_BYTES,
        title="Pinned memory",
        json_schema_extra={"unit": "bytes"},
        description="Size of the memory that each process pins, such as 64GiB.",
    )
    processes: int = Field(
        1,
        ge=1,
        le=4096,
        title="Processes",
        json_schema_extra={"unit": "count"},
        description="Number of processes that pin this memory or copy from it.",
    )
    shared: bool = Field(
        False,
        title="Shared by all processes",
        description="All processes pin the same memory. Without it, each pins its own: the host holds the sum.",
    )
    gpus: int = Field(
        1,
        ge=1,
        le=64,
        title="GPUs of each process",
        json_schema_extra={"unit": "count"},
        description="Number of GPUs on which each process has a CUDA context. Each context takes GPU memory, and each "
        "of these GPUs holds a page table for the process.",
    )
    all_gpus: int = Field(
        1,
        ge=1,
        le=4096,
        title="GPUs in all",
        json_schema_extra={"unit": "count"},
        description="Number of different GPUs that all processes use together, spread evenly: 8 for 8 processes with "
        "one GPU each. If it is no larger than the number of GPUs of each process (--gpus-per-process), all processes "
        "share the same GPUs.",
    )
    gpu_memory: Bytes = Field(
        USUAL_GPU_BYTES,
        title="Memory of one GPU",
        json_schema_extra={"unit": "bytes"},
        description="Without it: that of the smallest GPU here, or of the recorded GPU where there is none.",
    )
    host_memory: Bytes | None = Field(
        None,
        title="Memory of another host",
        json_schema_extra={"unit": "bytes"},
        description="Memory that is free on the host that the plan is for. Without it, this host is judged.",
    )
    page_size: Annotated[Literal["from_runs", "4KiB", "64KiB", "2MiB"], BeforeValidator(_page_size)] = Field(
        "from_runs",
        title="Page size",
        json_schema_extra={"unit": "text", "words": {"from_runs": "as measured"}},
        description="Size of the pages in which the GPU maps the memory. Without it: as a run of this machine, or "
        "else the recorded run, measured it.",
    )

    @classmethod
    def for_machine(cls, environment: Environment, recorded: Environment | None = None) -> Self:
        """Defaults for a machine.

        Args:
            environment: this machine.
            recorded: the one that prices come from where this one has no GPU.
        """
        for known in (environment, recorded):
            sizes = [device.memory_total_bytes for device in known.devices] if known else []
            if stated := [size for size in sizes if size]:
                return cls(gpu_memory=min(stated))
        return cls()

    def demand(self) -> Demand:
        """These parameters as the arithmetic takes them."""
        gpus = max(self.all_gpus, self.gpus)
        return Demand(self.pinned, self.processes, self.gpus, gpus, self.gpu_memory, self.shared)


OPTIONS: Mapping[str, str] = {"gpus": "--gpus-per-process", "all_gpus": "--total-gpus"}
"""Fields whose option has another name."""


def inputs(params: PlanParams) -> dict[str, str]:
    """All that must be said to get the same plan on another machine: what is usual there is left out."""
    usual, sizes = PlanParams(), ("pinned", "gpu_memory", "host_memory")
    return {
        name: exact_bytes(value).replace(" ", "") if name in sizes else str(value)
        for name, value in params
        if value is not None and (name in sizes or value != getattr(usual, name))
    }


def command_line(params: PlanParams) -> str:
    """``pinscope plan`` with every option that is not the command's own default."""
    options = (f"{OPTIONS.get(name, '--' + name.replace('_', '-'))} {text}" for name, text in inputs(params).items())
    return " ".join(("pinscope plan", *options)).replace("--shared True", "--shared")
