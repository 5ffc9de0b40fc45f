"""What is said when a traced program has ended: on stderr, because stdout is the program's."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pinscope.cli.outcome import print_reading_table
from pinscope.cli.terminal import SEVERITY_STYLES, complain, print_line, print_prose, print_table, terminal_columns
from pinscope.errors import NotPossible, PinScopeError
from pinscope.experiments.registry import checked_rows
from pinscope.probes.environment import capture_environment
from pinscope.report import facts
from pinscope.report.facts import open_document
from pinscope.report.write import run_document
from pinscope.runner.jobs import new_id, open_store
from pinscope.runner.traced_program import ask_cupti, make_spool, opened_folder, refusal, remove_spool
from pinscope.runner.tracing import Traced, Tracing, new_run, pinned_rates, write_traces
from pinscope.store.safe_writer import saved_line
from pinscope.text import first_of, one_line, shortened
from pinscope.tracing.process_merge import Ended
from pinscope.tracing.sites import Seen, line_name, seen_in
from pinscope.tracing.spool import Scope, Spool
from pinscope.tracing.spool_folder import SpoolFolder
from pinscope.tracing.trace.answer import LINES, PEAK, SIZES, TIME, ranked
from pinscope.tracing.trace.failed_calls import alarming
from pinscope.tracing.trace.reading import TraceParams
from pinscope.tracing.trace.what_if import second_run_in, what_if_command
from pinscope.units import format_bytes, format_heights, format_seconds, format_share

if TYPE_CHECKING:
    from pinscope.records.run import Finding, Reading, Run, Table
    from pinscope.report.facts import Document
    from pinscope.runner.what_if import Compared

MOST_PARTS = 7
"""Of the time; of many GPUs the page and `pinscope runs show` have all."""
MOST_LINES = 4
"""Of the table; all are in `pinscope runs show`."""
LEAST_SHARE = 0.2
"""Of its time: what costs as much is shown although nothing is to be done about it, such as copies of pinned memory."""
MOST_FINDINGS = 6
LEAST_PINNED, LEAST_HELD = 2**20, 0.01
"""Of pinned memory that is worth a line, and of it what a line of the program holds."""


def print_summary(document: Document, leads_on: bool = True) -> None:
    """Verdict, where the time went, the lines with what to change, what no line shows, and one command to prove it.

    Args:
        document: the trace.
        leads_on: end with the commands that lead on; not where more is said of the program.
    """
    reading, run = document.reading, document.run
    seen = seen_in(run, checked_rows(run.experiment, document.rows))
    with redirect_stdout(sys.stderr):
        print_line()
        print_prose(f"pinscope: {one_line(_what_was_recorded(run, seen) + facts.verdict(document))}", style="bold")
        for row in (*alarming(seen)[:1], *seen.early_reads[:1]):
            if row["source_line"]:
                print_line(shortened(f"  {line_name(row)}  {one_line(row['source_line'])}", terminal_columns()))
        _print_answer(reading)
        in_table = {cost.rule for cost in ranked(seen)}
        _print_titles(
            [each for each in facts.by_severity(reading.findings) if each.rule not in in_table][:MOST_FINDINGS]
        )
        for note in run.notes:
            print_prose(f"Note: {one_line(note)}")
        print_line(f"Run {run.id}.{' Next:' if leads_on else ''}")
        for command in _next(run, seen) if leads_on else ():
            print_line(f"  {one_line(command)}")


def _print_answer(reading: Reading) -> None:
    """The tables of the answer, shortly."""
    tables = {table.title: table for table in facts.answer_tables(reading)}
    if TIME in tables:
        _, rows, numbers = facts.barred(tables[TIME])
        print_prose(tables[TIME].note)
        print_table(("",) * len(rows[0]), rows[:MOST_PARTS], numbers=numbers)
    if LINES in tables:
        _print_lines(tables[LINES])
    holding: Sequence[Sequence[Any]] = tables[PEAK].rows if PEAK in tables else ()
    if (held := sum(size for _, size, *_ in holding)) >= LEAST_PINNED:
        lines = [f"{line} {format_bytes(size)}" for line, size, *_ in holding if size >= LEAST_HELD * held]
        print_prose(f"Most pinned memory at once: {format_bytes(held)}: {first_of(lines)}", hanging="  ")
    if SIZES in tables and len(tables[SIZES].rows) > 1:
        print_line(f"Copies by size{_histogram(tables[SIZES].rows)}")


def _histogram(rows: Sequence[Sequence[Any]]) -> str:
    """``, 256 B to 16 MiB: █ ▁ ▂  95.3 % of 4,240: up to 256 B``: from the smallest size to the largest, each four
    times the one before."""
    counts = {size: count for size, count, *_ in rows}
    first, last = min(counts), max(counts)
    steps = [first * 4**step for step in range(64) if first * 4**step <= last]
    heights = format_heights([counts.get(size, 0) for size in steps])
    most, _, share, *_ = max(rows, key=itemgetter(1))
    above = "up" if most == first else format_bytes(most // 4)
    often = f"{format_share(share)} of {sum(counts.values()):,}: {above} to {format_bytes(most)}"
    return f", {format_bytes(first)} to {format_bytes(last)}: {heights}  {often}"


def _print_lines(table: Table) -> None:
    """What each line costs and a change saves, the line itself; below it what it does and what to change."""
    cells = [dict(zip(table.columns, texts, strict=True)) for texts in facts.table_texts(table)]
    place = table.columns.index("of its time")
    rows: Sequence[Sequence[Any]] = table.rows
    shares = [row[place] or 0.0 for row in rows]
    lines = [each for each, share in zip(cells, shares, strict=True) if each["to do"] != "–" or share >= LEAST_SHARE]
    lines = (lines or cells)[:MOST_LINES]
    room = terminal_columns()
    widths = [max(len(each[name]) for each in (*lines, {name: name})) for name in ("saves", "costs")]
    print_line(f"{'saves':>{widths[0]}}  {'costs':>{widths[1]}}  line")
    for each in lines:
        saves = "?" if _is_open(each) else each["saves"]
        figures = f"{saves:>{widths[0]}}  {each['costs']:>{widths[1]}}  "
        source = "" if each["source"] == "n/a" else f"  {each['source']}"
        print_line(shortened(f"{figures}{each['line']}{source}", room))
        to_do = "" if each["to do"] == "–" else f" → {each['to do']}"
        within = f", in range {each['in range']}" if each.get("in range", "n/a") != "n/a" else ""
        print_line(shortened(f"{' ' * len(figures)}{each['does']}{to_do}{within}", room))
    more = len(cells) - len(lines)
    rest = f"and {more:,} more line{'s' if more > 1 else ''} of the program; " if more else ""
    if len(cells) > 1:
        marks = "; ?: one run does not tell" if any(map(_is_open, lines)) else ""
        marks += "; –: nothing known to change" if any(each["saves"] == each["to do"] == "–" for each in lines) else ""
        print_prose(f"{rest}costs: GPU idle for the line, and its pinning; do not add lines up{marks}")


def _is_open(cells: Mapping[str, str]) -> bool:
    """Whether there is something to do at a line, and what that saves is not known."""
    return cells["saves"] == "–" and cells["to do"] != "–"


def _print_titles(findings: Iterable[Finding]) -> None:
    """And what to do about the first."""
    for number, finding in enumerate(findings):
        title = f"{facts.SEVERITY_WORDS[finding.severity]}: {one_line(finding.title)}"
        print_prose(title, style=SEVERITY_STYLES[finding.severity])
        if not number and finding.advice:
            print_prose(f"→ {one_line(finding.advice)}", "  ", "    ")


def _what_was_recorded(run: Run, seen: Seen) -> str:
    """How a verdict begins that is not about the whole program."""
    if run.params.get("part"):
        return f"part {run.params['part']}: "
    recorded = seen.program["recorded_seconds"]
    return "" if recorded is None else f"in the {format_seconds(recorded)} that were recorded: "


def _next(run: Run, seen: Seen) -> Iterator[str]:
    """Commands that lead on: what proves the answer, and what says more."""
    if (command := what_if_command(run, seen)) is not None:
        yield command
    yield f"pinscope runs show {run.id}"


def print_what_if(compared: Compared) -> None:
    """The verdict, both runs beside each other, what was done for each line, and what is left."""
    if compared.problem:
        complain(f"--what-if: {compared.problem}")
    if compared.second is None:
        return
    document = open_document(compared.second.run, compared.second.rows)
    rows = checked_rows(document.run.experiment, document.rows)
    seen = seen_in(document.run, rows)
    second_run = second_run_in(seen, rows)
    if second_run is None:
        return
    with redirect_stdout(sys.stderr):
        print_line()
        print_prose(f"pinscope: {one_line(second_run.verdict)}", style="bold")
        for table in second_run.tables():
            if table.rows:
                print_reading_table(table)
        _print_titles(second_run.findings())
        first, second = compared.before.run.id, compared.second.run.id
        print_line(f"Run {second}. Next:\n  pinscope runs show {second}")
        print_line(f"  pinscope report {first} {second} -o report.html")


def complain_of(traced: Traced) -> None:
    """What went wrong with a trace, or with storing it."""
    if traced.run.error:
        complain(f"the trace failed: {traced.run.error}")
    if traced.saved is not None:
        complain(saved_line(traced.saved))


def what_if_document(compared: Compared) -> dict[str, Any]:
    """``what_if``: the second run as a document of its own; nothing where there is none."""
    if compared.after is None:
        return {}
    return {"what_if": run_document(open_document(compared.after.run, compared.after.rows))}


LOOK_SECONDS = 0.05
"""How often the keeper looks at the spool; the program waits for it at the part's end."""
BEGIN_SECONDS = 60.0
"""So long the program may take to begin once the keeper is ready: Ctrl-C may have come before it knew of the keeper."""


