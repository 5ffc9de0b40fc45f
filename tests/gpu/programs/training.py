"""A training program as PinScope meets it: a DataLoader with workers and pinned batches, and a small network.

    python training.py SECONDS

It needs PyTorch and a GPU.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, PIXELS, WORKERS = 64, 224, 4


class Images(Dataset[torch.Tensor]):
    """Random images."""

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(3, PIXELS, PIXELS)


def train(seconds: float) -> None:
    """Train for so long."""
    layers = (nn.Conv2d(3, 32, 7, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(2048, 10))
    network = nn.Sequential(*layers)
    network.cuda()
    optimizer = torch.optim.SGD(network.parameters(), 1e-3)
    begun = time.monotonic()
    for images in DataLoader(Images(), BATCH, num_workers=WORKERS, pin_memory=True):
        optimizer.zero_grad()
        network(images.to("cuda", non_blocking=True)).square().mean().backward()
        optimizer.step()
        if time.monotonic() - begun > seconds:
            break


if __name__ == "__main__":
    train(float(sys.argv[1]))
