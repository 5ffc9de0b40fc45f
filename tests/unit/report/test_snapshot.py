"""A snapshot as a document, as rows and as facts: nothing unknown becomes a number, nothing estimated looks exact."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pinscope.live.findings import snapshot_findings
from pinscope.records.snapshot import Snapshot
from pinscope.report.snapshot_facts import (
    device_facts,
    figure_text,
    gpus_text,
    holder_facts,
    holder_rows,
    host_facts,
    matching,
    share_text,
)
from pinscope.report.write import render_snapshot, snapshot_document
from tests.data.synthetic_live import GIB, LOCKER, MIB, TRAINER, WORKER, empty, full
from tests.data.synthetic_snapshot import TAKEN_AT
from tests.data.synthetic_snapshot import holder as made


@pytest.fixture
def taken(tmp_path: Path) -> Snapshot:
    return full(tmp_path)


@pytest.mark.parametrize("gpus", [0, 2])
def test_the_document_carries_the_whole_snapshot(gpus: int, tmp_path: Path) -> None:
    taken = full(tmp_path, gpus)
    findings = snapshot_findings(taken)
    document = json.loads(render_snapshot(taken, findings))

    assert document == {**taken.model_dump(mode="json"), "findings": document["findings"]}
    assert document["format"] == 1
    assert [finding["rule"] for finding in document["findings"]] == [finding.rule for finding in findings]
    assert {"host", "holders", "devices", "unreadable", "taken_at"} <= set(document)
    assert snapshot_document(taken, findings) == document


def test_rows_sum_up_what_a_holder_has_on_its_gpus(taken: Snapshot) -> None:
    trainer, locker, worker = holder_rows(taken.holders, growing={LOCKER})

    assert [row.holder.pid for row in (trainer, locker, worker)] == [TRAINER, LOCKER, WORKER]
    assert trainer.amounts["page_table_bytes"] == 36 * MIB
    assert trainer.amounts["gpu_memory_bytes"] == 40 * GIB
    assert trainer.gpus == (0, 1)
    assert trainer.signs == {"page_table_bytes": "≥", "rounding_bytes": "≤"}
    assert locker.growing
    assert not trainer.growing
    assert locker.amounts["page_table_bytes"] == 0
    assert locker.signs == {}


def test_a_sum_with_an_unknown_part_is_unknown(taken: Snapshot) -> None:
    trainer = taken.holders[0]
    unknown = trainer.gpus[0].model_copy(update={"memory_bytes": None, "missing": {"memory_bytes": "WDDM"}})
    (row,) = holder_rows([trainer.model_copy(update={"gpus": (unknown, trainer.gpus[1])})])

    assert row.amounts["gpu_memory_bytes"] is None
    assert row.amounts["page_table_bytes"] == 36 * MIB


@pytest.mark.parametrize(
    ("words", "pids"),
    [("", [TRAINER, LOCKER, WORKER]), ("POST", [LOCKER]), (f"{WORKER} work", [WORKER]), ("post work", [])],
)
def test_the_filter_wants_every_word(words: str, pids: list[int], taken: Snapshot) -> None:
    assert [holder.pid for holder in matching(taken.holders, words)] == pids


@pytest.mark.parametrize(
    ("indices", "text"), [((), ""), ((3,), "3"), ((0, 1), "0, 1"), ((5, 0, 2, 3, 4), "0, 2–5"), (range(8), "0–7")]
)
def test_gpus_next_to_each_other_are_told_as_a_range(indices: tuple[int, ...], text: str) -> None:
    assert gpus_text(tuple(indices)) == text


def test_exact_figures_stand_bare_and_others_say_what_they_are(taken: Snapshot) -> None:
    assert figure_text(taken.host, "pinned_bytes") == "14 GiB"
    assert figure_text(taken.host, "other_pinned_bytes").startswith("~5.50 GiB (")
    assert figure_text(taken.host, "other_pinned_bytes", because=False) == "~5.50 GiB"
    assert figure_text(taken.holders[0], "registered_bytes").startswith("n/a (")


def test_shares_are_of_what_they_say(taken: Snapshot) -> None:
    device = taken.devices[0]

    assert share_text(taken.host, "pinned_bytes") == "11.1 % of memory"
    assert share_text(device, "page_table_bytes") == "0.013 % of its memory"
    assert share_text(device, "rx_bytes_per_second") == "47.9 % of the link"
    unknown = device.model_copy(update={"page_table_bytes": None, "rx_share": None})
    assert share_text(unknown, "page_table_bytes") is None
    assert share_text(unknown, "rx_bytes_per_second") is None


def test_a_link_below_its_best_says_both(taken: Snapshot) -> None:
    link = taken.devices[0].link
    assert link is not None
    slow = taken.devices[0].model_copy(update={"link": link.model_copy(update={"generation_now": 1})})

    assert dict(device_facts(taken.devices[0]))["Link"] == "PCIe Gen5 x16"
    assert dict(device_facts(slow))["Link"] == "PCIe Gen1 x16; at best PCIe Gen5 x16"


def test_every_fact_has_words_whatever_is_missing(tmp_path: Path) -> None:
    for name, taken in (("full", full(tmp_path / "full")), ("empty", empty(tmp_path / "empty"))):
        bare = taken.host.model_copy(
            update=dict.fromkeys(name for name in type(taken.host).model_fields if name.endswith("_bytes"))
            | {"total_bytes": 1, "available_bytes": 1, "pressure": None}
        )
        every = [*host_facts(taken.host), *host_facts(bare)]
        for holder in taken.holders:
            gone = dict.fromkeys(field for field in type(holder).model_fields if field.endswith("_bytes"))
            every += [*holder_facts(holder), *holder_facts(holder.model_copy(update=gone))]
        for device in taken.devices:
            kept = ("index", "uuid", "name", "processes", "mig", "missing", "estimates")
            gone = dict.fromkeys(field for field in type(device).model_fields if field not in kept)
            every += [*device_facts(device), *device_facts(device.model_copy(update=gone))]
        assert every, name
        assert all(text and "None" not in text for _, text in every)


def test_what_a_process_said_of_itself_is_marked_so() -> None:
    said = made(registered_bytes=GIB, kept_bytes=8 * MIB, kept_by={"PyTorch": 8 * MIB}, said_at=TAKEN_AT)
    facts = dict(holder_facts(said))
    assert facts["Registered"] == "1 GiB (exact, said by the process at 2026-01-02 03:04:05 UTC)"
    assert facts["Kept by allocators"].startswith("8 MiB: PyTorch 8 MiB (exact, said by the process at ")
    probed = made(registered_bytes=GIB, registrations=2)
    assert dict(holder_facts(probed))["Registered"] == "1 GiB, in 2 pieces"
    assert f"pinscope trace --attach {probed.pid} --for 10s" in dict(holder_facts(probed))["Its lines"]
