"""PinScope: measure, watch and explain page-locked (pinned) host memory on CUDA hosts."""

__version__ = "0.1.0"
