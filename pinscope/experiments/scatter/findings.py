"""Which way to move pieces, from which size a loop does, what holds the CPU, and what the kernel costs compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from operator import itemgetter

from pinscope.analysis.cells import clearly_more
from pinscope.analysis.read_rows import grouped
from pinscope.analysis.statistics import is_distinct, measured, ratio
from pinscope.analysis.texts import Costed, Text, Texts, dearest_first, joined, say
from pinscope.experiments.scatter.reading import TOWARDS, Cell, Load, Pieces, Scatter
from pinscope.experiments.scatter.ways import WAYS
from pinscope.records.run import Finding, Quantity, costing, quantity, wrong_data
from pinscope.units import format_bytes

HARDLY = 0.02
"""Compute that takes longer by less than this is not worth a change."""
HELD_A_LOT = 0.5
"""Share of the time for which a way holds the program's thread that is worth a finding."""
_ADVICE: Mapping[str, str] = {
    "batch": "Move such pieces by one cudaMemcpyBatchAsync: paste the code. It takes no multiprocessor.",
    "copy_2d": "Move evenly spaced pieces by one cudaMemcpy2DAsync: paste the code. It takes no multiprocessor.",
    "kernel": "Let one kernel move such pieces over the mapping of the pinned memory: paste the code.",
}
_LOOP = Text(
    when="a loop of copies and one contiguous copy of as much were measured",
    title="A loop of copies is good enough from {sizes:and}",
    detail="Good enough: at least 90 % of one contiguous copy.[ Of pieces of {bytes:bytes} the loop takes "
    "{loop:seconds}, a CUDA graph of the same copies {graph:seconds}: {pace}.]",
    advice="Join pieces into ones of that size where the layout is yours to choose.",
)
TEXTS: Texts = {
    **{
        f"scatter-by-{way}": Text(
            when=f"{WAYS[way].words} moves pieces faster than a loop of copies",
            title="A loop of copies moves {best.what} at {loop.bytes_per_second:rate}, {best.phrase} at "
            "{best.bytes_per_second:rate}",
            detail="By {best.phrase} these move fastest: {where:and}.[ {blocks} blocks of 512 threads, each on a "
            "multiprocessor, are the fewest of {tried} that come near its best rate for pieces in {area:bytes}, on an "
            "idle GPU.]",
            advice=advice,
        )
        for way, advice in _ADVICE.items()
    },
    "scatter-loop-suffices": _LOOP,
    "scatter-loop-suffices/never": Text(
        when="a loop of copies reaches 90 % of one contiguous copy at no size",
        title="A loop of copies is not good enough at any measured size, up to {most:bytes} a piece",
        detail=_LOOP.detail,
        advice="Use another way for pieces of these sizes.",
    ),
    "scatter-cpu-held": Text(
        when="a loop of copies holds the program's thread for half of the time",
        title="A loop of copies holds the program's thread for {loop.held_share:share} of the time, {seconds:seconds} "
        "for {what}",
        detail="Held: calls that have not returned, and copying of the program's own.",
        advice="Where the thread has other work, issue such copies from a thread of their own, or take a way that "
        "holds it less.",
    ),
    "scatter-batch-idle": Text(
        when="a batch call into an idle stream moves pieces more slowly than one behind other work",
        title="Batch calls move {idle.bytes:bytes} pieces at {idle.bytes_per_second:rate} into an idle stream, at "
        "{queued.bytes_per_second:rate} behind other work",
        detail="To the GPU it is so for pieces of {sizes:and}. The call holds the program's thread for {held:seconds} "
        "where the stream is idle, for {less:seconds} where it is at work.",
        advice="Queue such a batch right behind other work of its stream.",
    ),
    "scatter-compute": Text(
        when="a compute load takes 2 % longer beside a way",
        title="Compute beside {worst.mover} {towards} takes {worst.longer_share:share} longer[, beside {least.mover} "
        "{least.longer_share:share}]",
        detail="The load keeps the arithmetic units of all multiprocessors busy and leaves room for another kernel's "
        "blocks.[ Beside a batch call it takes {batch:share} longer at most.]",
        advice="Where compute runs beside it, take no more blocks than your rate needs: the table has both.",
    ),
}


