"""A rank of a job: copies of its own size, from its own process. ``torchrun`` starts it twice."""

import os

import torch

RANK = int(os.environ["RANK"])


def main():
    batch = torch.ones((RANK + 1) << 20, dtype=torch.float32)
    for _ in range(5):
        batch.to("cuda")  # the rank's batch
    torch.cuda.synchronize()


main()
