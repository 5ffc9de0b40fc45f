"""What the recorder costs: ``overhead.py small|training CONFIG FOLDER`` prints times without and with it, in turn.

``small``: microseconds of a copy of 4 KiB, 13 frames deep. ``training``: milliseconds of a step of an MLP of eight
layers of 2048², from pinned and from pageable memory. ``busy``: milliseconds of a copy of 4 KiB beside a thread that
never gives up the interpreter by itself. ``profiler``: as ``training`` from pinned memory, under torch.profiler
instead, with and without stacks. The recorder is started and ended in this process, so that both are measured alike.
"""

import json
import sys
import threading
import time
from pathlib import Path

from pinscope.tracing.recorder import Recorder
from pinscope.tracing.spool_folder import SpoolFolder

CONFIG, FOLDER = Path(sys.argv[2]), Path(sys.argv[3])
TURNS = 9


def recorder(turn):
    spool = FOLDER / f"spool.{turn}"
    spool.mkdir(0o700)
    (spool / "config.json").write_text(CONFIG.read_text())
    started = Recorder(SpoolFolder.of(spool.stat(), str(spool)), json.loads(CONFIG.read_text())["library"])
    started.start()
    return started


def compare(measure):
    """Times of each thing measured, without and with the recorder, in turn."""
    times = {}
    for turn in range(TURNS):
        for name, value in measure().items():
            times.setdefault(name, {"off": [], "on": []})["off"].append(value)
        running = recorder(turn)
        for name, value in measure().items():
            times[name]["on"].append(value)
        running.finish()
    print(json.dumps(times))


def small():
    import cupy as cp
    import numpy as np

    runtime = cp.cuda.runtime
    device, pinned = runtime.malloc(4096), runtime.hostAlloc(4096, 0)
    pageable, stream = np.ones(4096, np.uint8), cp.cuda.Stream(non_blocking=True)

    def copies(source, count):
        for number in range(count):
            runtime.memcpyAsync(device, source, 4096, 1, stream.ptr)
            if not number & 255:
                stream.synchronize()
        stream.synchronize()

    def deep(source, count, depth):
        return copies(source, count) if not depth else deep(source, count, depth - 1)

    def measure():
        times = {}
        for name, source in (("pinned", pinned), ("pageable", pageable.ctypes.data)):
            deep(source, 500, 12)
            begun = time.perf_counter()
            deep(source, 20_000, 12)
            times[name] = (time.perf_counter() - begun) / 20_000 * 1e6
        return times

    measure()
    compare(measure)


def network():
    """A function that trains so many steps from a source, and the sources."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    pageable = torch.randn(512, 2048)
    sources = {"pinned": pageable.pin_memory(), "pageable": pageable}

    def train(source, steps):
        for _ in range(steps):
            loss = model(source.to("cuda", non_blocking=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.cuda.synchronize()

    return train, sources


def training():
    train, sources = network()

    def measure():
        times = {}
        for name, source in sources.items():
            train(source, 5)
            begun = time.perf_counter()
            train(source, 100)
            times[name] = (time.perf_counter() - begun) / 100 * 1e3
        return times

    measure()
    compare(measure)


def profiler():
    import torch
    from torch.profiler import ProfilerActivity, profile

    train, sources = network()
    source = sources["pinned"]

    def timed():
        train(source, 5)
        begun = time.perf_counter()
        train(source, 100)
        return (time.perf_counter() - begun) / 100 * 1e3

    timed()
    times = {}
    for with_stack in (False, True):
        ways = times["with stacks" if with_stack else "without stacks"] = {"off": [], "on": []}
        for _ in range(3):
            ways["off"].append(timed())
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], with_stack=with_stack):
                ways["on"].append(timed())
    torch.cuda.synchronize()
    print(json.dumps(times))


def busy():
    import cupy as cp

    runtime = cp.cuda.runtime
    device, pinned, stream = runtime.malloc(4096), runtime.hostAlloc(4096, 0), cp.cuda.Stream(non_blocking=True)

    def measure():
        going = [True]

        def count():
            while going[0]:
                sum(range(100))

        beside = threading.Thread(target=count)
        beside.start()
        begun = time.perf_counter()
        for _ in range(15):
            runtime.memcpyAsync(device, pinned, 4096, 1, stream.ptr)
        took = (time.perf_counter() - begun) / 15 * 1e3
        going[0] = False
        beside.join()
        stream.synchronize()
        return {"beside a busy thread": took}

    measure()
    compare(measure)


{"small": small, "training": training, "busy": busy, "profiler": profiler}[sys.argv[1]]()