def code(cell: Cell) -> str:
    """Python code that moves pieces in this way, one that a finding advises, and its use with the measured sizes; needs
    NumPy and CuPy. It gathers them onto the GPU and scatters them back."""
    places = "2 * np.arange(pieces)" if cell.way == "copy_2d" else "np.random.permutation(2 * pieces)[:pieces]"
    parts = dict(part.split("\n", 1) for part in _text("code_ways.py").split("\n# part: ")[1:])
    example = parts["example"].format(piece=cell.bytes, pieces=cell.pieces, places=places)
    body = parts[cell.way].replace("BLOCKS", str(cell.blocks))
    return f"{body.replace('MOVE_PIECES', _text('code_move.cu'))}\n\n{example}"


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def findings(scatter: Scatter) -> tuple[Finding, ...]:
    """All findings of a run."""
    rules = (
        _wrong(scatter),
        _ways(scatter),
        _loop(scatter),
        _held(scatter.first),
        _idle(scatter),
        _compute(scatter.loads),
    )
    return dearest_first([costed for rule in rules for costed in rule])


def _wrong(scatter: Scatter) -> Iterator[Costed]:
    for first in scatter.wrong[:1]:
        words = quantity("Wrong words of 8 bytes", sum(row["wrong_words"] for row in scatter.wrong), "count")
        what = f"{WAYS[first['way']].title}, pieces of {format_bytes(first['bytes'])} {TOWARDS[first['direction']]}"
        title = "Pieces arrived wrong, or what lies between them was changed"
        yield 1.0, wrong_data("scatter-wrong", words, title=title, detail=f"The first case: {what}.")


def _ways(scatter: Scatter) -> Iterator[Costed]:
    """One finding for each way that is advised anywhere, with its code."""
    cases = [pieces for pieces in scatter.cases.values() if pieces.winners and pieces.loop]
    for way, group in grouped(cases, lambda pieces: pieces.winners[0].way).items():
        pieces = max(group, key=_gain)
        best, loop, gain = pieces.winners[0], pieces.ways["loop"], _gain(pieces)
        if way in _ADVICE and is_distinct(gain, best.wall_seconds, loop.wall_seconds):
            like = [cell for cell in (best, loop, pieces.contiguous) if cell]
            yield say(
                TEXTS,
                f"scatter-by-{way}",
                *map(_rate, like),
                cost=gain,
                severity=costing(gain),
                code=code(best),
                best=best,
                loop=loop,
                blocks=best.blocks,
                tried=joined(sorted({str(cell.blocks) for cell in pieces.cells if cell.way == best.way}, key=int))
                if best.blocks
                else None,
                area=scatter.area,
                where=_where([pieces.winners[0] for pieces in group]),
            )


def _gain(pieces: Pieces) -> float:
    return pieces.winners[0].bytes_per_second / pieces.ways["loop"].bytes_per_second


def _where(winners: Sequence[Cell]) -> list[str]:
    """For which sizes the way is the one to take: those of one layout together, and of both directions."""
    sizes = grouped(winners, lambda cell: (cell.layout, cell.direction))
    named = {case: joined([format_bytes(cell.bytes) for cell in group]) for case, group in sizes.items()}
    alike = grouped(named, lambda case: (case[0], named[case]))
    return [
        f"{layout} pieces of {which} {' and '.join(TOWARDS[direction] for _, direction in cases)}"
        for (layout, which), cases in alike.items()
    ]


def _rate(cell: Cell) -> Quantity:
    return measured(f"{cell.what}, {cell.title}", cell.wall_seconds, "bytes/second", cell.bytes_per_second)


