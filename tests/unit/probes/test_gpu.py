"""GPUs as NVML describes them; a machine without a driver, and NVML functions that are missing."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, get_args

import pynvml
import pytest

from pinscope.probes.gpu import (
    GpuMemory,
    Nvml,
    PcieError,
    PcieNumber,
    _only_bit,
    process_on_gpu,
    read_devices,
    read_gpus,
    with_details,
)
from pinscope.probes.proc import Answer
from pinscope.records.environment import Device, LinkErrors, c2c_bytes_per_second
from pinscope.records.snapshot import DeviceFigures
from tests.data.gpu_fake import FakeGpu, FakeNvml
from tests.data.link_limits import pcie_limits
from tests.data.synthetic_gpu import on_bus

if TYPE_CHECKING:
    from tests.unit.probes.conftest import Plant

NO_LINK: dict[PcieNumber, Answer[int]] = {
    "generation_now": Answer.missing("not supported"),
    "width_now": Answer.missing("not supported"),
    "generation_max": Answer.missing("not supported"),
    "gpu_generation_max": Answer.missing("not supported"),
    "width_max": Answer.missing("not supported"),
}


class Uninitialised(Nvml):
    """The real reader without nvmlInit: the library refuses every call, but for what a test puts in its place."""

    def __enter__(self) -> Self:
        self._library, self._closed_reason = pynvml, None
        return self


@pytest.fixture
def refused() -> Iterator[Nvml]:
    with Uninitialised() as nvml:
        yield nvml


def only_device(gpu: FakeGpu, plant: Plant, files: Mapping[str, str | bytes] | None = None) -> Device:
    proc = plant(on_bus() if files is None else files)
    with FakeNvml(gpus=[gpu]) as nvml:
        devices = read_devices(nvml, proc).value
        assert devices is not None
        return with_details(nvml, proc, devices[0])


def test_a_gpu_that_answers_everything_misses_nothing(h200: FakeGpu, plant: Plant) -> None:
    device = only_device(h200, plant)
    assert (device.name, device.compute_capability, device.numa_node) == ("NVIDIA H200", "9.0", 0)
    assert device.memory_total_bytes == 150_754_820_096
    assert device.memory_free_bytes == 150_000_000_000
    assert device.link is not None
    assert (device.link.raw_bytes_per_second, device.link.limit_bytes_per_second) == pcie_limits(5, 16)
    assert (device.link.max_payload_bytes, device.iommu) == (256, "translating")
    assert (device.bar1_bytes, device.bar1_covers_memory, device.persistence_mode) == (2**38, True, True)
    assert device.link_errors == LinkErrors(replays=0, correctable=2, nonfatal=0, fatal=0)
    assert device.missing == {"link_errors_after": "nothing was run"}


def test_every_field_that_is_none_has_its_reason(plant: Plant) -> None:
    lost = "GPU is lost"
    gpu = FakeGpu(
        name=Answer.missing(lost), uuid=Answer.missing(lost), pci_bus_id=Answer.missing(lost),
        memory=Answer.missing(lost), compute_capability=Answer.missing(lost), numa_node=Answer.missing(lost),
        c2c=Answer.missing(lost), pcie=dict.fromkeys(NO_LINK, Answer.missing(lost)), bar1=Answer.missing(lost),
        persistence_mode=Answer.missing(lost), pcie_errors=dict.fromkeys(get_args(PcieError), Answer.missing(lost)),
    )  # fmt: skip
    device = only_device(gpu, plant)
    nothing = {name for name, value in device.model_dump().items() if value is None}
    assert nothing <= set(device.missing)
    assert {"name", "uuid"} <= set(device.missing)
    assert device.link is None
    assert device.link_errors is not None
    assert set(device.link_errors.missing) == {"replays", "correctable", "nonfatal", "fatal"}


UNKNOWN = Answer[int].missing("not supported")


@pytest.mark.parametrize(
    ("together", "alone", "width", "generation", "reason"),
    [
        # Some virtual machines report the GPU's own generation as that of the slot, others the other way round.
        (Answer(4), Answer(5), Answer(16), 4, None),
        (Answer(5), Answer(4), Answer(16), 4, None),
        (Answer(5), UNKNOWN, Answer(16), 5, None),  # an old driver
        (Answer(5), Answer(5), UNKNOWN, 5, "not supported"),
        (Answer(7), Answer(7), Answer(16), 7, "PinScope knows no PCIe 7 link of 16 lanes"),
    ],
)
def test_the_limit_of_a_link_is_that_of_the_lower_generation_of_gpu_and_slot(
    h200: FakeGpu, plant: Plant, together: Answer[int], alone: Answer[int], width: Answer[int], generation: int,
    reason: str | None,
) -> None:  # fmt: skip
    pcie = h200.pcie | {"generation_max": together, "gpu_generation_max": alone, "width_max": width}
    device = only_device(dataclasses.replace(h200, pcie=pcie), plant)
    assert device.link is not None
    assert (device.link.generation_max, "link.generation_max" in device.missing) == (generation, False)
    assert device.missing.get("link.limit_bytes_per_second") == reason
    expected = pcie_limits(generation, 16)[1] if reason is None else None
    assert device.link.limit_bytes_per_second == expected


@pytest.mark.parametrize(
    ("name", "rate", "expected"),
    [("GH200 480GB", 447.12e9, 447.12e9), ("GH200 480GB", 0.0, c2c_bytes_per_second("GH200")), ("H200", 0.0, None)],
)
def test_a_coherent_gpu_has_the_bandwidth_that_the_driver_tells_or_the_published_one(
    h200: FakeGpu, plant: Plant, name: str, rate: float, expected: float | None
) -> None:
    device = only_device(dataclasses.replace(h200, name=Answer(f"NVIDIA {name}"), c2c=Answer(rate)), plant)
    assert device.link is not None
    assert (device.link.kind, device.link.raw_bytes_per_second) == ("nvlink-c2c", expected)
    assert "NVLink-C2C" in device.missing["link.generation_now"]
    assert (f"NVIDIA {name}" in device.missing.get("link.raw_bytes_per_second", "")) == (expected is None)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"/sys/bus/pci/devices/0000:1b:00.0/numa_node": "1\n"}, 1),
        ({"/sys/bus/pci/devices/0000:1b:00.0/numa_node": "-1\n", "/sys/devices/system/node/online": "0\n"}, 0),
        ({"/sys/bus/pci/devices/0000:1b:00.0/numa_node": "-1\n", "/sys/devices/system/node/online": "0-1\n"}, 3),
    ],
)
def test_the_node_comes_from_sysfs_or_is_the_only_one_or_comes_from_nvml(
    h200: FakeGpu, plant: Plant, files: dict[str, str], expected: int
) -> None:
    gpu = dataclasses.replace(h200, numa_node=Answer(3))
    assert only_device(gpu, plant, files).numa_node == expected


def test_no_driver_and_no_gpu_are_different_reasons(plant: Plant) -> None:
    with FakeNvml(absent="no NVIDIA driver is installed here") as nvml:
        assert read_devices(nvml, plant({})).reason == "no NVIDIA driver is installed here"
        assert read_gpus(nvml, plant({})).reason == "no NVIDIA driver is installed here"
    with FakeNvml() as nvml:
        assert read_devices(nvml, plant({})).reason == "the NVIDIA driver works, but it shows no GPU"


def test_on_a_machine_without_driver_every_answer_says_so() -> None:
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        pass
    else:
        pytest.skip("this machine has an NVIDIA driver; tests/gpu covers it")
    with Nvml() as nvml:
        answers = [nvml.driver_version(), nvml.cuda_version(), nvml.device_count(), nvml.name(0), nvml.memory(0)]
    assert {answer.reason for answer in answers} == {
        "no NVIDIA driver is installed here (libnvidia-ml.so.1 was not found)"
    }


def test_a_reader_that_is_not_open_answers_with_a_reason() -> None:
    nvml = Nvml()
    assert nvml.device_count().reason == "NVML has not been opened"
    with nvml:
        pass
    assert nvml.device_count().reason == "NVML has been closed"


def test_a_call_that_nvml_refuses_is_a_reason(refused: Nvml) -> None:
    for answer in (refused.driver_version(), refused.name(0), refused.pcie(0, "width_max"), refused.c2c(0)):
        assert answer.value is None
        assert "Uninitialized" in (answer.reason or "")


def test_a_node_mask_names_a_node_only_if_one_bit_is_set() -> None:
    for words, expected in [([1, 0], 0), ([0, 1], 64), ([4, 0], 2), ([0, 0], None), ([3, 0], None), ([1, 1], None)]:
        assert _only_bit(words) == expected


MIB = 2**20


def figures(gpu: FakeGpu, plant: Plant) -> DeviceFigures:
    with FakeNvml(gpus=[gpu]) as nvml:
        found = read_gpus(nvml, plant({})).value
    assert found is not None
    return found[0]


def test_a_gpu_that_answers_everything(h200: FakeGpu, plant: Plant) -> None:
    processes = Answer((process_on_gpu(10, 520 * MIB), process_on_gpu(11, 100 * MIB)))
    memory = Answer(GpuMemory(total=2**37, free=2**36, used=684 * MIB, reserved=600 * MIB))
    device = figures(dataclasses.replace(h200, processes=processes, memory=memory), plant)
    assert device.processes_bytes == 620 * MIB
    assert device.unattributed_bytes == 64 * MIB
    assert device.memory_reserved_bytes == 600 * MIB
    assert (device.rx_bytes_per_second, device.tx_share) == (27.6e9, 0.0)
    assert device.link is not None
    assert device.link.limit_bytes_per_second is not None
    assert device.rx_share == pytest.approx(27.6e9 / device.link.limit_bytes_per_second)
    assert (device.busy_share, device.sm_clock_hertz, device.temperature_celsius) == (0.5, 1.98e9, 31.0)
    assert device.missing.keys() == {"copy_engines", "link.max_payload_bytes"}


def test_every_figure_that_is_none_has_its_reason(plant: Plant, h200: FakeGpu) -> None:
    lost: Answer[Any] = Answer.missing("GPU is lost")
    by_key = {"pcie", "pcie_rate", "clock"}
    gpu = FakeGpu(
        **{field.name: lost for field in dataclasses.fields(FakeGpu) if field.name not in by_key},
        pcie=dict.fromkeys(h200.pcie, lost), pcie_rate={"rx": lost, "tx": lost}, clock={"sm": lost, "memory": lost},
    )  # fmt: skip
    device = figures(gpu, plant)
    nothing = {name for name, value in device.model_dump().items() if value is None}
    assert nothing - {"page_table_bytes", "context_overhead_bytes"} <= device.missing.keys()  # these: with the holders
    assert {"processes", "mig", "uuid"} <= device.missing.keys()
    assert device.missing["unattributed_bytes"] == "GPU is lost"


def test_an_account_that_the_driver_does_not_keep_leaves_the_sum_unknown(h200: FakeGpu, plant: Plant) -> None:
    device = figures(
        dataclasses.replace(h200, processes=Answer((process_on_gpu(1, None), process_on_gpu(2, 5)))), plant
    )
    assert (device.processes_bytes, device.unattributed_bytes) == (None, None)
    assert "keeps no account" in device.missing["unattributed_bytes"]
    assert "memory_bytes" in device.processes[0].missing


def test_processes_that_come_to_more_than_is_used_attribute_nothing(h200: FakeGpu, plant: Plant) -> None:
    device = figures(dataclasses.replace(h200, processes=Answer((process_on_gpu(1, 2**50),))), plant)
    assert "more memory to processes" in device.missing["unattributed_bytes"]


def test_a_coherent_link_has_no_share_of_pcie(h200: FakeGpu, plant: Plant) -> None:
    device = figures(dataclasses.replace(h200, c2c=Answer(450e9)), plant)
    assert device.rx_bytes_per_second == 27.6e9
    assert "NVLink-C2C" in device.missing["rx_share"]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What NVML's functions give; a function that is not entered is refused as not supported."""
    answers: dict[str, Any] = {}

    def stand_in(name: str) -> Any:
        def call(handle: Any, *arguments: Any) -> Any:
            value = answers.get(name)
            if value is None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return value(*arguments) if callable(value) else value

        return call

    for name in dir(pynvml):
        if name.startswith("nvmlDeviceGet"):
            monkeypatch.setattr(pynvml, name, stand_in(name))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: f"handle {index}")
    return answers


