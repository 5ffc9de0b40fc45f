"""A program that copies in children of each kind, so often as each is told: ``children.py LIBRARY [COUNT]``."""

import multiprocessing.util
import os
import subprocess
import sys

MIB = 1 << 20
LIBRARY = sys.argv[1]


def copy(count: int) -> float:
    """So many pageable copies of 4 MiB to the GPU; what the last one brought there."""
    if LIBRARY == "torch":
        import torch

        source = torch.ones(MIB)
        for _ in range(count):
            there = source.to("cuda")
        return float(there.sum())
    import numpy

    source = numpy.ones(MIB, numpy.float32)
    if LIBRARY == "cupy":
        import cupy

        for _ in range(count):
            there = cupy.asarray(source)
        return float(there.sum())
    from numba import cuda

    for _ in range(count):
        there = cuda.to_device(source)
    return float(there.copy_to_host().sum())


def copied(count: int) -> None:
    """In a child; another exit code where the data did not arrive."""
    if copy(count) != MIB:
        sys.exit(3)


def start(way: str, count: int) -> None:
    """A process of multiprocessing."""
    process = multiprocessing.get_context(way).Process(target=copied, args=(count,))
    process.start()
    process.join()
    print(way, process.exitcode, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        copied(int(sys.argv[2]))
        sys.exit()
    for count, way in ((7, "spawn"), (8, "forkserver")):
        start(way, count)
    print("subprocess", subprocess.run([sys.executable, __file__, LIBRARY, "10"], check=False).returncode, flush=True)
    print("own", copy(11) == MIB, flush=True)
    multiprocessing.util._run_finalizers()  # the folder of its sockets, which a program that is replaced leaves
    os.execv(sys.executable, [sys.executable, __file__, LIBRARY, "13"])  # noqa: S606
