"""The shapes of PyTorch's tutorial on pin_memory() and non_blocking: tensors to the GPU in each of its ways."""

import torch

N = 4 << 20  # bytes of a tensor


def pageable_blocking(tensors):
    return [each.to("cuda") for each in tensors]  # pageable


def pageable_non_blocking(tensors):
    return [each.to("cuda", non_blocking=True) for each in tensors]  # pageable, non_blocking


def pinned_non_blocking(tensors):
    return [each.to("cuda", non_blocking=True) for each in tensors]  # pinned, non_blocking


def pin_and_copy(tensors):
    return [each.pin_memory().to("cuda", non_blocking=True) for each in tensors]  # pinned in the loop


def back(tensors):
    return [each.to("cpu", non_blocking=True) for each in tensors]  # down


def main():
    tensors = [torch.randn(N // 4) for _ in range(8)]
    pinned = [each.pin_memory() for each in tensors]
    for _ in range(3):
        for way, source in (
            (pageable_blocking, tensors),
            (pageable_non_blocking, tensors),
            (pinned_non_blocking, pinned),
            (pin_and_copy, tensors),
        ):
            moved = way(source)
            torch.cuda.synchronize()
    back(moved)
    torch.cuda.synchronize()
    print(moved[0].sum().item() == tensors[0].cuda().sum().item())


main()
