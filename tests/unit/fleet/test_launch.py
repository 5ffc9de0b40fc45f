"""What starts workers elsewhere: commands that carry no secret, and a pod that Kubernetes takes."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from pinscope.errors import BadInput

pytest.importorskip("distributed")

from pinscope.fleet import launch
from pinscope.fleet.cluster import Plan

HOST = socket.gethostname()
ORDER = {"campaign": "c1", "scheduler": "tls://10.0.0.1:1", "security": {"tls_worker_key": "SECRET"}}


@pytest.mark.parametrize(
    ("plan", "names", "hosts"),
    [
        (launch.local(2), [f"{HOST}-local-1", f"{HOST}-local-2"], None),
        (launch.ssh(["node1", "me@node2"], ["-p", "22"]), ["node1", "me@node2"], None),
        (launch.slurm(3, ["--exclusive"]), ["slurm"], 3),
    ],
)
def test_a_worker_gets_the_certificate_by_its_input_and_by_nothing_else(
    plan: Plan, names: list[str], hosts: int | None, tmp_path: Path
) -> None:
    launches = plan(ORDER, tmp_path)
    assert [(each.name, each.hosts) for each in launches] == [(name, hosts) for name in names]
    for each in launches:
        assert each.order["security"] == ORDER["security"]
        assert "SECRET" not in " ".join(each.command)


def test_several_workers_of_one_machine_pretend_to_be_hosts_and_share_its_gpus(tmp_path: Path) -> None:
    (alone,) = launch.local(1)(ORDER, tmp_path)
    assert (alone.order["pretends"], alone.order["share"]) == (False, [0, 1])
    assert [(each.order["pretends"], each.order["share"]) for each in launch.local(2)(ORDER, tmp_path)] == [
        (True, [0, 2]), (True, [1, 2]),
    ]  # fmt: skip


def test_kubernetes_needs_an_image() -> None:
    with pytest.raises(BadInput, match="--image"):
        launch.kubernetes(2, None, 1)


def test_a_pod_is_one_that_kubernetes_takes() -> None:
    schemas: Any = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate brings the schemas"
    )
    for gpus in (0, 8):
        schemas.validate(launch.pod("c1", "registry.example/pinscope", gpus, "python3"), "1.37", strict=True)