def test_nvmls_units_become_si(driver: dict[str, Any]) -> None:
    driver |= {
        "nvmlDeviceGetPcieThroughput": lambda counter: {pynvml.NVML_PCIE_UTIL_RX_BYTES: 55_000_000}.get(counter, 7),
        "nvmlDeviceGetClockInfo": lambda clock: {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 3201}[clock],
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=100, memory=25),
        "nvmlDeviceGetTemperature": lambda sensor: {pynvml.NVML_TEMPERATURE_GPU: 31}[sensor],
        "nvmlDeviceGetBAR1MemoryInfo": SimpleNamespace(bar1Total=1024, bar1Free=1000, bar1Used=24),
    }
    with Uninitialised() as nvml:
        assert (nvml.pcie_rate(0, "rx").value, nvml.pcie_rate(0, "tx").value) == (55e9, 7000.0)
        assert (nvml.clock(0, "sm").value, nvml.clock(0, "memory").value) == (1.98e9, 3.201e9)
        assert nvml.utilization(0).value == (1.0, 0.25)
        assert nvml.temperature(0).value == 31.0
        assert nvml.bar1(0).value == (1024, 24)


def test_a_process_in_both_lists_counts_once_and_each_instance_apart(driver: dict[str, Any]) -> None:
    def info(pid: int, memory: int | None, instance: int = 0xFFFFFFFF) -> SimpleNamespace:
        return SimpleNamespace(pid=pid, usedGpuMemory=memory, gpuInstanceId=instance)

    driver["nvmlDeviceGetComputeRunningProcesses"] = [info(1, 100), info(2, 50, 1), info(2, 60, 2)]
    with Uninitialised() as nvml:
        assert len(nvml.processes(0).value or ()) == 3
        driver["nvmlDeviceGetGraphicsRunningProcesses"] = [info(1, 90), info(3, None)]
        processes = nvml.processes(0).value or ()
    assert {(process.pid, process.gpu_instance): process.memory_bytes for process in processes} == {
        (1, None): 100, (2, 1): 50, (2, 2): 60, (3, None): None
    }  # fmt: skip
    assert len(processes) == 4


