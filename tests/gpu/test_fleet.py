"""A campaign on a host with two GPUs: by one worker, both in turn, and by two workers that pretend to be a host each.

Predicted before the first run: four runs are stored, one a GPU and campaign, each by its own worker; the same campaign
again measures nothing; ``check`` finds no pinned cell of theirs worse than eight local runs of the same GPU, nor any of
these worse than theirs.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.machine import pinscope

pytest.importorskip("distributed")

SOME = ("--set", "sizes=1MiB,64MiB", "--set", "memory=pinned", "--quick")


def campaign(name: str, workers: int) -> tuple[int, Any]:
    """Exit code and JSON."""
    done = pinscope("fleet", "run", "bandwidth", *SOME, "--local", str(workers), "--campaign", name, "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


@pytest.mark.two_gpus
def test_both_gpus_are_measured_in_turn_and_by_two_hosts_and_check_calls_them_equal_to_local_runs(
    tmp_path: Path,
) -> None:
    code, turn = campaign("turn", 1)
    assert (code, turn["missing"]) == (0, [])
    code, hosts = campaign("hosts", 2)
    assert (code, hosts["missing"]) == (0, [])
    assert sorted(run["host"] for run in hosts["stored"]) == [
        f"{socket.gethostname()}-local-{place}" for place in (1, 2)
    ]
    code, again = campaign("turn", 1)
    assert (code, again["stored"], len(again["already"])) == (0, [], 2)
    for device in (0, 1):
        of_fleet = [run["id"] for run in (*turn["stored"], *hosts["stored"]) if run["device"] == device]
        assert len(of_fleet) == 2
        local, fleet = tmp_path / f"local-{device}.json", tmp_path / f"fleet-{device}.json"
        made = pinscope("check", "write", str(local), "bandwidth", *SOME, "--device", str(device), "--count", "8")
        assert made.returncode == 0, made.stderr
        checked = pinscope("check", str(local), "--runs", ",".join(of_fleet))
        assert checked.returncode == 0, checked.stdout + checked.stderr
        written = pinscope("check", "write", str(fleet), "--runs", ",".join(of_fleet))
        assert written.returncode == 0, written.stderr
        own = json.loads(local.read_text())["experiments"][0]["runs"]
        back = pinscope("check", str(fleet), "--runs", ",".join(own))
        assert back.returncode == 0, back.stdout + back.stderr
