"""What the recorder costs: ``overhead.py WAY CONFIG FOLDER`` prints times without and with it, in turn.

``small``: microseconds of a copy of 4 KiB, 13 frames deep. ``calls``: of PyTorch's calls that make one, which are
followed as well; that of ``back`` is watched. ``beside``: of PyTorch's ``to`` of 1 MiB that is pinned, beside a thread
that pins as much again and again, as a DataLoader's does. ``training``: milliseconds of a step of an MLP of eight
layers of 2048², from pinned and from pageable memory. The recorder is started and ended in this process, so that both
are measured alike.
"""

import json
import sys
import threading
import time
from pathlib import Path

from pinscope.tracing.recorder import Recorder
from pinscope.tracing.spool_folder import SpoolFolder

CONFIG, FOLDER = Path(sys.argv[2]), Path(sys.argv[3])
TURNS = 20


def recorder(turn):
    spool = FOLDER / f"spool.{turn}"
    spool.mkdir(0o700)
    (spool / "config.json").write_text(CONFIG.read_text())
    started = Recorder(SpoolFolder.of(spool.stat(), str(spool)), json.loads(CONFIG.read_text())["library"])
    started.start()
    return started


def compare(measure, follow=lambda _: None):
    """Times of each thing measured, without and with the recorder, in turn; before each it is called whether calls of
    libraries are to be followed."""
    times = {}
    for turn in range(TURNS):
        follow(False)
        for name, value in measure().items():
            times.setdefault(name, {"off": [], "on": []})["off"].append(value)
        running = recorder(turn)
        follow(True)
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
            deep(source, 10_000, 12)
            times[name] = (time.perf_counter() - begun) / 10_000 * 1e6
        return times

    measure()
    compare(measure)


def calls():
    import torch

    pinned, pageable = torch.ones(1024).pin_memory(), torch.ones(1024)
    there = pageable.to("cuda")
    copies = {
        "copy_": lambda: there.copy_(pinned, non_blocking=True),
        "to": lambda: pageable.to("cuda"),
        "cpu": lambda: there.cpu(),  # noqa: PLW0108 - the method of the moment
        "back": lambda: there.to("cpu", non_blocking=True),
    }
    follow = following()

    def measure():
        times = {}
        for name, copy in copies.items():
            begun = time.perf_counter()
            for _ in range(3000):
                copy()
            torch.cuda.synchronize()
            times[name] = (time.perf_counter() - begun) / 3000 * 1e6
        return times

    follow(False)
    measure()
    compare(measure, follow)


def following():
    """A function that has PyTorch's calls followed, or not."""
    import torch

    from pinscope.tracing.host_calls import follow_host_calls

    changed = "copy_", "to", "cpu", "pin_memory"
    methods = [{name: getattr(torch.Tensor, name) for name in changed}]
    follow_host_calls()
    methods.append({name: getattr(torch.Tensor, name) for name in changed})

    def follow(is_on):
        for name, method in methods[is_on].items():
            setattr(torch.Tensor, name, method)

    return follow


def beside():
    import torch

    pageable = torch.ones(1 << 18)
    pinned = [pageable.pin_memory() for _ in range(60)]
    follow = following()

    def measure():
        stop = threading.Event()

        def pin():
            while not stop.is_set():
                pageable.pin_memory()

        thread = threading.Thread(target=pin)
        thread.start()
        begun = time.perf_counter()
        for _ in range(20):
            for each in pinned:
                each.to("cuda", non_blocking=True)
            torch.cuda.synchronize()
        taken = time.perf_counter() - begun
        stop.set()
        thread.join()
        return {"to": taken / (20 * len(pinned)) * 1e6}

    follow(False)
    measure()
    compare(measure, follow)


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
            train(source, 50)
            times[name] = (time.perf_counter() - begun) / 50 * 1e3
        return times

    measure()
    compare(measure)


{"small": small, "calls": calls, "beside": beside, "training": training}[sys.argv[1]]()