def _loop(scatter: Scatter) -> Iterator[Costed]:
    """From which size on a loop of copies is good enough; and whether its calls or the GPU set its pace: a graph makes
    no calls."""
    known = scatter.loop_suffices
    if not known:
        return
    sizes = [
        f"{format_bytes(least)} a piece on" + (f" ({layout}, {direction})" if len(set(known.values())) > 1 else "")
        for (direction, layout), least in known.items()
        if least
    ]
    both = [pieces for pieces in scatter.cases.values() if {"loop", "graph"} <= pieces.ways.keys()]
    least = min(both, key=lambda pieces: pieces.cells[0].bytes, default=scatter.first)
    loop, graph = ((cell := least.ways.get(way)) and cell.wall_seconds for way in ("loop", "graph"))
    own = [pieces.loop for case, pieces in scatter.cases.items() if case[:2] == next(iter(known)) and pieces.loop]
    yield say(
        TEXTS,
        "scatter-loop-suffices" if sizes else "scatter-loop-suffices/never",
        *map(_rate, own),
        sizes=list(dict.fromkeys(sizes)),
        most=max(cell.bytes for cell in scatter.cells),
        bytes=least.cells[0].bytes,
        loop=loop and loop.median,
        graph=graph and graph.median,
        pace=loop
        and graph
        and ("it is no faster" if not clearly_more(loop, graph) else "the program that calls sets the pace"),
    )


def _held(first: Pieces) -> Iterator[Costed]:
    """How long a loop of copies holds the program's thread, and the other ways beside it."""
    if first.loop is None or first.loop.held_share < HELD_A_LOT:
        return
    others = [cell for way, cell in first.ways.items() if way not in ("loop", "contiguous", "managed")]
    ranked = sorted((first.loop, *others), key=lambda cell: -cell.issue_seconds.median)
    yield say(
        TEXTS,
        "scatter-cpu-held",
        *(measured(f"Thread held, {cell.title}", cell.issue_seconds, "seconds") for cell in ranked),
        loop=first.loop,
        seconds=first.loop.issue_seconds.median,
        what=first.loop.what,
    )


def _idle(scatter: Scatter) -> Iterator[Costed]:
    """How much slower a batch call is into an idle stream, by the pieces where that is most."""
    ways = [pieces.ways for pieces in scatter.cases.values() if {"batch", "batch_queued"} <= pieces.ways.keys()]
    pairs = [(pieces["batch"], pieces["batch_queued"]) for pieces in ways]
    slower = [
        (ratio(idle.wall_seconds, queued.wall_seconds), idle, queued)
        for idle, queued in pairs
        if clearly_more(idle.wall_seconds, queued.wall_seconds)
    ]
    if slower:
        times, idle, queued = max(slower, key=itemgetter(0))
        yield say(
            TEXTS,
            "scatter-batch-idle",
            _rate(idle),
            _rate(queued),
            cost=times,
            severity=costing(times),
            idle=idle,
            queued=queued,
            sizes=list(dict.fromkeys(format_bytes(cell.bytes) for _, cell, _ in slower)),
            held=idle.issue_seconds.median,
            less=queued.issue_seconds.median,
        )


def _compute(loads: Sequence[Load]) -> Iterator[Costed]:
    """What a kernel beside it costs a compute load, with many blocks and with few in the same direction."""
    if not loads:
        return
    worst = max(loads, key=lambda load: (load.way == "kernel", load.longer_share))
    alike = [load for load in loads if (load.direction, load.way) == (worst.direction, worst.way)]
    least, name = min(alike, key=lambda load: load.longer_share), "Compute takes longer, beside"
    if worst.longer_share >= HARDLY:
        yield say(
            TEXTS,
            "scatter-compute",
            *(quantity(f"{name} {load.mover} {TOWARDS[load.direction]}", load.longer_share, "share") for load in loads),
            cost=1.0 + worst.longer_share,
            severity=costing(1.0 + worst.longer_share),
            worst=worst,
            towards=TOWARDS[worst.direction],
            least=least if least is not worst else None,
            batch=max((load.longer_share for load in loads if load.way == "batch"), default=None),
        )
