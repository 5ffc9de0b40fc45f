"""A program that was traced, as a run. ``reading`` has what it answers: verdict, headline, tables.

By each rule a line costs something (``costs``): what the CPU does for copies (``cpu_work``), copies of ``pageable``
memory, page faults of ``managed`` memory, pins, waits and small copies (``calls``), and copies that are ``needless``.
``answer`` puts them together by line, ``findings`` has what each says, ``charts`` draws. Beside these stand
``failed_calls``, ``hazards`` (data used before it is copied), ``unrecorded`` children, ``what_if``, which is the second
run, and ``comparison`` with other traces.
"""
