"""Which library of CUPTI is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.tracing import recorder_setup
from pinscope.tracing.recorder_setup import _libraries


def test_the_program_s_own_library_comes_first_then_pinscope_s_then_the_toolkit_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {
        "train/site-packages/nvidia/cu13/lib/libcupti.so.13": "program",
        "train/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12": "program",
        "conda/lib/libcupti.so.12": "program",
        "own/site-packages/nvidia/cuda_cupti/lib/libcupti.so.12": "PinScope",
        "cuda/extras/CUPTI/lib64/libcupti.so.13": "toolkit",
    }
    for name in places:
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).symlink_to("libcupti.so.2025.3.1")  # as the toolkit and conda have it
        (tmp_path / name).with_name("libcupti.so.2025.3.1").touch()
    (tmp_path / "conda" / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(recorder_setup, "sys", type("", (), {"path": [str(tmp_path / "own/site-packages")]}))
    path = ["", str(tmp_path / "train/site-packages"), str(tmp_path / "conda/lib/python3.12/site-packages")]
    chosen = [(owner, file) for owner, file in _libraries(path) if file.startswith(str(tmp_path))]
    assert chosen == [(owner, str(tmp_path / name)) for name, owner in places.items()]
