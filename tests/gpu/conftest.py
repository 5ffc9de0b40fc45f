"""GPU tests fail without a GPU: they are run by scripts/test-gpu only, on a machine that has one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pinscope.lab.cuda import CudaLab


@pytest.fixture(scope="session", autouse=True)
def _warm_driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make the context and the driver's own threads before any test counts threads.

    PyTorch makes a folder for its compiler when it is imported, here and in what the tests start: one for all.
    """
    with CudaLab(0) as lab:
        lab.calibrate(1e-4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torch")))
        yield


@pytest.fixture
def lab() -> Iterator[CudaLab]:
    with CudaLab(0) as lab:
        yield lab


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Every test here needs a GPU; those marked two_gpus are skipped where there is one only."""
    from cupy.cuda import runtime

    few = runtime.getDeviceCount() < 2
    for item in items:
        item.add_marker(pytest.mark.gpu)
        if few and item.get_closest_marker("two_gpus"):
            item.add_marker(pytest.mark.skip(reason="needs a second GPU"))
