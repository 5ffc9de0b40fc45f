"""Which of several experiments run on a machine that cannot hold them all."""

from __future__ import annotations

import pytest

from pinscope.cli.run import _possible
from pinscope.errors import InvalidParameter, NotEnoughMemory
from pinscope.records.environment import Environment
from pinscope.runner.jobs import Request
from tests.data import synthetic

REQUESTS = [Request("bandwidth", "host", quick=True), Request("overlap", "host", quick=True)]


def lockable(nbytes: int) -> Environment:
    environment: Environment = synthetic.environment(devices=0)
    limits = environment.limits.model_copy(update={"memlock_headroom_bytes": nbytes})
    return environment.model_copy(update={"limits": limits})


def test_an_experiment_that_does_not_fit_is_left_out_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert _possible(REQUESTS, lockable(8 * 2**20)) == REQUESTS[:1]
    assert "left out: overlap: the run needs" in capsys.readouterr().err


def test_nothing_is_left_out_where_all_fit() -> None:
    assert _possible(REQUESTS, lockable(2**30)) == REQUESTS


def test_where_none_fits_the_first_is_refused() -> None:
    with pytest.raises(NotEnoughMemory):
        _possible(REQUESTS, lockable(2**12))


def test_bad_input_to_one_refuses_all() -> None:
    with pytest.raises(InvalidParameter):
        _possible([*REQUESTS, Request("overlap", "host", overrides={"chunk": "-1"})], lockable(2**30))


def test_settings_that_do_not_fit_one_refuse_all() -> None:
    with pytest.raises(NotEnoughMemory):
        _possible([Request("bandwidth", "host", overrides={"sizes": "1TiB"}), REQUESTS[1]], lockable(2**30))
