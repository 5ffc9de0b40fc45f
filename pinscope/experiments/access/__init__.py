"""Kept here together: kernels that read and write host memory."""
