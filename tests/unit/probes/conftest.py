"""Trees of /proc and /sys files, and GPUs, to read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pinscope.probes.proc import Proc
from tests.data.gpu_fake import FakeGpu
from tests.data.synthetic_gpu import idle_h200

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
    return idle_h200()
