"""``python -m pinscope`` is the command ``pinscope``."""

import pinscope.isolation

if __name__ == "__main__":
    pinscope.isolation.leave_working_folder()  # before anything else is imported, __future__ included
    import sys

    from pinscope.cli.entry import main

    sys.exit(main())
