"""What this machine says of itself. Files of the system, NVML and psutil in; records, or the reason why not, out.

Imports ``records`` only. Whatever is missing, forbidden or hostile is an answer, not an error: files are read through
``proc``, which bounds how much; ``tracefs`` itself reads, and as root writes, the kernel's tracing; ``elf`` reads
libraries; ``copy_calls`` has the kernel run a few instructions in a probe. NVML and psutil are imported when
they are asked. ``environment`` asks git, ``uprobes`` ldconfig.

``environment`` is the machine of a run, and what works on it; ``host_memory`` totals, limits, NUMA nodes and what a
control group uses; ``gpu`` GPUs and their processes; ``containers`` in which groups and namespaces a process is.
``process_scan`` looks at all processes: status, NVIDIA files that are open, maps, and files that are memory and that
nobody has open; ``process`` says what these texts mean of one, and who it is, and starts children that end with their
parent; ``attachable`` whether one can attach to it; ``elf`` which functions a library exports, and where these are in
a process; ``host_report`` is what a process says of itself. ``proc`` is the reader.
"""
