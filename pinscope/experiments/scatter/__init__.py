"""Kept here together: many small pieces of host memory, moved to the GPU or back."""
