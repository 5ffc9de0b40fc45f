"""The only code that touches /proc, /sys, psutil and NVML. What cannot be read is ``None`` with a reason."""
