"""Python imports this as it starts, in a program that is traced and in what that starts; then the program's own one.

Nothing that fails here reaches a process that the program has started. The program itself does not begin then.
"""

import os
import sys

_BEFORE = set(sys.modules)
_HERE = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
_IS_PROGRAM = os.environ.get("PINSCOPE_TRACE_SPOOL", "").startswith("program:")
sys.path[:] = [each for each in sys.path if os.path.realpath(each) != _HERE]
try:
    sys.path.insert(0, _ROOT)
    try:
        import pinscope  # noqa: F401 - the package alone: what is installed beside it is none of the program's
    finally:
        sys.path.remove(_ROOT)
    from pinscope.tracing.descendants import forget_modules, join

    join()
    forget_modules(_BEFORE)
except Exception as error:  # noqa: BLE001 - whatever it is
    if _IS_PROGRAM:
        sys.stderr.write(f"pinscope: the program was not started: {type(error).__name__}: {error}\n")
        os._exit(90)

del sys.modules["sitecustomize"]
import sitecustomize  # type: ignore[import-not-found] # noqa: E402, F401 - the program's, or an error that Python minds