def main(what: Mapping[str, Any]) -> int:
    """Keep the part.

    Args:
        what: name, file, whether stacks are kept, and the program's command and process.

    Returns:
        0, or the exit code of what went wrong; a line on stderr has said it.
    """
    try:
        path = Path(tempfile.mkdtemp(prefix="pinscope-trace-"))
        signal.signal(signal.SIGTERM, partial(_give_up, path))
        try:
            with opened_folder(str(path)) as folder:
                return _keep(folder, path, what)
        finally:
            remove_spool(path)
    except (PinScopeError, OSError) as error:  # such as of a spool that is gone, because the part did not begin
        complain(f"the part {what['name']!r} is not recorded: {error}")
        return error.exit_code if isinstance(error, PinScopeError) else PinScopeError.exit_code


def _give_up(path: Path, *signalled: object) -> NoReturn:
    """The part did not begin."""
    del signalled
    remove_spool(path)
    os._exit(1)


def _keep(folder: Path, path: Path, what: Mapping[str, Any]) -> int:
    output = None if what["output"] is None else Path(what["output"])
    if output is not None:
        from pinscope.store.bundle import check_output

        check_output(output)
    environment, scope = capture_environment(), Scope(stacks=what["stacks"], children=False)
    setup = ask_cupti(environment.cuda_driver)
    with open_store(to_write=True) as store:
        kept = folder / "kept"
        kept.mkdir()
        spool = make_spool(folder, setup, scope, time.time_ns())
        run_id = new_id()
        handover = SpoolFolder.of(folder.stat(), str(path)).handover
        answer = {"spool": handover, "library": setup["library"], "run": run_id}
        sys.stdout.write(f"\n{json.dumps(answer)}\n")
        sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the program reads to the end
        rates = pinned_rates(store, environment)
        params = TraceParams(
            program=tuple(what["program"]), part=what["name"], stacks=scope.stacks, children=False, **rates
        )
        begun_ns = _begun_ns(spool, what["pid"])
        run = new_run(params, environment).model_copy(update={"id": run_id})
        tracing = Tracing(store, run, kept, scope)
        traced = tracing.follow(lambda look: _follow(spool, what["pid"], begun_ns, look))
        if output is not None:
            write_traces(output, [traced], store)
    print_summary(open_document(traced.run, traced.rows))
    complain_of(traced)
    return 0


