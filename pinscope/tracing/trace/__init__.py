"""A program that was traced, as a run: what its rows answer."""
