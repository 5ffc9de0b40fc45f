"""A GPU's place on its host in words: what is known, why the rest is not, and nothing of what an old run lacks."""

from __future__ import annotations

from pathlib import Path

from pinscope.probes.gpu import read_devices, with_details
from pinscope.probes.proc import Proc
from pinscope.records.environment import Device, LinkErrors
from pinscope.report.facts import environment_facts, gpu_facts
from tests.data import synthetic
from tests.data.gpu_fake import FakeNvml
from tests.data.synthetic_gpu import idle_h200, on_bus


def gpu(folder: Path, files: dict[str, str | bytes]) -> Device:
    for path, content in files.items():
        place = folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content if isinstance(content, bytes) else content.encode())
    proc = Proc.below(folder)
    with FakeNvml(gpus=[idle_h200()]) as nvml:
        (device,) = read_devices(nvml, proc).value or ()
        return with_details(nvml, proc, device)


def test_everything_that_is_known_is_told(tmp_path: Path) -> None:
    assert {
        ("Largest packet payload", "512 B, as the GPU is set"),
        ("IOMMU", "translates each address"),
        ("BAR1 (resizable BAR)", "256 GiB, covers all of the memory"),
        ("Persistence mode", "on"),
        (
            "Link errors",
            "0 packets sent again; 2 errors that the hardware put right; 0 errors that lost a packet; "
            "0 errors that broke the link",
        ),
    } <= set(gpu_facts(gpu(tmp_path, on_bus(2))))


def test_what_is_not_known_says_why(tmp_path: Path) -> None:
    tmp_path.joinpath("sys").mkdir()
    facts = dict(gpu_facts(gpu(tmp_path, {})))
    folder = "/sys/bus/pci/devices/0000:1b:00.0"
    assert facts["Largest packet payload"] == f"256 B, assumed ({folder}/config is not there)"
    assert facts["IOMMU"] == f"n/a ({folder} is not there)"


def test_counts_of_both_ends_of_a_run_are_told(tmp_path: Path) -> None:
    lost = LinkErrors(replays=4, correctable=None, nonfatal=None, fatal=None, missing=dict.fromkeys(
        ("correctable", "nonfatal", "fatal"), "GPU is lost"))  # fmt: skip
    facts = dict(gpu_facts(gpu(tmp_path, on_bus()).model_copy(update={"link_errors_after": lost})))
    assert facts["Link errors before the run"].startswith("0 packets sent again; 2 errors")
    assert facts["Link errors after the run"] == (
        "4 packets sent again; n/a: errors that the hardware put right, errors that lost a packet, errors that broke "
        "the link (GPU is lost)"
    )


def test_what_a_run_of_an_older_version_did_not_record_is_left_out() -> None:
    environment = synthetic.document("bandwidth").run.environment
    names = {name for name, _ in environment_facts(environment)}
    assert not {"Kernel module", "Multi-Process Service", "Confidential computing"} & names
    assert not {"IOMMU", "Persistence mode", "Link errors"} & set(dict(gpu_facts(environment.devices[0])))