def _begun_ns(spool: Spool, program: int) -> int:
    """When the program began to record. It is waited for: before, there is nothing to store.

    Raises:
        NotPossible: CUPTI did not let it, or it ended before.
    """
    latest = time.monotonic() + BEGIN_SECONDS
    goes_on = True
    while goes_on:
        goes_on = _goes_on(spool, program) and time.monotonic() < latest  # first: a short part may end meanwhile
        if started := spool.document("started.json"):
            return int(started["ns"])
        _mind_refusal(spool)
        time.sleep(LOOK_SECONDS / 5)
    raise NotPossible("the program ended before it could begin")


def _follow(spool: Spool, program: int, begun_ns: int, look: Callable[[Spool], None]) -> Ended:
    """Look at the spool until the part has ended.

    Raises:
        NotPossible: CUPTI did not let the program record.
    """
    while _goes_on(spool, program):
        look(spool)
        time.sleep(LOOK_SECONDS)
    ended = spool.document("ended.json") or {"ns": time.time_ns()}
    look(spool)
    _mind_refusal(spool)
    return Ended(begun_ns, int(ended["ns"]), None)


def _goes_on(spool: Spool, program: int) -> bool:
    return os.getppid() == program and (spool.folder / "config.json").exists()


def _mind_refusal(spool: Spool) -> None:
    if refused := spool.document("refused.json"):
        raise refusal(refused)


if __name__ == "__main__":
    sys.exit(main(json.load(sys.stdin)))
