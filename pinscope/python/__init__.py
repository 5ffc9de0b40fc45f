"""PinScope in a program of the user's own, and in notebooks: what ``import pinscope`` offers, over the rooms below.

``opened`` is a run with all that follows from it; ``session`` has the functions that measure, find and plan;
``notebook`` is the magic ``%%pinscope``, ``pytest_plugin`` the marker ``pinscope``. Nothing here measures or concludes.
"""
