"""The environment of a run: complete, and from the files of any host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pinscope.analysis.machine import machine_findings
from pinscope.probes.environment import (
    capabilities,
    capture_environment,
    kernel_module,
    machine_id,
    multi_process_service,
    read_huge_pages,
    source_commit,
)
from pinscope.probes.proc import Proc
from pinscope.records.environment import Environment
from tests.data.gpu_fake import FakeNvml

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

ROOT = Path(__file__).parents[3]
CAPTURED = ROOT / "tests" / "data" / "proc"
NO_DRIVER = "no NVIDIA driver is installed here"


def capture(proc: Proc) -> Environment:
    return capture_environment(proc, FakeNvml(absent=NO_DRIVER))


def test_every_empty_field_says_why(captured: Proc) -> None:
    environment = capture(captured)
    for record in (environment, environment.limits, environment.huge_pages):
        empty = {name for name, value in record.model_dump().items() if value is None}
        assert empty <= set(record.missing)
    assert environment.missing["devices"] == NO_DRIVER
    assert environment.devices == ()


def test_a_captured_host_is_read_from_its_files_alone() -> None:
    environment = capture(Proc.below(CAPTURED / "container-in-vm-cgroup1"))
    assert environment.host == "host"
    assert environment.kernel == "6.18.44"
    assert environment.os == "Debian GNU/Linux 12 (bookworm)"
    assert environment.cpu == "AMD EPYC"
    assert environment.numa_nodes == 1
    assert environment.virtualization == "Docker container, virtual machine"
    assert environment.huge_pages.transparent == "madvise"
    assert environment.huge_pages.hugetlb_page_bytes == 2 * 2**20
    assert environment.limits.host_total_bytes == 24684096 * 1024
    assert environment.limits.cgroup_headroom_bytes is None
    assert environment.limits.missing["memlock_headroom_bytes"] == "no limit: this process has CAP_IPC_LOCK"


def test_the_machine_id_is_stable_and_opaque(plant: Plant) -> None:
    secret = "0123456789abcdef0123456789abcdef"
    proc = plant({"/etc/machine-id": f"{secret}\n", "/proc/sys/kernel/random/boot_id": "boot\n"})
    first = machine_id(proc)
    assert first == machine_id(proc)
    assert len(first) == 16
    assert first not in secret
    assert secret[:16] not in first


@pytest.mark.parametrize("unset", ["", "uninitialized\n"])
def test_where_no_machine_id_is_set_the_boot_identifies_the_machine(plant: Plant, unset: str) -> None:
    files = {"/etc/machine-id": unset, "/proc/sys/kernel/random/boot_id": "one\n"}
    first = machine_id(plant(files))
    assert first != machine_id(plant(files | {"/proc/sys/kernel/random/boot_id": "two\n"}))


def test_a_driver_without_nvml_is_read_from_its_kernel_module(plant: Plant) -> None:
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder)\n"
    environment = capture(plant({"/proc/driver/nvidia/version": line}))
    assert environment.driver == "580.159.04"
    assert environment.cuda_driver is None
    assert environment.missing["cuda_driver"] == NO_DRIVER


def test_a_checkout_names_its_commit_and_says_when_it_was_changed(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        command = ["git", "-C", str(tmp_path), *identity, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    assert source_commit(tmp_path, {}).value == commit
    (tmp_path / "file").write_text("two")
    assert source_commit(tmp_path, {}).value == f"{commit}-dirty"


def test_without_a_checkout_the_commit_is_missing_or_given(tmp_path: Path) -> None:
    assert source_commit(tmp_path, {}).reason == "PinScope does not run from a git checkout"
    assert source_commit(tmp_path, {"PINSCOPE_COMMIT": "0f" * 20}).value == "0f" * 20
    assert source_commit(tmp_path, {"PINSCOPE_COMMIT": "main; rm"}).reason == "PINSCOPE_COMMIT is no commit"


def test_a_broken_checkout_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert "git does not name the commit" in (source_commit(tmp_path, {}).reason or "")


CAPTURED_FILES = sorted(
    str(path.relative_to(CAPTURED)) for path in CAPTURED.rglob("*") if path.is_file() and "pci" not in path.parts
)


@pytest.mark.parametrize(("text", "word"), [
    ("always defer [defer+madvise] madvise never", "defer+madvise"), ("[always] defer madvise never", "always"),
    ("always", None), (None, None),
])  # fmt: skip
def test_how_memory_is_compacted_for_huge_pages_is_read_or_why_not(
    tmp_path: Path, text: str | None, word: str | None
) -> None:
    folder = tmp_path / "sys/kernel/mm/transparent_hugepage"
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "defrag").write_text(text)
    pages = read_huge_pages(Proc.below(tmp_path))
    assert (pages.defrag, "defrag" in pages.missing) == (word, word is None)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(CAPTURED_FILES), seed=st.randoms(use_true_random=False), noise=st.binary(max_size=200))
def test_no_malformed_file_makes_the_probes_raise(
    name: str, seed: object, noise: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import random

    assert isinstance(seed, random.Random)
    tree = tmp_path_factory.getbasetemp() / "malformed"
    if not tree.exists():
        shutil.copytree(CAPTURED, tree, symlinks=True)
    original = (CAPTURED / name).read_bytes()
    place = seed.randrange(len(original) + 1)
    (tree / name).write_bytes(seed.choice([original[:place] + noise + original[place:], original[:place], noise]))
    try:
        proc = Proc.below(tree / Path(name).parts[0])
        environment = capture(proc)
        assert all(one.works or one.reason for one in capabilities(environment, proc))
        assert all(finding.evidence for finding in machine_findings(environment))
    finally:
        (tree / name).write_bytes(original)


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
