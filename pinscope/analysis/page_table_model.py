"""How much a page table takes: one entry a page.

An entry of a GPU's page table has 8 bytes (NVIDIA open-gpu-doc, "Pascal MMU Format Changes": PTE; later
architectures keep the size), as has one of x86-64 and arm64. The directories above are left out of the formula, as in
the usual estimates; what is measured has them.
"""

from __future__ import annotations

ENTRY_BYTES = 8
GPU_PAGE_SIZES = (4 * 2**10, 64 * 2**10, 2 * 2**20)
"""Pages that a GPU can map host memory in."""
UPPER_LEVELS = 1 / 256
"""What the directories above add at most, as a share of the entries: 16 bytes for each 4 KiB table (dev_mmu.h of
NVIDIA's open kernel module, NV_MMU_VER2_DUAL_PDE__SIZE). Measured so on an H200: 2 MiB for every 1020 MiB pinned in
4 KiB pages, not for every 1024."""
GRANULE_BYTES = 2 * 2**20
"""GPU memory for page tables is taken in steps of this size."""
FIRST_CONTEXT_BYTES = 3_407_872
CONTEXT_BYTES = 3_735_552
"""What the driver takes for contexts and charges to no process: once on a GPU, and for each. Measured on H200s with
driver 580.159, to 64 KiB: with one to four C programs, with PyTorch, and with ten programs of all kinds."""


def page_table_bytes(mapped_bytes: int, page_bytes: int) -> int:
    """Bytes of page-table entries that map ``mapped_bytes`` in pages of ``page_bytes``."""
    return -(-mapped_bytes // page_bytes) * ENTRY_BYTES


def page_table_memory_bytes(mapped_bytes: int, page_bytes: int) -> int:
    """GPU memory that the page table of ``mapped_bytes`` takes, in the driver's steps (measured on an H200)."""
    return -(-page_table_bytes(mapped_bytes, page_bytes) // GRANULE_BYTES) * GRANULE_BYTES


def context_overhead_bytes(contexts: int) -> int:
    """GPU memory of that many contexts on one GPU that no process is charged for, as on H200s."""
    return FIRST_CONTEXT_BYTES + contexts * CONTEXT_BYTES if contexts else 0


def implied_page_bytes(table_bytes_per_byte: float) -> float:
    """The page size at which a page table takes that many bytes per mapped byte."""
    return ENTRY_BYTES / table_bytes_per_byte
