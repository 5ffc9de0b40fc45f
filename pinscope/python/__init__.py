"""PinScope in a program of the user's own, and in notebooks: what ``import pinscope`` offers, over the rooms below.

``session`` is all of it, and has the magic ``%%pinscope``; ``pytest_plugin`` is the marker ``pinscope``. Nothing here
measures or concludes.
"""
