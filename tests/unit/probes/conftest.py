"""Trees of /proc and /sys files, and GPUs, to read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pinscope.probes.answer import Answer
from pinscope.probes.gpu import Bar1, GpuMemory, Utilization
from pinscope.probes.gpu_fake import FakeGpu
from pinscope.probes.proc import Proc

CAPTURED = Path(__file__).parents[2] / "data" / "proc"

Plant = Callable[[Mapping[str, str | bytes]], Proc]


@pytest.fixture(params=sorted(path.name for path in CAPTURED.iterdir()))
def captured(request: pytest.FixtureRequest) -> Proc:
    """The files of each host that was captured."""
    return Proc.below(CAPTURED / request.param)


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Write files by the path they have on a real host; gives the reader of them."""

    def write(files: Mapping[str, str | bytes]) -> Proc:
        for path, content in files.items():
            place = tmp_path / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content if isinstance(content, bytes) else content.encode())
        return Proc.below(tmp_path)

    return write


@pytest.fixture
def h200() -> FakeGpu:
    """A GPU that answers everything, as an idle H200 does."""
    return FakeGpu(
        name=Answer("NVIDIA H200"),
        uuid=Answer("GPU-00000000-0000-4000-8000-000000000001"),
        pci_bus_id=Answer("00000000:1B:00.0"),
        memory=Answer(GpuMemory(total=150_754_820_096, free=150_000_000_000, used=754_820_096, reserved=600_000_000)),
        compute_capability=Answer((9, 0)),
        numa_node=Answer(0),
        c2c=Answer.missing("the GPU has no NVLink-C2C"),
        pcie={
            "generation_now": Answer(5),
            "width_now": Answer(16),
            "generation_max": Answer(5),
            "gpu_generation_max": Answer(5),
            "width_max": Answer(16),
        },
        processes=Answer(()),
        bar1=Answer(Bar1(total=274_877_906_944, used=1_048_576)),
        pcie_rates={"rx": Answer(27.6e9), "tx": Answer(0.0)},
        utilization=Answer(Utilization(busy=0.5, memory_busy=0.25)),
        clocks={"sm": Answer(1.98e9), "memory": Answer(3.201e9)},
        temperature=Answer(31.0),
        copy_engines=Answer.missing("nvmlDeviceGetAttributes_v2: Not Supported"),
        mig=Answer(()),
    )
