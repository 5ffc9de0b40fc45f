"""What this machine says of itself. Files of the system, NVML and psutil in; records, or the reason why not, out.

Imports ``records`` only. Whatever is missing, forbidden or hostile is an answer, not an error: files are read through
``proc``, which bounds how much; ``tracefs`` and ``uprobes`` read, and as root write, the kernel's tracing themselves.
NVML and psutil are imported when they are asked. Other rooms read of /proc what is their own process's alone.

``environment`` is the machine of a run, and what works on it; ``host_memory`` totals, limits and NUMA nodes; ``gpu``
GPUs and their processes; ``containers`` groups and namespaces. ``process_scan`` looks at all processes: status, NVIDIA
files that are open, maps; ``process`` says what these texts mean of one, and who it is. ``child_lifetime`` starts
children that end with their parent. ``proc`` is the reader.
"""
