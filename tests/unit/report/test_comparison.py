"""Comparisons from ids, bundles and folders, and their files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pinscope.analysis.comparison import verdict
from pinscope.errors import BadBundle, BadInput, PathExists, UnknownName
from pinscope.report.comparison import SUFFIXES, compare_named, render, write_comparison
from pinscope.store.recordings import folder, recorded_runs, recording_name
from pinscope.store.store import Store

IDS = {recording_name(run): run.id for run in recorded_runs()}
RECORDINGS = Path(str(folder()))
H100, H200 = (str(RECORDINGS / f"pinning_strategy-{host}.pinscope") for host in ("h100", "h200"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path_factory.mktemp('compared') / 'runs.sqlite'}") as opened:
        yield opened


def folder_of(path: Path, *names: str) -> str:
    path.mkdir()
    for name in names:
        shutil.copy(RECORDINGS / f"{name}.pinscope", path)
    return str(path)


def test_a_run_is_the_same_by_its_id_in_a_bundle_and_in_a_folder(store: Store, tmp_path: Path) -> None:
    in_folder = folder_of(tmp_path / "after", "pinning_strategy-h200")
    documents = {
        render(compare_named(lambda: store, [H100, second]), ".json")
        for second in (H200, in_folder, IDS["pinning_strategy-h200"])
    }
    assert len(documents) == 1
    (comparison,) = json.loads(documents.pop())["comparisons"]
    assert comparison["experiment"] == "pinning_strategy"
    assert comparison["counts"]["better"] == 4
    assert {key["key"] for key in comparison["machine_differences"]} >= {"gpu.name", "machine_id"}


def test_runs_by_comma_are_one_side_compared_experiment_by_experiment(store: Store) -> None:
    sides = [f"{IDS[f'pinning_strategy-{host}']},{IDS[f'overlap-{host}']}" for host in ("h100", "h200")]
    compared = compare_named(lambda: store, sides)
    assert [one.experiment for one in compared.comparisons] == ["pinning_strategy", "overlap"]


def test_a_recording_goes_by_the_name_of_its_file(store: Store) -> None:
    (comparison,) = compare_named(lambda: store, ["overlap-h100", "overlap-h200"]).comparisons
    assert [side.runs[0].run.id for side in (comparison.a, comparison.b)] == [IDS["overlap-h100"], IDS["overlap-h200"]]
    with pytest.raises(UnknownName, match="bandwidth-h100, dataloader-batches-h100, overlap-h100"):
        store.run("H100")


def test_where_no_condition_names_what_differs_the_sentence_has_what_all_of_it_shares(store: Store) -> None:
    (comparison,) = compare_named(lambda: store, ["bandwidth-h200", "bandwidth-h100"]).comparisons
    assert [group.conditions for group in comparison.groups] == [[], []]
    assert verdict(comparison).endswith(" of 248 cells, only pageable.")


def test_each_further_side_is_set_against_the_first(store: Store) -> None:
    names = ["registration-h200", "registration-2xh200", "registration-shared-h200"]
    compared = compare_named(lambda: store, [IDS[name] for name in names])
    assert [(one.a.name, one.b.name) for one in compared.comparisons] == [("A", "B"), ("A", "C")]


def test_what_one_side_alone_has_is_said(store: Store) -> None:
    compared = compare_named(lambda: store, [H100, f"{H200},{IDS['page_tables-h200']}"])
    assert [one.experiment for one in compared.comparisons] == ["pinning_strategy"]
    assert compared.left_out == ["B alone has page_tables (GPU (CUDA))"]


def test_what_cannot_be_compared_is_refused_in_one_line(store: Store) -> None:
    for sides, error, why in [
        ([H100], BadInput, "two sides or more"),
        ([H100, H100], BadInput, "is there twice"),
        ([f"{H100},{H100}", H200], BadInput, "twice"),
        ([H100, IDS["page_tables-h200"]], BadInput, "pinning_strategy and page_tables"),
        ([H100, ","], BadInput, "B has no run that can be compared"),
        ([H100, "nothing"], UnknownName, "no run 'nothing'"),
        ([H100, "nothing.pinscope"], BadBundle, "No such file"),
        ([H100, str(Path(__file__))], BadBundle, "not a PinScope bundle"),
        ([H100, str(Path(__file__).parent)], BadInput, "has no bundle"),
    ]:
        with pytest.raises(error, match=why):
            compare_named(lambda: store, sides)


def test_every_format_is_written_once_and_says_the_verdict(store: Store, tmp_path: Path) -> None:
    compared = compare_named(lambda: store, [H100, H200])
    for suffix in SUFFIXES:
        file = tmp_path / f"comparison{suffix}"
        write_comparison(file, compared)
        assert "H200 is faster by 27 % in 4 of 10 cells" in file.read_text()
        with pytest.raises(PathExists):
            write_comparison(file, compared)
    with pytest.raises(BadInput, match=r"there are: \.html, \.md, \.json"):
        write_comparison(tmp_path / "comparison.csv", compared)


def test_the_page_draws_both_sides_and_the_ratios(store: Store) -> None:
    page = render(compare_named(lambda: store, [H100, H200]), ".html").decode()
    assert page.count('class="plot"') == 2
    assert "Ratios: " in page
