"""PinScope: measure, watch and explain page-locked (pinned) host memory on CUDA hosts.

From a program of your own: :func:`run`, :func:`open`, :func:`runs`, :func:`compare`, :func:`plan` and ``live()``
measure, find, compare and plan as the commands do; :func:`trace`, :func:`check` and :func:`report_host_memory` are for
the program that is looked at, and :func:`pinned_empty` pins. In a notebook: ``%load_ext pinscope`` and ``%%pinscope``.
"""

# Nothing is imported that Python has not loaded by itself: with `python -m pinscope` the working folder is still on the
# path of modules here, and nothing in it may run.
from importlib import import_module

TYPE_CHECKING = False  # type checkers take it for true
if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Any

    from pinscope.python.session import Comparison, Plan, Run, Runs, compare, open, plan, run, runs
    from pinscope.records.snapshot import Snapshot
    from pinscope.tracing.part import ProgramPart

    def live() -> Snapshot:
        """Who holds pinned memory on this host now."""


__version__ = "0.2.0"
__all__ = [
    "Comparison",
    "Plan",
    "Run",
    "Runs",
    "__version__",
    "check",
    "compare",
    "live",
    "open",
    "pinned_empty",
    "plan",
    "report_host_memory",
    "run",
    "runs",
    "trace",
]

if not TYPE_CHECKING:  # to type checkers any name would be one

    def __getattr__(name: str) -> "Any":
        if name == "live":  # the room of that name may be called
            return import_module("pinscope.live")
        if name in __all__:  # what is not here is there, and imported when it is first asked for
            return getattr(import_module("pinscope.python.session"), name)
        raise AttributeError(f"module 'pinscope' has no attribute {name!r}")


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: "Any") -> None:
    """What ``%load_ext pinscope`` calls."""
    import_module("pinscope.python.session").load_magic(shell)


def pinned_empty(
    nbytes: "int | str | None" = None,
    *,
    dtype: "Any" = "uint8",
    shape: "int | Sequence[int] | None" = None,
    device: "int | None" = None,
    chunk: "int | str | None" = None,
    longest_wait: "float | None" = None,
    threads: "int | None" = None,
    strategy: "str | None" = None,
    shared: "str | None" = None,
) -> "Any":
    """A NumPy array over memory pinned as the experiment ``pinning_strategy`` recommends; its content is undefined.

    The array is also a context manager: leaving its ``with`` block unpins it. Otherwise it is unpinned with the last
    array that uses its memory. ``import pinscope`` stays light: NumPy and CuPy are imported when this is called.

    Args:
        nbytes: how much, in bytes or as text such as ``16GiB``; may be left out with ``shape``.
        dtype: of the elements; bytes by default.
        shape: of the array; one-dimensional by default.
        device: CUDA's number of the GPU; the calling thread's current GPU by default.
        chunk: pin in pieces of this length: other processes on the GPU wait less, but CUDA refuses a copy that
            crosses from one piece into the next (cudaErrorInvalidValue). Without it, any copy may use the array.
            ``"auto"``: the longest pieces that keep to ``longest_wait``; the array's ``chunk`` says how long.
        longest_wait: seconds that a call on the GPU may have to wait meanwhile, with ``chunk="auto"``; 20 ms by
            default. Call it from a thread of its own. A warning says where it was not kept.
        threads: how many touch pages; the processors of this process by default, at most 16.
        strategy: how to pin, as a run of ``pinning_strategy`` on your machine recommends it; by default as the
            recorded H200 does.
        shared: a name: processes of this user that give it get the same memory. The first makes it; each registers it.
            With it, ``strategy`` is ``memfd`` (the default), ``hugetlb`` or ``hugetlb_1g``.

    Raises:
        InvalidParameter: sizes that make no sense, or do not fit each other.
        NotEnoughMemory: more than is safe to pin here, with the numbers.
        NotPossible: CuPy is not installed here, or memory cannot be shared here.
        NoDevice: no driver, or no such GPU.
    """
    # By name: this module is free to all rooms and imports none of them.
    make = import_module("pinscope.lab.pinned_array").pinned_empty
    return make(
        nbytes,
        dtype=dtype,
        shape=shape,
        device=device,
        chunk=chunk,
        longest_wait=longest_wait,
        threads=threads,
        strategy=strategy,
        shared=shared,
    )


def report_host_memory(registered: "int | str | None" = None) -> "Any":
    """Say what this process holds, for the live view of its user and of root.

    What is said is what PyTorch's allocator and CuPy's default pool of pinned memory hold, if the program has loaded
    them; what CuPy, and PyTorch from 2.13 on, keep unused of it; and what :func:`pinned_empty` has registered. It
    counts until the next call, so call it where that changes; a call takes less than a millisecond. Only this process's
    own memory is written, and nothing is left when it ends.

    Args:
        registered: what the program itself has registered by cudaHostRegister, in bytes or as text such as ``8GiB``;
            nobody else can see that. 0 says that it has registered nothing.

    Returns:
        What was said: ``registered_bytes``, ``held_bytes`` and ``kept_bytes`` by allocator, and in ``missing`` why an
        allocator does not say.

    Raises:
        InvalidParameter: an amount that makes no sense.
        NotPossible: the system has no memory without a name (memfd_create).
    """
    return import_module("pinscope.probes.host_report").report_host_memory(registered)


def trace(name: str, *, output: "str | os.PathLike[str] | None" = None, stacks: bool = True) -> "ProgramPart":
    """A part of a program, for a ``with`` block or as a decorator: which of its lines copy pageable memory?

    Under ``pinscope trace`` the part is a named range of the result; ``--only-parts`` records nothing else. Otherwise
    it is recorded by itself: it begins after a second or two of preparation, leaving it waits for the GPU, and then the
    answer stands on stderr and among the runs; of ``with … as part:`` also in ``part.result``. Parts inside a part are
    its named ranges. Where nothing can be recorded, one line on stderr says why, and the block runs all the same.

    Args:
        name: of the part.
        output: also write a bundle to this file, such as ``part.pinscope``, which must not exist yet. Under
            ``pinscope trace``, its own ``-o`` counts.
        stacks: read the Python stack of each call, which names its line. Under ``pinscope trace``, its own option
            counts.

    Raises:
        BadInput: a name that is no text, or is empty.
    """
    part: ProgramPart = import_module("pinscope.tracing.part").ProgramPart(name, output, stacks)
    return part


def check(name: str, array: "Any") -> None:
    """Compare this array, as it is now, between the runs of ``pinscope trace --what-if``; nothing happens otherwise.

    The sum of its bytes is kept each time, for its name: the same program must make the same arrays in the same order,
    with equal bits. An array on the host is read at once, without a wait; one on a GPU is copied from there.

    Args:
        name: of the array, such as ``loss``; its first 200 characters count.
        array: of NumPy, PyTorch or CuPy, or whatever NumPy makes an array of numbers of.

    Raises:
        BadInput: a name that is no text, or is empty; under ``--what-if``, what is no array of numbers.
    """
    import_module("pinscope.tracing.checks").check(name, array)
