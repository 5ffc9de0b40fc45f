"""The kernel module and CUDA's Multi-Process Service, from the files that show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pinscope.probes.environment import kernel_module, multi_process_service

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

VERSION = "NVRM version: NVIDIA UNIX {}Kernel Module for x86_64  580.159.04  Release Build\n"


@pytest.mark.parametrize(
    ("files", "module"),
    [
        ({"/proc/driver/nvidia/version": VERSION.format("Open ")}, "open"),
        ({"/proc/driver/nvidia/version": VERSION.format("x86_64 ")}, "proprietary"),
        ({"/proc/driver/nvidia/version": VERSION.format(""), "/sys/module/nvidia/taint": "POE\n"}, "proprietary"),
        ({"/sys/module/nvidia/taint": "OE\n"}, "open"),
    ],
)
def test_the_kernel_module_is_told_by_its_name_or_its_licence(plant: Plant, files: dict[str, str], module: str) -> None:
    assert kernel_module(plant(files)).value == module


def test_without_a_kernel_module_the_reason_is_named(plant: Plant) -> None:
    assert kernel_module(plant({})).reason == "/proc/driver/nvidia/version is not there"


@pytest.mark.parametrize("folder", ["/tmp/nvidia-mps", "/run/pipes"])
def test_the_service_runs_where_its_pipe_is_and_its_daemon_lives(plant: Plant, folder: str) -> None:
    variables = {} if folder == "/tmp/nvidia-mps" else {"CUDA_MPS_PIPE_DIRECTORY": folder}
    files = {f"{folder}/control": "", "/proc/7/comm": "nvidia-cuda-mps\n", "/proc/1/comm": "init\n"}
    assert multi_process_service(plant(files), variables).value is True
    assert multi_process_service(plant(files), {"CUDA_MPS_PIPE_DIRECTORY": "/elsewhere"}).value is False


def test_a_pipe_whose_daemon_cannot_be_seen_says_nothing(plant: Plant) -> None:
    found = multi_process_service(plant({"/tmp/nvidia-mps/control": "", "/proc/1/comm": "init\n"}), {})
    assert found.value is None
    assert "its daemon cannot be seen" in (found.reason or "")


def test_without_a_pipe_no_service_would_be_used(plant: Plant) -> None:
    assert multi_process_service(plant({"/proc/7/comm": "nvidia-cuda-mps\n"}), {}).value is False
