"""Parts and ranges: ``parts.py`` by python or by pinscope trace; copies run on behind the end of a part."""

import cupy
import torch

import pinscope

MIB = 1 << 20


def copy(source, target, count):
    for _ in range(count):
        target.copy_(source, non_blocking=True)  # the copy


def main():
    source, target = torch.ones(64 * MIB, dtype=torch.uint8).pin_memory(), torch.empty(64 * MIB, dtype=torch.uint8)
    target = target.cuda()
    torch.cuda.synchronize()
    copy(source, target, 2)
    with pinscope.trace("first"):
        copy(source, target, 30)
    copy(source, target, 3)
    with pinscope.trace("second"):
        torch.cuda.nvtx.range_push("of torch")
        copy(source, target, 20)
        cupy.cuda.nvtx.RangePush("of cupy")
        copy(source, target, 10)
        cupy.cuda.nvtx.RangePop()
        torch.cuda.nvtx.range_pop()
        copy(source, target, 5)
    torch.cuda.synchronize()
    print("end")


main()
