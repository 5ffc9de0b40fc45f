"""The command ``pinscope``: its commands, the options that they share, its exit codes and its error lines."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import platformdirs
import typer
from typer.completion import shell_complete
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

import pinscope
from pinscope.cli.terminal import complain
from pinscope.errors import BadInput, Cancelled, InvalidParameter, NotPossible, PinScopeError
from pinscope.probes.proc import HERE
from pinscope.store.choice import WORDS
from pinscope.text import MOST_OF_ANOTHER, error_line, quoted
from pinscope.units import parse_seconds


def settings_file() -> Path:
    """Where the defaults are, on Linux ``~/.config/pinscope/pinscope.toml``; there need be none.

    Raises:
        RuntimeError: there is no home folder.
    """
    return platformdirs.user_config_path("pinscope", appauthor=False).absolute() / "pinscope.toml"


def defaults(root: Any, called: str | None) -> dict[str, Any]:
    """What the options of the command that is called are where they are not given, as its parser takes them.

    Args:
        root: the command ``pinscope``.
        called: first word of the command line.

    Raises:
        BadInput: the file cannot be read, or names no command or option.
    """
    try:
        file = settings_file()
    except RuntimeError:
        return {}
    if not os.access(file, os.R_OK):  # what this user may not read is not theirs
        return {}
    try:
        import tomllib  # few have such a file

        tables = tomllib.loads(file.read_text("utf-8"))
        if unknown := set(tables) - set(root.commands):
            raise ValueError(f"there is no command {quoted(min(unknown))}")
        return {called: _of(root.commands[called], tables[called], called)} if called in tables else {}
    except (OSError, ValueError) as error:  # what is no TOML among them
        raise BadInput(f"{file}: {error_line(str(error))}") from None


def _of(command: Any, table: Any, name: str) -> dict[str, Any]:
    """A table of the file, with the parameters' own names; ``name``: of the command."""
    if not isinstance(table, Mapping):
        raise ValueError(f"{name} must be a table: [{name}]")
    inner = getattr(command, "commands", {})
    options = {word[2:]: option.name for option in command.params for word in option.opts if word[:2] == "--"}
    names = inner or options
    if unknown := next((key for key in table if key not in names), None):
        raise ValueError(f"[{name}] has no {quoted(unknown)}; there are: {', '.join(names)}")
    if inner:
        return {key: _of(inner[key], value, f"{name}.{key}") for key, value in table.items()}
    return {options[key]: value for key, value in table.items()}


