"""``pinscope trace --what-if`` from the command line to the store; CUPTI and PyTorch are stand-ins."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.cli.main import main
from pinscope.store.bundle import read_bundle
from pinscope.store.store import Store
from pinscope.tracing.stacks import file_label
from tests.data.fake_cupti import FIRST_LINE
from tests.integration.traces import Document, program, rows, traced

MIB = 2**20
TRAIN = """\
import numpy, torch
total = 0.0
for step in range(20):
    batch = torch.tensor(numpy.full(1 << 20, step, numpy.float32))
    moved = batch.to("cuda")
    batch.array[:] = -1
    kernel(1_000_000)
    time.sleep(0.001)
    total += float(moved[:1000].cpu().array.sum())
copy(1 << 20, DEVICE, PAGEABLE)
copy(1 << 20, PAGEABLE, DEVICE)
print(total)
"""
COPIES = FIRST_LINE + 4


def compared(tmp_path: Path, *arguments: str | Path) -> tuple[Document, Document]:
    """JSON of both runs of ``--what-if``, which end well."""
    code, document = traced(tmp_path, "--what-if", *arguments)
    assert code == 0
    return document, document["what_if"]


@pytest.mark.usefixtures("_packages")
def test_the_program_runs_twice_and_what_pinning_saved_is_measured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "both.pinscope"
    path = program(tmp_path, TRAIN + "sys.stdout.flush()\nos.system('echo its child')")
    document, second = compared(tmp_path, "pin", "-o", bundle, path)
    out, err = capfd.readouterr()
    assert out == f"{float(sum(range(20)) * 1000)}\nits child\n"
    words = " ".join(err.split())
    again = f"runs again, copying from pinned memory at train.py:{COPIES} pinscope: "
    assert f"{again}Pin what train.py:{COPIES} copies, where it is made: " in words
    assert f"pinscope: Pinning train.py:{COPIES} " in words
    assert rows(document, "before") == []
    (before,), (redirected, *left) = rows(second, "before"), rows(second, "redirected")
    assert {(row["line"], row["count"], row["reason"]) for row in left} == {
        (COPIES + 5, 0, "copies to the host are not redirected"),
        (COPIES + 6, 0, "a single copy: pinning pays where it repeats"),
    }
    assert (before["count"], before["bytes"], before["same_output"]) == (20, 80 * MIB, True)
    assert (redirected["line"], redirected["count"], redirected["bytes"]) == (COPIES, 20, 80 * MIB)
    assert redirected["gather_seconds"] > 0
    (program_row,), (first_row,) = rows(second, "program"), rows(document, "program")
    assert before["active_seconds"] == first_row["active_seconds"]
    saved = second["run"]["headline"][0]["value"]
    assert saved == pytest.approx(first_row["active_seconds"] - program_row["active_seconds"])
    sites = {(row["line"], row["source"], row["target"]) for row in rows(second, "site")}
    assert (COPIES, "pinned", "device") in sites
    assert (COPIES, "pageable", "device") not in sites
    (left,) = (table["rows"] for table in second["run"]["tables"] if table["title"] == "Still pageable")
    assert [(row[0], row[1]) for row in left] == [(f"train.py:{COPIES + 5}", "d2h")]
    with Store() as store:
        first, again = (store.run(trace["run"]["id"]) for trace in (document, second))
    assert again.params["what_if"] == [f"{path}:{COPIES}"]
    assert again.params["what_if_of"] == first.id
    assert again.verdict is not None
    assert again.verdict.startswith("Pinning train.py")
    assert [run.id for run, _ in read_bundle(bundle)] == [first.id, again.id]


TWO_LINES = """\
import numpy, torch
for step in range(20):
    images = torch.tensor(numpy.full(1 << 20, step, numpy.float32))
    labels = torch.tensor(numpy.full(1 << 18, step, numpy.float32))
    images.to("cuda")
    labels.to("cuda")
    kernel(1_000_000)
"""


@pytest.mark.usefixtures("_packages")
def test_two_lines_are_pinned_in_one_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = program(tmp_path, TWO_LINES)
    images, labels = f"train.py:{COPIES}", f"train.py:{COPIES + 1}"
    chosen = [f"pin:{path.parent}/{line}" for line in (images, labels)]
    _, second = compared(tmp_path, chosen[0], "--what-if", chosen[1], path)
    (whole,) = rows(second, "before")
    assert (whole["count"], whole["bytes"]) == (40, 100 * MIB)
    assert capfd.readouterr().err.count("Next:") == 1  # of both runs


@pytest.mark.usefixtures("_packages")
@pytest.mark.parametrize(
    ("path", "line"), [("caf\udce9", None), ("/".join(["d" * 200] * 12), COPIES)], ids=["not UTF-8", "long"]
)
def test_a_file_is_pinned_whatever_its_path_is(path: str, line: int | None, tmp_path: Path) -> None:
    folder = tmp_path / path
    folder.mkdir(parents=True)
    file = program(folder, TRAIN)
    chosen = f"pin:{file}:{line}" if line else "pin"
    _, second = compared(tmp_path, chosen, file)
    (before,), (redirected, *left) = rows(second, "before"), rows(second, "redirected")
    assert {(row["line"], row["count"], row["reason"]) for row in left} == {
        (COPIES + 5, 0, "copies to the host are not redirected"),
        (COPIES + 6, 0, "a single copy: pinning pays where it repeats"),
    }
    assert (before["count"], redirected["count"], redirected["file"]) == (20, 20, file_label(str(file)))


BOTH_KINDS = """\
import numpy, torch
def to_device(tensor):
    return tensor.to("cuda")
