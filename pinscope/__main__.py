"""``python -m pinscope`` is the command ``pinscope``."""

from __future__ import annotations

import sys

from pinscope.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