_COMMANDS: Mapping[str, tuple[str, str, str]] = {
    "doctor": ("machine", "doctor", "Check this machine: what can be measured, links, limits, advice."),
    "run": ("run", "app", "Run an experiment and print its result."),
    "runs": ("runs", "app", "List, show, name, cancel or delete stored runs."),
    "report": ("runs", "report", "Write a report of one or more runs to a file."),
    "compare": ("compare", "compare", "Compare runs: machines, figures with intervals, findings."),
    "check": ("check", "app", "Write a baseline of this machine, and check against it, as in CI."),
    "export": ("runs", "export_runs", "Write runs into a bundle, to carry them to another machine."),
    "import": ("runs", "import_runs", "Read the runs of a bundle into the database."),
    "plan": ("machine", "plan", "Calculate what it takes to pin an amount. Nothing is pinned."),
    "fleet": ("fleet", "app", "Run experiments on many hosts, and compare the hosts."),
    "live": ("live", "live", "Show which processes hold pinned memory now."),
    "record": ("run", "record", "Record the live view as a timeline, which is stored as a run."),
    "trace": ("trace", "trace", "Run a program, and say which of its lines should pin memory."),
    "exporter": ("live", "exporter", "Serve the live figures to Prometheus."),
    "dashboard": ("pages", "dashboard", "Serve the dashboard to a browser on this machine."),
    "docs": ("pages", "docs", "Open the documentation. It needs no network."),
}
"""Name of a command → module, function (or group of commands) in it, and what it is for."""
_SETTINGS: Mapping[str, dict[str, Any]] = {"trace": {"allow_interspersed_args": False}}
"""Name of a command → what its parser does otherwise: options behind the program are the program's."""
_TYPER: Mapping[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
"""How many OpenBLAS starts when it is loaded."""
_COMPLETE = "_PINSCOPE_COMPLETE"
"""Set by the shell that asks for completions."""


class _Commands(Mapping[str, Any]):
    """The commands by name. The module of one is imported when that is asked for, so that help answers at once."""

    def __getitem__(self, name: str) -> Any:
        module, attribute, _ = _COMMANDS[name]
        with _one_thread():
            command = getattr(import_module(f"pinscope.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            return get_command(command)
        alone = typer.Typer(add_completion=False, **_TYPER)
        alone.command(name, context_settings=_SETTINGS.get(name))(command)
        return get_command(alone)

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class _Pinscope(TyperGroup):
    """The command ``pinscope``."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast("MutableMapping[str, Any]", _Commands())

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands, without a look into their modules."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in _COMMANDS.items()])

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Names of commands and of options, without a look into their modules."""
        commands = {name: TyperCommand(name, short_help=summary) for name, (_, _, summary) in _COMMANDS.items()}
        ctx.command = TyperGroup(name=self.name, commands=commands, params=self.params)  # type: ignore[arg-type]
        return ctx.command.shell_complete(ctx, incomplete)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Where NumPy is imported meanwhile, its OpenBLAS starts no threads: each would spin for a tenth of a second, and
    no command multiplies matrices. Programs that the command starts see nothing of it."""
    is_chosen = _BLAS_THREADS in os.environ
    os.environ.setdefault(_BLAS_THREADS, "1")
    try:
        yield
    finally:
        if not is_chosen:
            del os.environ[_BLAS_THREADS]


app = typer.Typer(cls=_Pinscope, context_settings={"help_option_names": ["-h", "--help"]}, **_TYPER)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"pinscope {pinscope.__version__}\n")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _pinscope(
    context: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback does the work
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Measure, watch and explain page-locked (pinned) host memory on CUDA hosts."""
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line; its exit code.

    0 ok · 1 the run or the operation failed · 2 bad input · 3 not possible on this machine · 130 interrupted.
    An error is one line on stderr; PINSCOPE_DEBUG=1 puts the traceback before it.
    """
    _open_streams()
    try:
        code = _carry_out(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has seen enough. Python flushes once more at exit: into nothing, then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - a user gets one line, whatever went wrong
        return _failed(*_explained(error))
    return code


def command_line() -> Any:
    """The command ``pinscope`` with all that it can do, as Typer made it."""
    return get_command(app)


def _open_streams() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the program that started us
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - for the life of the process
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a sign shows "?" instead of failing


def _explained(error: BaseException) -> tuple[str, int]:
    """What went wrong, for a user, and the exit code that says so."""
    if isinstance(error, TyperException):
        return _usage(error), error.exit_code
    if isinstance(error, PinScopeError):
        return str(error), error.exit_code
    if isinstance(error, ModuleNotFoundError) and (advice := _missing(error.name or "")):
        return advice, NotPossible.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort | EOFError):
        return "interrupted", Cancelled.exit_code
    if isinstance(error, OSError) and error.strerror:  # without a file it was stdout: a full disk, for one
        return f"{error.filename or 'the output cannot be written'}: {error.strerror}", PinScopeError.exit_code
    what = f"unexpected {type(error).__name__}: {error} (PINSCOPE_DEBUG=1 shows where)"
    if isinstance(error, MemoryError):
        what = "this process may not have as much memory as that takes"
    return what, PinScopeError.exit_code


def _missing(module: str) -> str | None:
    """What to install where a module is missing that an extra of PinScope's brings."""
    from pinscope.probes.environment import install_command, needed_extra

    extra = needed_extra(module)
    return extra and f"this needs the extra {extra}, which is not installed here; run: {install_command(extra)}"


def _carry_out(arguments: list[str]) -> int:
    """Parse and call; commands return their exit code, or nothing for 0."""
    command = command_line()
    if instruction := os.environ.get(_COMPLETE):
        return shell_complete(command, {}, "pinscope", _COMPLETE, instruction)
    try:
        given = defaults(command, next(iter(arguments), None))
        with command.make_context("pinscope", arguments, default_map=given) as context:
            code = command.invoke(context)
    except typer.Exit as end:
        code = end.exit_code
    except SystemExit as end:  # so ends what installs and shows completion
        code = end.code
    return code if isinstance(code, int) else 0


def _usage(error: TyperException) -> str:
    """What was wrong with the command line, and where help is."""
    context = getattr(error, "ctx", None)
    hint = f" ({context.command_path} --help lists what is allowed)" if context else ""
    if context and error.format_message().startswith("Missing command"):
        return f"say what: {context.command_path} {' or '.join(sorted(context.command.commands))}{hint}"
    return f"{error_line(error.format_message().replace('Value error, ', '').rstrip('.'), MOST_OF_ANOTHER)}{hint}"


def _failed(message: str, code: int) -> int:
    if os.environ.get("PINSCOPE_DEBUG"):
        traceback.print_exc()
    complain(message)
    return code


def group(meaning: str, kind: type[TyperGroup] | None = None) -> typer.Typer:
    """Commands below one word; ``kind``: what parses them otherwise."""
    return typer.Typer(cls=kind, add_completion=False, rich_markup_mode=None, help=meaning)


def switch(names: str, meaning: str) -> Any:
    """An option that is on or off; ``names``: as ``--json``, or ``--gpu/--no-gpu`` where it may be on by itself."""
    return typer.Option(names, help=meaning)


AsJson = Annotated[bool, switch("--json", "Print JSON.")]
_AN_ID = f"beginning of an id, or a name, such as that of the recording bandwidth-h200, is enough; or {WORDS}."


def argument(takes: str, meaning: str) -> Any:
    """What stands on the line without the name of an option."""
    return typer.Argument(metavar=takes, help=meaning, show_default=False)


RunId = Annotated[str, argument("ID", f"A run; the {_AN_ID}")]
MaybeRunId = Annotated[str | None, argument("[ID]", f"A run; the {_AN_ID}")]
RunIds = Annotated[list[str], argument("ID", f"Runs; the {_AN_ID}")]
Interval = Annotated[
    float,
    typer.Option(min=0.1, max=3600, metavar="SECONDS", help="Seconds from one snapshot to the next, 0.1 to 3600."),
]
Pids = Annotated[
    list[int] | None, typer.Option(metavar="PID", help="Only this process among the holders; may be repeated.")
]
Gpus = Annotated[bool, switch("--gpu/--no-gpu", "Include the figures of the GPUs, which NVIDIA's driver gives.")]
PROBE_HELP = (
    "Also trace the calls that register memory (cudaHostRegister) or allocate it (cudaHostAlloc, cuMemCreate). Calls "
    "made before PinScope started are not seen. Needs root."
)
Probe = Annotated[bool, switch("--probe", PROBE_HELP)]


def option(takes: str, meaning: str, *names: str) -> Any:
    """An option that may be left out; without names it is called as its parameter is."""
    return typer.Option(*names, metavar=takes, help=meaning, show_default=False)


Name = Annotated[str | None, option("TEXT", "What to call the run; that will do in place of its id.")]
Tags = Annotated[list[str] | None, option("TAG", "A word by which runs list --tag finds the run; may be repeated.")]


def output_option(meaning: str) -> Any:
    """The option for the file that a command writes."""
    return option("FILE", meaning, "-o", "--output")


def duration(option: str, text: str | None) -> float | None:
    """Seconds that an option was given; ``None`` where it was not.

    Raises:
        InvalidParameter: not a duration.
    """
    try:
        return None if text is None else parse_seconds(text)
    except InvalidParameter as error:
        raise InvalidParameter(f"{option}: {error}") from None


def checked_pids(pids: Collection[int] | None) -> frozenset[int]:
    """The pids as given; none for all processes.

    Raises:
        BadInput: one of them is no process here.
    """
    for pid in sorted(pids or ()):
        if not HERE.exists(f"/proc/{pid}"):
            raise BadInput(f"there is no process {pid}")
    return frozenset(pids or ())
