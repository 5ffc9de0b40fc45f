"""Kept here together: what pinning buys in PyTorch's data loader."""
