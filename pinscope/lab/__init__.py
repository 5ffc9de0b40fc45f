"""What an experiment may ask of a machine: buffers, streams, copies and loads in seconds and bytes, with a GPU or
without. Takes memory, starts threads and processes, and gives all of it back.

Imports ``records``, ``probes`` and ``analysis``; knows no experiment and no store. CuPy is imported by ``cuda*`` only,
PyTorch by ``torch_pinned``, each when it is needed; NumPy before. Files are touched for control groups and huge pages.

``protocol`` is the Lab; ``cuda`` one with a GPU (``cuda_handles``, ``cuda_memory``), ``hostmodel`` one without
(``hostengine``). ``harness`` repeats and checks the budget, gives the driver's own memory and opens labs in helper
processes; ``child_processes`` runs those. ``backing`` is under memory, also what processes share by name;
``pattern`` in it; ``placement`` says on which node, ``pinning`` how it is pinned; ``pinned_array`` is
``pinscope.pinned_empty``;
``cgroup_sandbox`` sets a limit.
"""