def test_a_gpu_without_the_mode_is_whole_and_one_in_it_shows_its_instances(driver: dict[str, Any]) -> None:
    with Uninitialised() as nvml:
        assert nvml.mig(0).value == ()
        driver["nvmlDeviceGetMigMode"] = [0, 1]
        assert nvml.mig(0).value == ()
        driver["nvmlDeviceGetMigMode"] = [1, 1]
        assert "nvmlDeviceGetMaxMigDeviceCount" in (nvml.mig(0).reason or "")

        def instance(number: int) -> str:
            if number == 1:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
            return f"part {number}"

        driver |= {
            "nvmlDeviceGetMaxMigDeviceCount": 3,
            "nvmlDeviceGetMigDeviceHandleByIndex": instance,
            "nvmlDeviceGetUUID": "MIG-x",
            "nvmlDeviceGetGpuInstanceId": 4,
            "nvmlDeviceGetAttributes_v2": SimpleNamespace(sharedCopyEngineCount=2),
        }
        parts = nvml.mig(0).value
    assert parts is not None
    assert len(parts) == 2
    assert (parts[0].uuid, parts[0].gpu_instance, parts[0].copy_engines) == ("MIG-x", 4, 2)
    assert "Not Supported" in parts[0].missing["memory_used_bytes"]


def test_the_named_functions_and_constants_exist_in_nvidias_package() -> None:
    for name in [
        "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses", "nvmlDeviceGetMigMode",
        "nvmlDeviceGetBAR1MemoryInfo", "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature", "nvmlDeviceGetAttributes_v2",
        "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId",
        "NVML_PCIE_UTIL_RX_BYTES", "NVML_PCIE_UTIL_TX_BYTES", "NVML_CLOCK_SM", "NVML_CLOCK_MEM",
        "NVML_TEMPERATURE_GPU", "NVML_DEVICE_MIG_ENABLE",
    ]:  # fmt: skip
        assert hasattr(pynvml, name), name
    fields = dict(pynvml.c_nvmlDeviceAttributes._fields_)
    assert fields["sharedCopyEngineCount"] is ctypes.c_uint
    assert {"bar1Total", "bar1Used"} <= dict(pynvml.c_nvmlBAR1Memory_t._fields_).keys()
