"""A rank of a job that loads batches of its own and leaves them pageable. ``torchrun`` starts it twice, on one GPU."""

import torch
from torch.utils.data import DataLoader, Dataset


class Pieces(Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        return torch.full((1 << 18,), float(index))


def main():
    weight = torch.randn(1024, 1024, device="cuda:0")
    loader = DataLoader(Pieces(), batch_size=16, num_workers=2)  # the loader
    for batch in loader:
        on_gpu = batch.to("cuda:0", non_blocking=True)  # the batch
        (on_gpu.view(-1, 1024) @ weight).sum()
    torch.cuda.synchronize()


main()
