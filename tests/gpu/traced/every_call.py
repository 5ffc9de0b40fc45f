"""Every call that ``--what-if`` redirects, on tensors of every kind: each source is changed right after its copy."""

import hashlib

import cupy as cp
import numpy as np
import torch

N = 1 << 19


def show(name, result):
    array = result.detach().cpu().resolve_conj().contiguous()
    stride = result.stride()
    print(name, result.dtype, stride, hashlib.sha256(array.view(torch.uint8).numpy().tobytes()).hexdigest())


def sources():
    numbers = torch.arange(N, dtype=torch.float32)
    yield "contiguous", numbers.clone()
    yield "matrix", numbers.reshape(512, -1).clone()
    yield "transposed", numbers.reshape(512, -1).clone().t()
    yield "strided", numbers.repeat(2)[::2]
    yield "channels last", numbers.reshape(8, 16, 64, 64).clone().contiguous(memory_format=torch.channels_last)
    yield "integers", numbers.to(torch.int16)
    yield "truth values", numbers > 1000
    yield "complex numbers", torch.complex(numbers, -numbers)
    yield "conjugated", torch.complex(numbers, -numbers).conj()
    yield "expanded", numbers[: N // 8].expand(8, -1)
    yield "brain floats", numbers.to(torch.bfloat16)


def change(source):
    if source.is_conj() or source.stride(0) == 0:
        return
    source.zero_()


def moves():
    other = torch.zeros(1, dtype=torch.float64, device="cuda")
    return (
        lambda x: x.to("cuda"),
        lambda x: x.to(device="cuda", non_blocking=True),
        lambda x: x.to(torch.device("cuda", 0), torch.float16),
        lambda x: x.to(other, True),
        lambda x: x.to("cuda", memory_format=torch.preserve_format),
        lambda x: x.cuda(),
        lambda x: x.cuda(0, non_blocking=False),
        lambda x: torch.empty(x.shape, dtype=x.dtype, device="cuda").copy_(x),
        lambda x: torch.empty(x.shape, dtype=torch.complex128, device="cuda").copy_(x, True),
        lambda x: torch.empty(x.shape, dtype=x.dtype, device="cuda").copy_(other=x),
    )


def many():
    """Copies of which none is waited for: buffers are filled again while earlier copies from them still wait."""
    weights, source = torch.ones(4096, 4096, device="cuda"), torch.empty(1 << 22)
    array = np.empty(1 << 22, np.float32)
    moved, arrays = [], [cp.empty(array.shape, np.float32) for _ in range(20)]
    for turn in range(20):
        source.fill_(turn)
        array.fill(turn)
        weights = weights @ weights / 4096
        moved.append(source.cuda())
        arrays[turn].set(array)
    for turn in range(20):
        show(f"many {turn}", moved[turn])
        print(turn, hashlib.sha256(arrays[turn].get().tobytes()).hexdigest())


def main():
    for number, move in enumerate(moves()):
        for _ in range(3):  # a buffer is used again, for another type and shape
            for name, source in sources():
                moved = move(source)
                change(source)
                show(f"{number} {name}", moved)
    with torch.inference_mode():
        show("inference", torch.arange(N, dtype=torch.float32).cuda())
    wanted = torch.arange(N, dtype=torch.float32, requires_grad=True)
    wanted.cuda().square().sum().backward()
    show("gradient", wanted.grad)
    model = torch.nn.Linear(1024, 1024)
    torch.nn.init.ones_(model.weight)
    show("model", model.cuda().weight)
    for order in "CF":
        array = np.asfortranarray(np.arange(N, dtype=np.float32).reshape(512, -1))
        device = cp.zeros(array.shape, np.float32, order=order)
        for turn in range(6):
            device.set(array)
            array += 1
            print(order, turn, hashlib.sha256(device.get().tobytes()).hexdigest())
    many()
    side = torch.cuda.Stream()
    for turn in range(6):
        source = torch.full((1 << 22,), float(turn))
        moved = source.cuda()
        source.zero_()
        with torch.cuda.stream(side):  # which does not wait: the copy did
            show(f"another stream {turn}", moved.clone())


main()
