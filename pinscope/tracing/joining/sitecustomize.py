"""Python imports this as it starts in a process that a traced program has started; then the program's own one.

Nothing that fails here reaches the program.
"""

import os
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
sys.path[:] = [each for each in sys.path if os.path.realpath(each) != _HERE]
sys.path.insert(0, _ROOT)
try:
    from pinscope.tracing.descendants import join

    join()
except Exception:  # noqa: BLE001, S110 - it is not recorded; the interpreter may also be too old for PinScope
    pass
finally:
    sys.path.remove(_ROOT)

del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore[import-not-found] # noqa: E402, F401 - the program's, or an error that Python minds
