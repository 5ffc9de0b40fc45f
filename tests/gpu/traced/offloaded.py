"""accelerate's cpu_offload: each call of the model sends all of its weights, which stay on the host."""

import accelerate
import torch

LAYERS, SIZE, CALLS = 8, 2048, 12


def main():
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(SIZE, SIZE) for _ in range(LAYERS)])
    net = accelerate.cpu_offload(net, execution_device="cuda:0")
    x = torch.randn(8, SIZE)
    with torch.no_grad():
        for _ in range(CALLS):
            net(x)  # the model
    torch.cuda.synchronize()


main()