to_device(torch.empty(1 << 20, pin_memory=True))
time.sleep(0.4)
for step in range(20):
    to_device(torch.tensor(numpy.full(1 << 20, step, numpy.float32)))
    kernel(1_000_000)
"""


@pytest.mark.usefixtures("_packages")
def test_both_runs_are_compared_from_the_same_copy_on(tmp_path: Path) -> None:
    """The line copies from pinned memory before it copies from pageable memory, long after: in the second run all is
    from pinned memory."""
    _, second = compared(tmp_path, "pin", program(tmp_path, BOTH_KINDS))
    (before,), sites = rows(second, "before"), rows(second, "site")
    assert before["count"] == sum(row["count"] for row in sites) == 21
    assert before["first_seconds"] == min(row["first_seconds"] for row in sites) == 0.0


@pytest.mark.usefixtures("_packages")
def test_a_line_that_cannot_be_redirected_and_an_output_that_differs_are_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = program(tmp_path, "for _ in range(9): copy(1 << 20, PAGEABLE, DEVICE)\nprint(time.time_ns())")
    assert main(["trace", "--what-if", f"pin:train.py:{FIRST_LINE}", str(path)]) == 0
    out, err = capfd.readouterr()
    assert out.count("\n") == 1
    words = " ".join(err.split())
    assert f"pinscope: No copy of train.py:{FIRST_LINE} could be made from pinned memory." in words
    assert "only Tensor.to, .cuda and .copy_" in words
    assert "Warning: With lines pinned the program wrote something else to stdout" in words


LOADERS = """
import numpy, torch
from torch.utils.data.dataloader import DataLoader
batches = [numpy.full(1 << 20, step, numpy.float32) for step in range(5)]
def collate(batch): return torch.Tensor(batch).to("cuda")
for batch in DataLoader(batches):
    print(batch.to("cuda").cpu().array.sum())
for batch in DataLoader(batches, collate_fn=collate):
    print(batch.cpu().array.sum())
"""
UNPINNABLE = "left 5 parts of its batches as they are: RuntimeError: only dense CPU tensors can be pinned"


@pytest.mark.usefixtures("_packages")
def test_what_became_of_a_dataloader_s_batches_is_said(tmp_path: Path) -> None:
    _, second = compared(tmp_path, "pin", program(tmp_path, LOADERS))
    reasons = {row["line"]: row.get("reason", "").partition("iterates over ")[2] for row in rows(second, "redirected")}
    assert reasons == {
        FIRST_LINE + 4: "", FIRST_LINE + 5: "pinned its batches", FIRST_LINE + 6: "", FIRST_LINE + 7: UNPINNABLE,
    }  # fmt: skip
    assert {row["source"] for row in rows(second, "site")} == {"pinned"}


@pytest.mark.usefixtures("_packages")
def test_a_second_run_that_fails_is_said_and_the_exit_code_is_the_first_s(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = f"""
import pathlib
copy(1 << 20, PAGEABLE, DEVICE)
copy(1 << 20, PAGEABLE, DEVICE)
for _ in range(2): copy(1 << 20, PAGEABLE, DEVICE)
there = pathlib.Path({str(tmp_path / "there")!r})
if there.exists(): raise KeyError("there already")
there.touch()
"""
    assert main(["trace", "--what-if", "pin", str(program(tmp_path, text))]) == 0
    err = capfd.readouterr().err
    assert "--what-if: with lines pinned the program ended with exit code 1: KeyError: 'there already'" in err
    assert err.count("Next:") == 1  # of the first run


@pytest.mark.usefixtures("_packages")
def test_there_is_no_second_run_without_a_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = program(tmp_path, "copy(1 << 20, PAGEABLE, DEVICE)\nprint('once')\nsys.exit(len(sys.argv) - 1)")
    assert main(["trace", "--what-if", "pin", str(path)]) == 0
    assert "--what-if: no line copies large pieces from pageable memory more than once" in capfd.readouterr().err
    assert main(["trace", "--what-if", "pin", str(path), "one", "two", "three"]) == 3
    out, err = capfd.readouterr()
    assert out == "once\n"
    assert "--what-if: the program did not end well, so it was not run again" in err


def test_what_is_asked_for_wrongly_is_refused_in_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(program(tmp_path, ""))
    for options, words in (
        (["--what-if", "pun"], "--what-if takes pin or wait, or with a line"),
        (["--what-if", "pin", "--no-stacks"], "--what-if needs the lines that --no-stacks leaves out"),
        (["--what-if", "pin", "--for", "5s"], "--what-if compares the same work in both runs"),
    ):
        assert main(["trace", *options, path]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert words in err
