"""Which lines of a program copy what. A program in; a spool of raw records, then rows for each of its lines out.

Inside the program, where only Python's own library is imported: ``descendants`` brings the recorder in (by the
``sitecustomize`` of ``joining/``), ``attached`` into one that runs already, and out again; ``recorder`` asks CUPTI
(``cupti_library``) and writes the spool (``spool_folder``, ``mapped_file``) with the ``stacks`` of calls and the errors
that ``error_filter`` lets through, and the calls that it notes (``lanes``), some of it while the program waits
(``later``), by built-ins that the program cannot replace (``bound``); ``source_memory`` looks at the memory of copies,
``host_data`` at what they carry, ``managed`` follows managed memory; ``redirect`` lets chosen copies come from pinned
memory (``redirect_libraries``), ``waits`` waits behind them; ``pending`` has Python do what comes behind a callback,
``process_end`` what comes at the end; ``host_calls`` follows what libraries do on the CPU for copies,
``loader_origins`` whose batches they are given, ``watch_reads`` who reads what is copied (``library_log``).
``library_calls`` puts calls of ours in the place of a library's. Nothing of this may reach the program, least of all an
error (``faults``). ``part`` is ``pinscope.trace``; it starts the process that keeps a part's rows. ``checks`` is
``pinscope.check``. This half runs in any CPython from 3.9 on. ``recorder_setup``, in a process of its own, asks CUPTI's
library what there is to follow and to read.

Outside, where NumPy and pyarrow may be: ``spool`` reads one, ``process_merge`` all of a program; ``line_totals`` makes
rows, ``host_work`` those of the CPU's work, ``early_reads`` those of watched reads, ``migrations`` those of managed
memory, ``failed_calls`` those of errors, ``needless`` those of copies that need not be; ``places`` finds a call's line;
``sites`` says what pinning a line, or a DataLoader that pins, would save, ``limits`` what a program may do at most,
``stretch`` what ran when; ``trace/`` is the kind of run, with its reading, findings and charts. Imports ``records`` and
``analysis``, in ``trace/`` also ``charts``; no store: ``runner`` starts the program and keeps the rows.
"""
