"""In which order a campaign asks its hosts, and what becomes of one that does not answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

pytest.importorskip("distributed")

from pinscope.fleet import campaign
from pinscope.fleet.campaign import Asked, Campaign, Missing, requests
from pinscope.fleet.cluster import Cluster
from pinscope.fleet.host import describe
from pinscope.store.bundle import this_version
from pinscope.store.store import Store

HANGS, GPUS = "h4", 2  # the last: its place is free once it is given up


@dataclass
class Answer:
    """Stands in for a future of Dask: there when it is looked at a second time, or never."""

    value: Mapping[str, Any] | None
    is_slow: bool = False
    """Whether it does not come when it is fetched for the first time."""
    looked: int = 0

    @property
    def status(self) -> str:
        self.looked += 1
        return "finished" if self.value and self.looked > 1 else "pending"

    def result(self, timeout: float) -> Mapping[str, Any]:
        assert self.value is not None
        if self.is_slow:
            self.is_slow = False
            raise TimeoutError
        return self.value


@dataclass
class Hosts:
    """Stands in for the workers of a cluster and its client. Every run is refused."""

    count: int = 5
    are_slow: bool = False
    asked: list[tuple[str, int]] = field(default_factory=list)
    """Address and GPU of each run, in the order in which they were asked for."""
    busy: dict[str, Answer] = field(default_factory=dict)
    most_busy: int = 0
    launches: tuple[()] = ()

    @property
    def client(self) -> Hosts:
        return self

    def workers(self) -> dict[str, str]:
        return {f"h{number}": f"h{number}" for number in range(self.count)}

    def absent(self, _names: Any) -> list[Any]:
        return []

    def submit(self, function: Any, *arguments: Any, workers: list[str], **_options: Any) -> Answer:
        (address,) = workers
        if function is describe:
            own = this_version()
            known = {"host": address, "machine": address, "version": own.version, "commit": own.commit}
            return Answer({**known, "gpus": list(range(GPUS))}, self.are_slow)
        gpu = arguments[1]["device"]
        self.asked.append((address, gpu))
        self.busy = {host: answer for host, answer in self.busy.items() if answer.value is None or answer.looked < 2}
        answer = Answer(None if address == HANGS else {"refused": "no"}, self.are_slow)
        assert address not in self.busy, "one GPU of a host after the other"
        self.busy[address] = answer
        self.most_busy = max(self.most_busy, len(self.busy))
        return answer


@pytest.mark.parametrize("at_once", [1, 2, None])
def test_gpus_of_a_host_are_measured_in_turn_and_so_many_hosts_at_once_and_one_that_hangs_is_given_up(
    at_once: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(campaign, "TRANSFER_SECONDS", 0.05)
    hosts = Hosts()
    asked = Asked("c1", requests(["bandwidth"], "cuda", True, {}), limit_seconds=0.05, at_once=at_once)
    with Store() as store:
        result = Campaign(cast("Cluster", hosts), store, asked)
        result.carry_out(lambda: False, lambda progress: None)
    assert hosts.most_busy == (at_once or 5)
    assert sorted(hosts.asked) == sorted(
        [(f"h{number}", gpu) for number in range(5) for gpu in range(GPUS) if f"h{number}" != HANGS] + [(HANGS, 0)]
    )
    assert [line for line in result.missing if line.host == HANGS] == [Missing(HANGS, "it did not answer within 0 s")]
    assert len(result.missing) == 4 * GPUS + 1


def test_an_answer_that_does_not_come_when_it_is_fetched_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "LOOK_SECONDS", 0.001)
    hosts = Hosts(count=2, are_slow=True)
    asked = Asked("c1", requests(["bandwidth"], "cuda", True, {}))
    with Store() as store:
        result = Campaign(cast("Cluster", hosts), store, asked)
        result.carry_out(lambda: False, lambda progress: None)
    assert {line.reason for line in result.missing} == {"no"}
    assert len(result.missing) == 2 * GPUS
