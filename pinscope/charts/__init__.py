"""What charts share. Plain values in: names, numbers, the style of a way's line. A ``Chart`` out: Plotly's figure with
title, caption, and a text for those who do not see it.

Imports ``analysis`` and Plotly, which is heavy: other rooms import this one where they draw, not where they read. No
I/O. What a chart shows is decided beside its reading, in a ``charts`` module of its own.

``plot`` is where to begin: curves, parts of a time, bars; ``marks`` has what these are made of, matrices and rows of
marks, and ``Chart``; ``theme`` colours, fonts and axes; ``comparison`` draws runs against others, ``trend`` a
figure over runs, ``fleet`` GPUs of many hosts. ``lazy`` has a run's charts, drawn when they are looked at: then
Plotly is imported.
"""
