"""The list of runs: one line a run, with what came out of it."""

from __future__ import annotations

import json

import pytest

from pinscope.cli import runs as runs_module
from pinscope.cli.main import main
from pinscope.cli.runs import answer, print_runs
from pinscope.records.labels import LABELS
from pinscope.records.run import Progress, quantity
from pinscope.store.documents import DamagedRun
from pinscope.store.store import Store
from tests.data import synthetic
from tests.unit.cli.test_errors import refused
from tests.unit.store.runs import new_run

VERDICT = (
    "Pinned copies are 5 times as fast as pageable ones: 50.0 against 10.0 GB/s at 1 GiB, and faster from 4 KiB on."
)
FIGURE = quantity("Pinned to GPU, 1 GiB", 55e9, "bytes/second", spread=0.009, key="pinned.h2d.rate")


@pytest.mark.parametrize("width", [40, 80, 160, 300])
def test_each_run_is_one_line_that_fits_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runs_module, "terminal_columns", lambda: width)
    runs = [synthetic.run("bandwidth", id=f"20300102-030405-{number}a", verdict=VERDICT) for number in range(3)]
    runs[0] = runs[0].model_copy(update={"figure": FIGURE})
    runs[1] = runs[1].model_copy(update={"figure": FIGURE, "name": "before it", "baseline": True, "tags": ("x",)})
    runs.append(synthetic.run("overlap", id="a-recording", recording=True, verdict=VERDICT))
    assert print_runs(runs)
    lines = capsys.readouterr().out.rstrip().split("\n")
    assert [line.split()[0] for line in lines if line] == [
        "id", *(run.id for run in runs[:3]), "Recordings,", "id", "a-recording",
    ]  # fmt: skip
    assert all(len(line) <= width for line in lines) or width == 40
    assert ("Synthetic GPU" in lines[1]) == (width >= runs_module.WIDE)
    assert (VERDICT in lines[1]) == (width == 300)
    assert [line.endswith("55.0 GB/s ± 0.9 %") for line in lines[1:4]] == [True, True, False]
    assert "★ bef" in lines[2]


def test_a_line_in_a_file_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_runs([synthetic.run("bandwidth", verdict=VERDICT)])
    assert VERDICT in capsys.readouterr().out


def test_where_a_verdict_has_no_room_the_name_of_its_figure_stands_and_elsewhere_both(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        synthetic.run("bandwidth", id="20300102-030405-aaaaaa", verdict=VERDICT, figure=FIGURE),
        synthetic.run("bandwidth", id="20300102-030406-bbbbbb", status="failed", error="no GPU", figure=FIGURE),
    ]
    monkeypatch.setattr(runs_module, "terminal_columns", lambda: 80)
    print_runs(runs)
    first, second = capsys.readouterr().out.splitlines()[1:3]
    assert first.split("  ")[0] == "20300102-030405", "as much of the id as tells it from the others"
    assert "Pinned to GPU, 1 GiB" in first
    assert "failed: no GPU" in second
    assert "55.0" not in second
    monkeypatch.setattr(runs_module, "terminal_columns", lambda: None)
    print_runs(runs[:1])
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("20300102-030405-aaaaaa")
    assert line.split(VERDICT)[1].strip() == "55.0 GB/s ± 0.9 %"


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert main(["runs", "list", "--no-recordings", "--json", *arguments]) == 0
    runs: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return runs


def test_runs_are_named_tagged_noted_and_starred_found_and_sorted(capsys: pytest.CaptureFixture[str]) -> None:
    with Store() as store:
        for number, value in enumerate((50e9, 55e9, None)):
            figure = quantity("Pinned to GPU", value, "bytes/second", key="pinned.h2d.rate") if value else None
            store.add(new_run(f"run-{'abc'[number]}", status="done", figure=figure))
    assert main(["runs", "edit", "@-1", "--name", "driver 575", "--tag", "x", "--tag", "y", "--baseline"]) == 0
    capsys.readouterr()
    assert main(["runs", "edit", "driver 575", "--untag", "x", "--note", "BIOS", "--json"]) == 0
    edited = json.loads(capsys.readouterr().out)
    labels = {field: edited[field] for field in ("id", "name", "tags", "note", "baseline")}
    assert labels == {"id": "run-b", "name": "driver 575", "tags": ["y"], "note": "BIOS", "baseline": True}
    assert listed(capsys, "--tag", "y") == listed(capsys, "--search", "bios run-b") == [edited]
    assert listed(capsys, "--search", "#y RUN-B") == [edited]
    assert listed(capsys, "--tag", "x") == listed(capsys, "--search", "#Y") == []
    assert [run["id"] for run in listed(capsys, "--sort", "figure")] == ["run-b", "run-a", "run-c"]
    assert [run["id"] for run in listed(capsys, "--sort", "oldest", "--limit", "2")] == ["run-a", "run-b"]
    assert main(["runs", "edit", "baseline", "--name", "", "--note", "", "--no-baseline", "--untag", "y"]) == 0
    with Store() as store:
        assert LABELS.isdisjoint(store.run("run-b").model_dump(exclude_defaults=True))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("edit", "run-a"), "nothing was changed; give --name, --tag, --untag, --note, --baseline or --no-baseline"),
        (("edit", "run-a", "--tag", "a b"), "tags.0: a tag has 1 to 40 characters, and no blank, comma or #"),
        (("edit", "20261122-080338", "--name", "mine"), "is a recording that ships with PinScope"),
        (("list", "--sort", "size"), "Invalid value for '--sort'"),
    ],
)
def test_what_cannot_be_changed_is_one_line(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Store() as store:
        store.add(new_run("run-a", status="done"))
    assert complaint in refused(["runs", *arguments], 2, capsys)


def test_a_damaged_run_says_why_and_how_it_is_removed(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_runs([DamagedRun("broken", "it is not JSON")])
    printed = capsys.readouterr()
    assert "damaged: it is not JSON" in printed.out
    assert "pinscope runs delete broken" in printed.err


def test_a_run_without_a_verdict_says_what_kept_it_from_one() -> None:
    for changes, expected in [
        ({"status": "done", "verdict": VERDICT}, VERDICT),
        ({"status": "done", "observations": 1200}, "done: 1,200 observations"),
        ({"status": "failed", "error": "no memory left"}, "failed: no memory left"),
        ({"status": "cancelled"}, "cancelled"),
        ({"status": "cancelled", "verdict": VERDICT}, f"cancelled: {VERDICT}"),
        ({"status": "running", "progress": Progress(fraction=0.25, message="h2d")}, "running: 25.0 % h2d"),
    ]:
        assert answer(synthetic.run("bandwidth", **changes)) == expected
