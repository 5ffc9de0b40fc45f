"""What works here, why not, and what to do: each rule with the machine that breaks it."""

from __future__ import annotations

import os
import shlex
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import pytest

from pinscope.probes.environment import (
    HOST_MODEL_LOCKED_BYTES,
    Extra,
    capabilities,
    capture_environment,
    install_command,
    uninstall_command,
)
from pinscope.probes.proc import Answer, Proc
from pinscope.records.base import Capability
from pinscope.records.environment import Environment
from tests.data.gpu_fake import FakeGpu, FakeNvml

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

GPU_ON_BUS = {
    "/sys/bus/pci/devices/0000:1b:00.0/vendor": "0x10de\n",
    "/sys/bus/pci/devices/0000:1b:00.0/class": "0x030200\n",
    "/sys/bus/pci/devices/0000:00:1f.0/vendor": "0x8086\n",
    "/sys/bus/pci/devices/0000:00:1f.0/class": "0x030000\n",
}


@pytest.fixture
def tree() -> Proc:
    """A host on which everything that needs no GPU works."""
    return Proc.below(Path(__file__).parents[2] / "data" / "proc" / "container-in-vm-cgroup1")


@pytest.fixture
def gpu_host(tree: Proc, h200: FakeGpu) -> Environment:
    """A host with a GPU, its driver, and the CuPy that fits."""
    nvml = FakeNvml(driver_version=Answer("580.159"), cuda_version=Answer((13, 0)), gpus=[h200])
    environment = capture_environment(tree, nvml)
    return environment.model_copy(update={"packages": {"numpy": "2.4", "cupy-cuda13x": "14.2.0"}})


@pytest.fixture
def bare_host(tree: Proc) -> Environment:
    """The same host without any of them."""
    environment = capture_environment(tree, FakeNvml(absent="no NVIDIA driver is installed here"))
    return environment.model_copy(update={"packages": {"numpy": "2.4"}})


def look(environment: Environment, proc: Proc, *modules: str) -> dict[str, Capability]:
    return {one.name: one for one in capabilities(environment, proc, lambda name: name in modules)}


def with_limits(environment: Environment, **limits: Any) -> Environment:
    return environment.model_copy(update={"limits": environment.limits.model_copy(update=limits)})


def test_on_a_complete_gpu_host_everything_works(gpu_host: Environment, tree: Proc) -> None:
    assert [one.name for one in look(gpu_host, tree, "cupy", "psycopg").values() if not one.works] == []


def test_without_gpu_the_host_model_works_and_the_rest_says_why(bare_host: Environment, tree: Proc) -> None:
    found = look(bare_host, tree)
    assert found["host-lab"].works
    assert {name for name in ("gpu", "driver", "nvml", "cupy", "cuda-lab") if found[name].works} == set()
    assert found["driver"].reason == "no NVIDIA driver is installed here"
    assert found["cuda-lab"].reason == found["gpu"].reason == "no NVIDIA GPU is visible on this machine"


def test_a_gpu_without_driver_is_seen_on_the_bus(bare_host: Environment, plant: Plant) -> None:
    found = look(bare_host, plant(GPU_ON_BUS))
    assert "0000:1b:00.0" in (found["gpu"].reason or "")
    assert "modprobe nvidia" in (found["gpu"].advice or "")
    assert "580" in (found["driver"].advice or "")


@pytest.mark.parametrize(
    ("cuda", "extra"), [("13.0", "cuda13"), ("12.4", "cuda12"), ("14.1", "cuda13"), (None, "cuda13")]
)
def test_a_missing_cupy_gives_the_line_that_installs_the_fitting_one(
    gpu_host: Environment, tree: Proc, cuda: str | None, extra: Extra
) -> None:
    environment = gpu_host.model_copy(update={"packages": {}, "cuda_driver": cuda})
    cupy = look(environment, tree)["cupy"]
    assert cupy.reason == "CuPy is not installed"
    assert cupy.advice == f"Run: {install_command(extra)}"


BOTH = {"cupy-cuda12x": "14.2.0", "cupy-cuda13x": "14.2.0"}


