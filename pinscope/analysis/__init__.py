"""What readings share. Rows, an environment or samples in; figures with intervals, rules and findings out.

Imports ``records``, and of ``probes`` what an environment means (``machine`` also asks how PinScope is installed). Else
no I/O, no clock, no drawing: what is asked of it gets the same answer tomorrow. NumPy is imported at once, pandas where
somebody asks for a frame.

``read_rows`` checks and groups the rows, and says what a kind of run is; ``columns`` has many rows as arrays;
``cells`` makes one object of all rows of a combination, and says which ways share the first place; ``comparison`` sets
the cells of runs against those of others, with ``cell_tables`` for the cells, ``between_runs`` for what is chance and
``machine_keys`` for what differs in the machines; ``check`` keeps cells of runs as a baseline, and says what is worse
than they; ``trend`` finds the steps of a figure over runs; ``figures`` are a run's cells as one row of numbers,
``outliers`` the GPUs of a fleet that are worse in them than others like them; ``statistics`` has medians, intervals,
and whether two figures are distinct or a tie; ``texts`` findings as texts with values; ``rules`` the limits of
findings; ``models`` the link and the page table; ``machine`` the rules over an environment; ``pinning_strategy`` the
way to pin that is recommended.
"""
