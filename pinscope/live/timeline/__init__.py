"""A live view that was kept: its rows, and what they answer."""
