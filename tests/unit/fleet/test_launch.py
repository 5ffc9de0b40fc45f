"""What starts workers elsewhere: commands that carry no secret, and a pod that Kubernetes takes."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pinscope.errors import BadInput

pytest.importorskip("distributed")

from pinscope.fleet import cluster
from pinscope.fleet.cluster import Launch

HOST = socket.gethostname()
ORDER = {"campaign": "c1", "security": {"tls_worker_key": "SECRET"}}


def read_by(launch: Launch, folder: Path) -> Any:
    """What its worker reads, by a program that hands its input on."""
    program = "import sys; from pathlib import Path; Path(sys.argv[1]).write_text(sys.stdin.readline())"
    instead = replace(launch, command=[sys.executable, "-c", program, str(folder / "read")])
    instead.start(ORDER, folder / "errors")
    try:
        assert instead._process is not None
        assert instead._process.wait(60) == 0, instead.last_words
    finally:
        instead.ask_to_end()
    return json.loads((folder / "read").read_text())


def test_a_worker_gets_the_certificate_by_its_input_and_by_nothing_else(tmp_path: Path) -> None:
    ways = {
        (f"{HOST}-local-1", f"{HOST}-local-2"): cluster.local(2),
        ("node1", "me@node2"): cluster.ssh(["node1", "me@node2"], ["-p", "22"]),
        (None,): cluster.slurm(3, ["--exclusive"]),
    }
    for names, launches in ways.items():
        read = [read_by(launch, tmp_path) for launch in launches]
        assert tuple(order.get("name") for order in read) == names
        assert all(order["security"] == ORDER["security"] for order in read)
    assert [launch.hosts for launch in cluster.slurm(3)] == [3]


def test_several_workers_of_one_machine_pretend_to_be_hosts_and_share_its_gpus(tmp_path: Path) -> None:
    read = [read_by(launch, tmp_path) for launch in (*cluster.local(1), *cluster.local(2))]
    assert [(order["pretends"], order["share"]) for order in read] == [(False, [0, 1]), (True, [0, 2]), (True, [1, 2])]


def test_kubernetes_needs_an_image() -> None:
    with pytest.raises(BadInput, match="--image"):
        cluster.kubernetes(2, None, 1)


def test_each_pod_has_its_own_name_also_in_what_overrides_that_of_kubectl() -> None:
    launches = cluster.kubernetes(2, "registry.example/pinscope", 1)
    words = [word.removeprefix("--overrides=") for launch in launches for word in launch.command]
    manifests = [json.loads(word) for word in words if word.startswith("{")]
    assert [manifest["metadata"]["name"] for manifest in manifests] == [launch.name for launch in launches]
    assert len({launch.name for launch in launches}) == 2


def test_a_pod_is_one_that_kubernetes_takes() -> None:
    schemas: Any = pytest.importorskip(
        "kubernetes_validate", reason="pip install kubernetes-validate brings the schemas"
    )
    for gpus in (0, 8):
        schemas.validate(cluster.pod("c1-0", "c1", "registry.example/pinscope", gpus, "python3"), "1.37", strict=True)
