"""A training loop over a DataLoader: ``loader_loop.py on|off|both [steps [FILE]]`` sets pin_memory.

``both``: three loops of each in turn. The file gets a line with the seconds of each from its first batch on.
"""

import json
import pathlib
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PINS = {"on": [True], "off": [False], "both": 3 * [False, True]}[sys.argv[1]]
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40


class Images(Dataset):
    def __len__(self):
        return STEPS * 32

    def __getitem__(self, index):
        return torch.full((3, 128, 128), float(index % 7)), index % 10


def main():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2), nn.ReLU(), nn.Conv2d(64, 64, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.LazyLinear(10),
    ).cuda()  # fmt: skip
    with torch.no_grad():
        model(torch.zeros(2, 3, 128, 128, device="cuda"))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    took = {"off": [], "on": []}
    for pin in PINS:
        loader = DataLoader(Images(), batch_size=32, num_workers=2, pin_memory=pin)
        total, begun = 0.0, None
        for images, labels in loader:
            begun = begun or time.perf_counter()
            images = images.to("cuda", non_blocking=True)  # the batch
            labels = labels.to("cuda", non_blocking=True)
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()  # the synchronisation
        took["on" if pin else "off"].append(time.perf_counter() - begun)
        print(f"{total / STEPS:.3f}")
    if len(sys.argv) > 3:
        with pathlib.Path(sys.argv[3]).open("a") as file:
            file.write(json.dumps(took) + "\n")


main()
