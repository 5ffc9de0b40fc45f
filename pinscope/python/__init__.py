"""PinScope in a program of the user's own, and in notebooks: what ``import pinscope`` offers, over the rooms below.

``opened`` is a run with all that follows from it; ``session`` has the functions that measure, find, compare and plan;
it also has the magic ``%%pinscope``; ``pytest_plugin`` is the marker ``pinscope``. Nothing here measures or concludes.
"""
