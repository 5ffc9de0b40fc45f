"""Copies in this process, in a child by spawn, and none in the workers of a DataLoader, which are children by fork."""

import multiprocessing

import torch


def copies(count):
    for _ in range(count):
        torch.ones(1 << 20).cuda()
    torch.cuda.synchronize()


def main():
    copies(3)
    child = multiprocessing.get_context("spawn").Process(target=copies, args=(4,))
    child.start()
    child.join()
    loader = torch.utils.data.DataLoader(range(8), num_workers=2)
    print(sum(int(each) for each in loader))


if __name__ == "__main__":
    main()
