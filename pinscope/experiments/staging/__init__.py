"""Kept here together: how data that lies in pageable memory reaches the GPU, and what that holds the CPU for."""