@pytest.mark.parametrize(
    ("changes", "reason", "advice"),
    [
        (
            {"cuda_driver": "12.4", "driver": "550.54"},
            "cupy-cuda13x needs CUDA 13, but driver 550.54 supports CUDA 12.4",
            f"{uninstall_command('cupy-cuda13x')} && {install_command('cuda12')}",
        ),
        ({"cuda_driver": "11.4", "driver": "470.1"}, "CUDA 11.4", "driver 580 or newer"),
        ({"packages": BOTH}, "cupy-cuda12x, cupy-cuda13x", uninstall_command(*BOTH)),
        ({"packages": {"cupy-cuda12x": "14.2.0"}}, None, None),  # a newer driver runs an older CuPy
    ],
)
def test_a_cupy_that_does_not_fit_the_driver_is_named_with_the_one_that_does(
    gpu_host: Environment, tree: Proc, changes: dict[str, Any], reason: str | None, advice: str | None
) -> None:
    known = look(gpu_host.model_copy(update=changes), tree, "cupy")
    assert known["cupy"].works == (reason is None)
    assert (reason or "") in (known["cupy"].reason or "")
    assert (advice or "") in (known["cupy"].advice or "")
    assert known["cuda-lab"].reason == known["cupy"].reason


def test_an_old_gpu_gets_the_cupy_that_still_supports_it(gpu_host: Environment, tree: Proc) -> None:
    volta = gpu_host.devices[0].model_copy(update={"name": "Tesla V100", "compute_capability": "7.0"})
    cupy = look(gpu_host.model_copy(update={"devices": (volta,)}), tree, "cupy")["cupy"]
    assert "no longer supports Tesla V100" in (cupy.reason or "")
    assert install_command("cuda12") in (cupy.advice or "")


def test_a_container_without_nvml_is_told_which_capability_it_lacks(bare_host: Environment, tree: Proc) -> None:
    environment = bare_host.model_copy(update={"driver": "580.159"})
    found = look(environment, tree)
    assert found["driver"].works
    assert not found["nvml"].works
    assert "NVIDIA_DRIVER_CAPABILITIES" in (found["nvml"].advice or "")


@pytest.mark.parametrize(
    ("headroom", "host_lab", "memlock"),
    [
        (None, True, True),
        (HOST_MODEL_LOCKED_BYTES, True, True),
        (8 * 2**20, True, False),
        (65536, False, False),
        (0, False, False),
    ],
)
def test_the_host_model_needs_memory_it_may_lock(
    bare_host: Environment, tree: Proc, headroom: int | None, host_lab: bool, memlock: bool
) -> None:
    found = look(with_limits(bare_host, memlock_headroom_bytes=headroom), tree)
    assert (found["host-lab"].works, found["memlock"].works) == (host_lab, memlock)
    assert memlock or "ulimit -l" in (found["memlock"].advice or "")


def test_an_old_or_sandboxed_kernel_has_no_pin_counters(bare_host: Environment, plant: Plant) -> None:
    counters = look(bare_host, plant({"/proc/vmstat": "nr_free_pages 1\n"}))["pin-counters"]
    assert "nr_foll_pin_acquired" in (counters.reason or "")
    assert "5.7" in (counters.advice or "")


@pytest.mark.parametrize(
    ("transparent", "reserved", "works"),
    [("always", 0, True), ("never", 0, False), ("never", 8, True), (None, 0, False)],
)
def test_huge_pages_are_transparent_or_reserved(
    bare_host: Environment, tree: Proc, transparent: str | None, reserved: int, works: bool
) -> None:
    pages = bare_host.huge_pages.model_copy(update={"transparent": transparent, "hugetlb_total_pages": reserved})
    environment = bare_host.model_copy(update={"huge_pages": pages})
    assert look(environment, tree)["huge-pages"].works is works


ROOT = Path(__file__).parents[3]


def test_the_extras_are_those_of_the_project() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(get_args(Extra)) == set(known) - {"dev"}


def test_without_a_clone_the_packages_of_an_extra_are_installed_by_their_own_names(tmp_path: Path) -> None:
    _, _, *words = shlex.split(install_command("cuda13", tmp_path))
    assert {word.partition("[")[0].rstrip("<>=.*0123456789,") for word in words} == {
        "pip", "install", "cupy-cuda13x", "cuda-toolkit",
    }  # fmt: skip


def test_a_clone_is_installed_by_its_own_path_with_the_python_that_runs() -> None:
    for extra in get_args(Extra):
        python, *words, place = shlex.split(install_command(extra))
        assert python == sys.executable
        assert words == ["-m", "pip", "install", "-e"]
        folder, _, name = place.partition("[")
        assert (Path(folder) / "pyproject.toml").samefile(ROOT / "pyproject.toml")
        assert name.rstrip("]") == extra
        assert os.access(python, os.X_OK)
