"""Which way to move pieces, from which size a loop does, what holds the CPU, and what the kernel costs compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files

from pinscope.analysis.cells import clearly_more
from pinscope.analysis.read_rows import grouped
from pinscope.analysis.statistics import are_known, measured, ratio
from pinscope.analysis.texts import Costed, Text, Texts, joined, saying
from pinscope.experiments.scatter.reading import TOWARDS, Cell, Load, Pieces, Scatter
from pinscope.experiments.scatter.ways import WAYS
from pinscope.records.run import Quantity
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
            when=f"{WAYS[way].words} moves pieces faster than a loop of copies, by more than both may be off",
            title="A loop of copies moves {best.what} at {loop.bytes_per_second:rate}, {best.phrase} at "
            "{best.bytes_per_second:rate}",
            detail="No way that was measured is clearly faster for {where:and}.[ {blocks} blocks of 512 threads, each "
            "on a multiprocessor, are the fewest of {tried} that come near its best rate for pieces in {area:bytes}, "
            "on an idle GPU.]",
            advice=advice,
        )
        for way, advice in _ADVICE.items()
    },
    "scatter-loop-suffices": _LOOP,
    "scatter-loop-suffices/never": Text(
        when="a loop of copies reaches 90 % of one contiguous copy at no size",
        title="A loop of copies is not good enough at {told:and} a piece",
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
        when="pieces are best moved by a batch call, and one into an idle stream is slower than one behind other work",
        title="Batch calls move {idle.layout} {idle.bytes:bytes} pieces at {idle.bytes_per_second:rate} into an idle "
        "stream, at {queued.bytes_per_second:rate} behind other work",
        detail="It is so for {where:and}.[ The call holds the program's thread for {held:seconds} where the stream is "
        "idle, for {less:seconds} where it is at work.]",
        advice="Queue such a batch right behind other work of its stream.",
    ),
    "scatter-compute": Text(
        when="a compute load takes 2 % longer beside a way, and not by chance",
        title="Compute beside {worst.mover} {towards} takes {worst.longer_words} longer[, beside {least.blocks} blocks "
        "{least.longer_words}]",
        detail="The load keeps the arithmetic units of all multiprocessors busy and leaves room for another kernel's "
        "blocks.[ Beside a batch call it takes {batch.longer_words} longer.]",
        advice="Where compute runs beside it, take no more blocks than your rate needs: the table has both.",
    ),
}
say = saying(TEXTS)


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


def _ways(scatter: Scatter) -> Iterator[Costed]:
    """One finding for each way that is advised anywhere, with its code; not where a loop of copies is as good."""
    cases = [pieces for pieces in scatter.cases.values() if pieces.winners and _beats_loop(pieces)]
    for way, group in grouped(cases, lambda pieces: pieces.winners[0].way).items():
        pieces = max(group, key=_gain)
        best, loop, gain = pieces.winners[0], pieces.ways["loop"], _gain(pieces)
        if way in _ADVICE:
            like = [cell for cell in (best, loop, pieces.contiguous) if cell]
            yield say(
                f"scatter-by-{way}",
                *map(_rate, like),
                cost=gain,
                severity="by cost",
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


def _beats_loop(pieces: Pieces) -> bool:
    best = pieces.winners[0]
    return _known(pieces, "loop", best.way) and clearly_more(pieces.ways["loop"].piece_seconds, best.piece_seconds)


def _known(pieces: Pieces, *ways: str) -> bool:
    """Whether these were measured, and their rates are figures."""
    return all(way in pieces.ways and pieces.ways[way].wall_seconds.is_known for way in ways)


def _gain(pieces: Pieces) -> float:
    return pieces.winners[0].bytes_per_second / pieces.ways["loop"].bytes_per_second


def _where(winners: Sequence[Cell]) -> list[str]:
    """Of which pieces it is said: those of one layout together, and of both directions."""
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
    known, kinds = scatter.loop_suffices, {case[:2] for case in scatter.cases}
    alike = len(set(known.values())) == 1 and known.keys() == kinds
    sizes = [
        f"{format_bytes(size)} a piece on" + ("" if alike else f" ({layout}, {direction})")
        for (direction, layout), size in known.items()
        if size
    ]
    if not sizes and not alike:
        return
    both = [pieces for pieces in scatter.cases.values() if _known(pieces, "loop", "graph")]
    least = min(both, key=lambda pieces: pieces.cells[0].bytes, default=None)
    loop, graph = (least and least.ways[way].wall_seconds for way in ("loop", "graph"))
    cases = [pieces for case, pieces in scatter.cases.items() if case[:2] == next(iter(known))]
    shares = grouped(scatter.loop_shares.items(), lambda case: case[0][-1])
    told = [size for size in sorted(shares) if all(share is not None for _, share in shares[size])]
    yield say(
        "scatter-loop-suffices" if sizes else "scatter-loop-suffices/never",
        *(_rate(pieces.ways["loop"]) for pieces in cases if _known(pieces, "loop")),
        sizes=list(dict.fromkeys(sizes)),
        told=[format_bytes(size) for size in told],
        bytes=least and least.cells[0].bytes,
        loop=loop and loop.median,
        graph=graph and graph.median,
        pace=loop
        and graph
        and ("it is not clearly faster" if not clearly_more(loop, graph) else "the program that calls sets the pace"),
    )


def _held(scatter: Scatter) -> Iterator[Costed]:
    """How long a loop of copies holds the program's thread, and the other ways beside it."""
    loop = scatter.first.loop
    if loop is None or loop.held_share < HELD_A_LOT or not are_known(loop.issue_seconds, loop.wall_seconds):
        return
    others = [cell for way, cell in scatter.first.ways.items() if way not in ("loop", "contiguous", "managed")]
    ranked = [loop, *sorted(others, key=lambda cell: -cell.issue_seconds.median)]
    yield say(
        "scatter-cpu-held",
        *(measured(f"Thread held, {cell.title}", cell.issue_seconds, "seconds") for cell in ranked),
        loop=loop,
        seconds=loop.issue_seconds.median,
        what=loop.what,
    )


