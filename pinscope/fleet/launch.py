"""What starts the workers of a campaign: on this machine, by ssh, by Slurm, in Kubernetes.

Each launcher hands a worker's input on, and ends it where that ends. So the campaign's certificate lies in no shared
folder and stands on no command line, and no worker outlives its campaign.
"""

from __future__ import annotations

import json
import secrets
import shlex
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pinscope import isolation
from pinscope.errors import BadInput
from pinscope.fleet.cluster import Launch, Plan

_MODULE = "pinscope.fleet.worker"


def local(count: int) -> Plan:
    """Workers on this machine; several pretend to be a host each, and share the GPUs between them."""

    def plan(order: Mapping[str, Any], folder: Path) -> Sequence[Launch]:
        own = {**order, "pretends": count > 1, "folder": str(folder)}
        names = [f"{socket.gethostname()}-local-{place}" for place in range(1, count + 1)]
        return [
            Launch(name, isolation.command(_MODULE), {**own, "name": name, "share": [place, count]})
            for place, name in enumerate(names)
        ]

    return plan


def ssh(hosts: Sequence[str], options: Sequence[str] = (), python: str | None = None) -> Plan:
    """A worker on each host that ``ssh`` reaches without asking anything.

    Args:
        hosts: as ssh takes them.
        options: further options of ssh.
        python: the interpreter there, by default as here.
    """
    command = ["ssh", "-T", "-o", "BatchMode=yes", *options, "--"]
    remote = shlex.join(_started_by(python))
    return lambda order, _folder: [Launch(host, [*command, host, remote], {**order, "name": host}) for host in hosts]


def slurm(nodes: int, options: Sequence[str] = (), python: str | None = None) -> Plan:
    """A worker on each of so many nodes, in one allocation of ``srun``.

    Args:
        nodes: how many.
        options: further options of srun.
        python: the interpreter there, by default as here.
    """
    size = [f"--nodes={nodes}", "--ntasks-per-node=1", "--job-name=pinscope"]
    keep_others = ["--kill-on-bad-exit=0", "--no-kill", "--wait=0"]
    command = ["srun", *size, *keep_others, *options, *_started_by(python)]
    return lambda order, _folder: [Launch("slurm", command, order, nodes)]


def kubernetes(
    nodes: int, image: str | None, gpus: int, options: Sequence[str] = (), python: str | None = None
) -> Plan:
    """A pod on each of so many nodes, by ``kubectl run``, which removes it at the end.

    Args:
        nodes: how many.
        image: the image of its container, which has PinScope.
        gpus: how many of a node's GPUs a pod gets.
        options: further options of kubectl.
        python: the interpreter there, by default ``python3``.

    Raises:
        BadInput: no image.
    """
    if not image:
        raise BadInput("--kubernetes takes --image: an image that has PinScope")
    campaign = secrets.token_hex(4)
    manifest = json.dumps(pod(campaign, image, gpus, python or "python3"))
    how = ["--restart=Never", "--rm", "--quiet", "--stdin", f"--image={image}", f"--overrides={manifest}"]
    names = [f"pinscope-{campaign}-{place}" for place in range(nodes)]
    return lambda order, _folder: [
        Launch(name, ["kubectl", "run", name, *how, *options], {**order, "name": name}) for name in names
    ]


def pod(campaign: str, image: str, gpus: int, python: str) -> dict[str, Any]:
    """The pod of one node as its manifest says it: no two of a campaign on a node, and called as the node is."""
    ours = {"pinscope-campaign": campaign}
    apart = {"labelSelector": {"matchLabels": ours}, "topologyKey": "kubernetes.io/hostname"}
    container = {
        "name": "worker",
        "image": image,
        "command": [*_started_by(python), "-", "$(NODE)"],
        "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {},
        "stdin": True,
        "stdinOnce": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pinscope", "labels": ours},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
            "containers": [container],
        },
    }


def _started_by(python: str | None) -> list[str]:
    return [python or isolation.command(_MODULE)[0], "-P", "-m", _MODULE]
