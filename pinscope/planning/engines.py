"""Settings of inference engines that pin host memory: in which unit and for whom each counts, and what a host holds.

Each was read in the engine's own source, at the place that its row names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pinscope.records.run import Table, table

GIB, GB = 2**30, 10**9


@dataclass(frozen=True)
class Setting:
    """What a user gives an engine.

    Attributes:
        engine: its name.
        name: of the setting, as it is given.
        unit: the word for what it counts.
        unit_bytes: the same in bytes.
        of: whether it is the sum, or for each process (a rank, a worker: one GPU).
        rounds: whether PyTorch rounds each of its tensors up to a power of two: up to twice of it is then pinned.
        write: how a number is given: whole ones, or with two decimals.
    """

    engine: str
    name: str
    unit: str
    unit_bytes: int
    of: Literal["all processes", "each process"]
    rounds: bool = False
    write: Callable[[float], str] = lambda value: f"{int(value * 100) / 100:g}"

    def most(self, safe_bytes: int, processes: int) -> str:
        """The value that pins at most ``safe_bytes`` in all, as it is given."""
        parts = (processes if self.of == "each process" else 1) * (2 if self.rounds else 1)
        return self.write(safe_bytes / parts / self.unit_bytes)


def _whole(value: float) -> str:
    return str(int(value))


SETTINGS = (
    # vllm/config/cache.py, kv_offloading_size: GiB, "summed across all TP ranks". Mapped and registered since
    # vllm PR 50094; before, PyTorch rounded each tensor (vllm#53042: 1.92 times).
    Setting("vLLM", "--kv-offloading-size", "GiB", GIB, "all processes"),
    # vllm/config/offload.py, cpu_offload_gb: GiB, "per GPU"; each parameter by Tensor.pin_memory() (vllm#56410).
    Setting("vLLM", "--cpu-offload-gb", "GiB", GIB, "each process", rounds=True),
    # sglang/srt/mem_cache, HostKVCache: host_size * 1e9 in each rank, an integer; memory is registered as it is.
    Setting("SGLang", "--hicache-size", "GB", GB, "each process", write=_whole),
    # tensorrt_llm/_torch/pyexecutor/resource_manager.py: host_cache_size ÷ bytes a token of this rank.
    Setting("TensorRT-LLM", "KvCacheConfig.host_cache_size", "bytes", 1, "each process", write=_whole),
    # lmcache/v1, max_local_cpu_size * 1024**3 in each worker, though its own pages say GB; pinned by its own call.
    Setting("LMCache", "max_local_cpu_size", "GiB", GIB, "each process"),
)


def engines_table(safe_bytes: int | None, processes: int) -> Table | None:
    """What to give each engine at most, so that the host holds it; ``None`` where it is not known what is safe."""
    if safe_bytes is None:
        return None
    return table(
        "Settings of engines",
        {"engine": "text", "setting": "text", "at most": "text", "it counts": "text", "of": "text"},
        [(each.engine, each.name, each.most(safe_bytes, processes), each.unit, each.of) for each in SETTINGS],
        note="Each fills what is safe; a process uses one GPU. PyTorch rounds each tensor of --cpu-offload-gb up "
        "to a power of two: half is given. It does so with --kv-offloading-size before vLLM's PR 50094.",
    )
