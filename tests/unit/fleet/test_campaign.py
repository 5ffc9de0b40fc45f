"""What a campaign may ask, before any host is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinscope.errors import BadInput, InvalidParameter, NotPossible

pytest.importorskip("distributed")

from pinscope.cli.main import main
from pinscope.fleet.campaign import Asked, done_already, requests
from pinscope.records.run import ExperimentRun
from pinscope.store.recordings import recorded_runs
from pinscope.store.store import Store


def test_a_setting_goes_to_the_experiments_that_have_it() -> None:
    asked = requests(["bandwidth", "page_tables"], "host", True, {"sizes": "64KiB", "total": "1MiB"})
    assert [(request.experiment, dict(request.overrides)) for request in asked] == [
        ("bandwidth", {"sizes": "64KiB"}),
        ("page_tables", {"total": "1MiB"}),
    ]


@pytest.mark.parametrize(
    ("names", "settings", "error"),
    [
        (["bandwidht"], {}, BadInput),
        (["bandwidth"], {"total": "1MiB"}, InvalidParameter),
        (["bandwidth"], {"sizes": "-1"}, InvalidParameter),
        (["topology"], {}, NotPossible),
    ],
)
def test_what_no_host_could_do_is_refused_at_once(
    names: list[str], settings: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        requests(names, "host", True, settings)


def test_a_campaign_s_name_and_labels_must_be_tags() -> None:
    asked = requests(["bandwidth"], "host", True, {})
    assert Asked("c1", asked, ("rack=r1",), {"node1": ["row=A"]}).on(asked[0], 1, "node1")["labels"] == {
        "tags": ["rack=r1", "row=A", "fleet=c1"]
    }
    for wrong in ({"campaign": "a b"}, {"campaign": "x" * 35}, {"tags": ("two words",)}, {"host_tags": {"n": ["a,b"]}}):
        with pytest.raises(InvalidParameter):
            Asked(**{"campaign": "c1", "requests": asked, **wrong})  # type: ignore[arg-type]


def test_a_run_is_there_if_campaign_host_gpu_experiment_size_and_set_parameters_are_those_asked_for() -> None:
    recorded = next(run for run in recorded_runs() if run.experiment == "bandwidth")
    run = recorded.model_copy(update={"recording": False, "tags": ("fleet=c1", "rack=r1")})
    assert isinstance(run, ExperimentRun)
    changes = {
        "there": {},
        "of-another-gpu": {"device": 1},
        "of-another-host": {"environment": run.environment.model_copy(update={"host": "node2"})},
        "of-another-campaign": {"tags": ("fleet=c2",), "device": 2},
        "of-another-size": {"quick": not run.quick, "device": 3},
        "with-another-parameter": {"params": {**run.params, "repeats": 9}, "device": 4},
        "that-failed": {"status": "failed", "device": 5},
    }
    with Store() as store:
        for name, change in changes.items():
            store.add(run.model_copy(update={"id": name, **change}))
        set_ = {"repeats": str(run.params["repeats"])}
        done = done_already(store, Asked("c1", requests(["bandwidth"], "cuda", run.quick, set_)))
    host = run.environment.host
    assert {key: there.id for key, there in done.items()} == {
        (host, "bandwidth", 0): "there",
        (host, "bandwidth", 1): "of-another-gpu",
        ("node2", "bandwidth", 0): "of-another-host",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "takes one of --scheduler"),
        (["--local", "1", "--slurm", "1"], "takes one of --scheduler"),
        (["--local", "1", "--label", "rack"], "--label takes KEY=VALUE"),
        (["--ssh", ","], "--ssh takes hosts"),
        (["--ssh", "@nowhere.txt"], "nowhere.txt: No such file"),
        (["--local", "1", "--labels", "LABELS"], "host, and one a label"),
        (["--scheduler", "tcp://127.0.0.1:8786"], "takes orders from anybody"),
    ],
)
def test_bad_input_is_said_in_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "labels.csv"
    file.write_text("node,rack\nn1,r1\n")
    words = [str(file) if word == "LABELS" else word for word in arguments]
    assert main(["fleet", "run", "bandwidth", "--lab", "host", *words]) == 2
    assert said in capsys.readouterr().err
