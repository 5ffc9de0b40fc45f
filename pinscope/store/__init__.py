"""Where runs are kept: runs, rows and tables of events in; the same out again, or an error that says what is wrong.

The only room that knows SQL. Imports ``records``, ``probes`` and ``analysis``; reads and writes files and databases;
knows no experiment and derives nothing: a stored verdict comes from the process that measured.

``store`` is the door: all that others ask of a database; ``choice`` says which runs are meant; ``database`` opens one,
``tables`` says what is in it, and ``documents`` what may be; ``rows`` are a run's observations as they lie there,
``packed`` those that came whole, ``figures`` what a fleet reads of a run without opening it; ``attachments`` are tables
of many events; ``safe_writer`` loses no row; ``bundle`` carries runs between machines, ``anonymous`` without who and
where; ``recordings`` ship with PinScope; ``new_file`` writes whole files or none.
"""
