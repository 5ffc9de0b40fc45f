"""A folder for the path of modules: its ``sitecustomize`` joins a process to the trace that its parent is in."""