def _idle(scatter: Scatter) -> Iterator[Costed]:
    """Where a batch call is the way to take: how much slower it is into an idle stream, by the pieces where most."""
    cases = [pieces for pieces in scatter.cases.values() if _known(pieces, "batch", "batch_queued")]
    ways = [pieces.ways for pieces in cases if pieces.winners[0].way == "batch"]
    pairs = [(alike["batch"], alike["batch_queued"]) for alike in ways]
    slower = [(idle, queued) for idle, queued in pairs if clearly_more(idle.wall_seconds, queued.wall_seconds)]
    if slower:
        idle, queued = pair = max(slower, key=_times)
        held = all(cell.issue_seconds.is_known for cell in pair)
        yield say(
            "scatter-batch-idle",
            _rate(idle),
            _rate(queued),
            cost=_times(pair),
            severity="by cost",
            idle=idle,
            queued=queued,
            where=_where([idle for idle, _ in slower]),
            held=idle.issue_seconds.median if held else None,
            less=queued.issue_seconds.median,
        )


def _times(cells: tuple[Cell, Cell]) -> float:
    return ratio(cells[0].wall_seconds, cells[1].wall_seconds)


def _compute(scatter: Scatter) -> Iterator[Costed]:
    """What a kernel beside it costs a compute load, and with how many blocks it moves most at no cost."""
    loads = scatter.loads
    if not loads:
        return
    worst = max(loads, key=lambda load: (load.way == "kernel", load.longer_share))
    alike = [load for load in loads if (load.direction, load.way) == (worst.direction, worst.way)]
    least = max(alike, key=lambda load: (not load.is_longer, load.bytes_per_second))
    batch = max((load for load in loads if load.way == "batch"), key=lambda load: load.longer_share, default=None)
    if worst.longer_share >= HARDLY and worst.is_longer:
        yield say(
            "scatter-compute",
            *map(_beside, (worst, *loads)),
            cost=1.0 + worst.longer_share,
            severity="by cost",
            worst=worst,
            towards=TOWARDS[worst.direction],
            least=least if least is not worst else None,
            batch=batch,
        )


def _beside(load: Load) -> Quantity:
    name = f"Time of compute against alone, beside {load.mover} {TOWARDS[load.direction]}"
    return measured(name, load.compute_ratio, "ratio")


RULES = (_ways, _loop, _held, _idle, _compute)
