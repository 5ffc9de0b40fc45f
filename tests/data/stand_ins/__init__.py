"""Stand-ins for PyTorch and CuPy, in a folder that counts as installed packages."""

from pathlib import Path

PACKAGES = Path(__file__).parent / "site-packages"
