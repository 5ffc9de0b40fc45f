"""One rank of NCCL's all-reduce, beside which its GPU copies: :mod:`pinscope.lab.child_processes` starts it.

Needs the extra ``torch``. NCCL reads its settings (NCCL_…) from the environment, as in any program.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed

from pinscope.errors import NotPossible
from pinscope.lab.child_processes import Reply, serve_requests
from pinscope.lab.cuda_memory import CudaCalls
from pinscope.lab.harness import open_lab
from pinscope.lab.torch_pinned import why_not_torch


class Rank:
    """What it can do: each public method is an order.

    Args:
        device_id: :attr:`Lab.device_id` of its GPU.
        rank: its number among so many ``ranks``.
        meeting: path of a file that is not there yet, by which they find each other.
    """

    def __init__(self, device_id: str, rank: int, ranks: int, meeting: str) -> None:
        self._lab, self._open = open_lab(device_id, rank), ExitStack()
        self._rank, self._ranks, self._meeting = rank, ranks, meeting

    def start(self) -> Reply:
        """Open the GPU, and meet the others.

        Raises:
            NotPossible: this PyTorch cannot use the GPU, or has no NCCL.
        """
        self._open.enter_context(self._lab)
        reason = why_not_torch() or (None if torch.distributed.is_nccl_available() else "this PyTorch has no NCCL")
        if reason:
            raise NotPossible(reason)
        self._device = torch.device("cuda", CudaCalls.here().ordinal)
        torch.cuda.set_device(self._device)
        torch.distributed.init_process_group(
            "nccl", init_method=f"file://{self._meeting}", rank=self._rank, world_size=self._ranks
        )
        self._open.callback(torch.distributed.destroy_process_group)
        return {}

    def take(self, nbytes: int, ways: Sequence[str]) -> Reply:
        """Take what is reduced, and what is copied these ways, of so many bytes; the nodes of the host memory."""
        self._reducing, self._copying = torch.cuda.Stream(self._device), torch.cuda.Stream(self._device)
        self._reduced = torch.full((nbytes // 4,), float(self._rank + 1), device=self._device)
        self._copied: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for way in ways:
            host = torch.empty(nbytes // 8, dtype=torch.int64, pin_memory=True)
            there = torch.randint(2**62, (nbytes // 8,), dtype=torch.int64, device=self._device)
            if way == "h2d":
                host.copy_(there)
                there.zero_()
            else:
                host.zero_()
            self._copied[way] = (there, host) if way == "h2d" else (host, there)
            self._lab.host_nodes.look([(host.data_ptr(), nbytes)])
        return {"nodes": self._lab.host_nodes.take()}

    def run(self, reduces: int, way: str | None, copies: int) -> Reply:
        """All-reduces on one stream, copies that way on another; all ranks begin when a first all-reduce is over.

        Gives the seconds of the copies, and of an all-reduce, the mean of those that lie within the time of the copies;
        ``None`` where there were none.
        """
        met, begun, ended = self._event(), self._event(), self._event()
        marks: list[tuple[Any, Any]] = []
        torch.cuda.synchronize(self._device)
        with torch.cuda.stream(self._reducing):
            self._reduce()
            met.record()
        with torch.cuda.stream(self._copying):
            self._copying.wait_event(met)
            begun.record()
            for _ in range(copies if way else 0):
                target, source = self._copied[way or ""]
                target.copy_(source, non_blocking=True)
            ended.record()
        with torch.cuda.stream(self._reducing):
            for _ in range(reduces):
                marks.append((self._event(), self._event()))
                marks[-1][0].record()
                self._reduce()
                marks[-1][1].record()
        torch.cuda.synchronize(self._device)
        first, last = met.elapsed_time(begun), met.elapsed_time(ended)
        times = [(met.elapsed_time(start), met.elapsed_time(end)) for start, end in marks]
        inside = [end - start for start, end in times if way is None or (start >= first and end <= last)]
        return {
            "reduce_seconds": sum(inside) / len(inside) / 1e3 if inside else None,
            "copy_seconds": (last - first) / 1e3 if way else None,
        }

    def check(self) -> Reply:
        """Words that are not what they should be: of the sums, and of what was copied each way."""
        expected = (self._ranks + 1) / 2
        wrong = int(((self._reduced - expected).abs() > 1e-3).sum())
        return {"wrong": wrong + sum(int((there.cpu() != here.cpu()).sum()) for there, here in self._copied.values())}

    def end(self) -> Reply:
        """Give everything back."""
        self._copied.clear()
        self._open.close()
        return {}

    def _reduce(self) -> None:
        """The mean of all ranks, which stays what it is when it is taken again."""
        torch.distributed.all_reduce(self._reduced, op=torch.distributed.ReduceOp.AVG)

    @staticmethod
    def _event() -> Any:
        return torch.cuda.Event(enable_timing=True)


if __name__ == "__main__":
    sys.exit(serve_requests(Rank))
