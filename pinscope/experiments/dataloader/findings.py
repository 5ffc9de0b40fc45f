"""What the data loader experiment found out, each finding with what it costs to ignore it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pinscope.analysis.read_rows import grouped
from pinscope.analysis.rules import ROUNDING_ADVICE, ROUNDING_RATIO, rounded_up
from pinscope.analysis.texts import Costed, Text, joined, saying
from pinscope.experiments.dataloader.reading import MOST_RUNS, UNTOLD, Cell, Effect, Loops, PoolUse
from pinscope.experiments.dataloader.ways import BATCHES, BOTH, PARTS, WAYS, BatchKind
from pinscope.records.run import Quantity, quantity
from pinscope.units import format_share

_TITLE = "{setting} makes the loop {factors}"
_SPEED = "Speed with ÷ without, {batch} a batch: "
_DETAIL = _SPEED + "{intervals}.[ With {others}.]"
_MORE = f"To tell smaller differences, take more rounds: pinscope run dataloader --set rounds={MOST_RUNS}"
TEXTS: Mapping[str, Text] = {
    "never-steady": Text(
        "a combination did not become steady",
        "{count} of {all} combinations did not reach a steady rate within {steps} steps and {have}",
        "{combinations}.",
        "Let the machine idle and take more steps: --set steps={more}",
    ),
    "bound": Text(
        "a part of the fastest loop is busy for most of a step, and it is not computing",
        "{part} is the busiest part of the fastest loop, {share:share} of each step[, and the GPU computes for "
        "{computes:share}]",
        "{words}: {parts} of a step.",
        "{advice}",
    ),
    "setting/faster": Text(
        "a setting makes the loop faster with some number of workers",
        _TITLE,
        _DETAIL,
        "With {workers}{given}: {write}[ Not with {slower}, where it is slower.][ No gain over pageable batches was "
        "measured with {gainless}.]",
    ),
    "setting/slower": Text(
        "a setting makes the loop slower with some number of workers",
        f"{_TITLE}: slower",
        _DETAIL,
        "Leave it off with {workers}.",
    ),
    "no-difference-measured": Text(
        "a setting makes no measured difference with any number of workers",
        "No difference measured for {settings}",
        _SPEED + "{listed}. A difference of up to {unseen:share} is not excluded[; of {varied:and} the rounds vary too "
        "much to tell].",
        _MORE,
    ),
    "no-difference-measured/varies": Text(
        "rounds vary too much to tell what a setting changes with any number of workers",
        "{rounds} rounds vary too much to tell what pin_memory and non_blocking change",
        "Of {settings} no speed with ÷ without, {batch} a batch, is known well enough for a figure.",
        _MORE,
    ),
    "gain-by-batch": Text(
        "another kind of batch gains more or less by pin_memory with non_blocking, and the intervals lie apart",
        "{setting} makes a loop {usual.value:.2f} times as fast with {batch}, {other.value:.2f} with {kind}",
        "Speed with ÷ without, {workers}: {usual.times} and {other.times}.",
        "{advice}",
    ),
    "pinned-rounding": Text(
        "PyTorch pins much more for a batch than it has bytes",
        "PyTorch pins {rounded:bytes} for a batch of {asked:bytes}",
        "Its pinned allocator rounds requests up to powers of two and keeps them[ ({most.words}: "
        "{most.pinned_bytes:bytes})].[ Settings in force: {settings}.][ Less is pinned with: {tight}.][ Emptying the "
        "pool gives nothing back with: {staying}.]",
        "For batches, choose a batch size whose bytes are just below a power of two. For a buffer of your own: "
        f"{ROUNDING_ADVICE[:1].lower()}{ROUNDING_ADVICE[1:]} torch._C._host_emptyCache() gives back what no tensor "
        "uses.",
    ),
}
say = saying(TEXTS)
SAME_BYTES = 4 * 2**20
"""The host's count of pinned pages is batched for each processor: amounts that differ by less are the same."""
_CHEAPER = "make items cheaper, or prepare the data once"
_FEWER_BYTES = "Hand over fewer bytes, such as uint8 images that the GPU converts."


_BY_BATCH: Mapping[BatchKind, str] = {
    "one": "Measure a loop of your own: pinscope trace --what-if pin.",
    "many": "Put the tensors of a batch into one in collate_fn (torch.cat). Measure your own loop: pinscope trace "
    "--what-if pin.",
    "slow": "Where making batches is the limit, take more workers or cheaper items first.",
}
"""What to do where another kind of batch gains something else."""


def _never_steady(loops: Loops) -> Iterator[Costed]:
    restless = [cell for cell in loops.cells if not cell.steps_per_second]
    if not restless:
        return
    steps = max(len(visit.steps) + 1 for cell in restless for visit in cell.visits)
    yield say(
        "never-steady",
        quantity("Steps in a round, at most", steps, "count"),
        count=len(restless),
        all=len(loops.cells),
        steps=steps,
        have="has no figure" if len(restless) == 1 else "have no figures",
        combinations="; ".join(cell.words for cell in restless),
        more=2 * steps,
    )


def _bound(loops: Loops) -> Iterator[Costed]:
    """What the fastest loop waits for. The tables say it of the others."""
    best = loops.fastest
    if best is None:
        return
    bound, computes = best.bound, best.computes_share
    if bound is None or not bound.is_clear or bound.part == "compute" or loops.equals:
        return  # of loops that are as fast, each may wait for something else
    cost = 1 / max(computes, 1e-3) if computes is not None else 1.0
    yield say(
        "bound",
        quantity(f"Busiest part: {bound.title}, of a step", bound.share, "share"),
        *([quantity("GPU computes, of a step", computes, "share")] if computes is not None else []),
        cost=cost,
        severity="by cost",
        part=bound.title[:1].upper() + bound.title[1:],
        share=bound.share,
        computes=computes if computes is not None and computes < 1 else None,
        words=best.words.capitalize(),
        parts=", ".join(f"{PARTS[busy.part][0].words} {format_share(busy.share)}" for busy in best.busy),
        advice=_advice(bound.part, best, loops),
    )


def _advice(part: str, fastest: Cell, loops: Loops) -> str:
    """What could make the fastest of the measured loops faster; nothing that was measured to be slower."""
    if part == "copy" or (part != "workers" and fastest.workers):
        one_thread = "PyTorch pins in one thread, whatever the number of workers. " if part == "pinning" else ""
        return one_thread + _FEWER_BYTES
    if any(cell.workers > fastest.workers for cell in loops.usual):
        return f"More workers were no faster here: {_CHEAPER}."
    if fastest.workers:
        return f"Take more workers while there are idle processors, or {_CHEAPER}."
    return f"Take workers (num_workers), which make batches while the program goes on, or {_CHEAPER}."


def _effects(loops: Loops) -> Iterator[Costed]:
    """Each setting that makes a loop faster or slower, and one finding on all that make no measured difference."""
    alike: dict[str, list[Effect]] = {}
    for rule, setting in WAYS.items():
        effects = loops.effects(setting)
        by_verdict = grouped(effects, lambda effect: effect.verdict)
        for name in ("faster", "slower"):
            if some := by_verdict.get(name):
                yield _effect(rule, name, some, loops)
        if effects and by_verdict.keys() <= set(UNTOLD):
            alike[setting.title] = effects
    if alike:
        yield _no_difference(alike, loops)


def _effect(rule: str, name: str, some: Sequence[Effect], loops: Loops) -> Costed:
    """Of a setting's effects ``some``, those with the verdict ``name``, in the title, the others in the detail."""
    setting, effects = WAYS[rule], loops.effects(WAYS[rule])
    gains = {effect.workers for effect in loops.effects(WAYS[BOTH]) if effect.verdict == "faster"}
    most = max(some, key=lambda effect: abs(math.log(effect.value)))
    others = [effect for effect in effects if effect not in some]
    slower = [effect for effect in effects if effect.verdict == "slower"]
    gainless = [effect for effect in some if setting.given and effect.workers not in gains]
    # The cost is taken at the end of the interval that is nearer to none.
    cost = 1 / most.ends[1] if name == "slower" else most.ends[0]
    rule = f"{rule}-slower" if name == "slower" else rule
    times = [f"{effect.value:.2f} times as fast with {effect.workers_words}" for effect in some]
    rest = [f"{effect.workers_words} {effect.times}, {effect.verdict}" for effect in others]
    return saying({rule: TEXTS[f"setting/{name}"]})(
        rule,
        *_evidence([*some, *others]),
        cost=cost,
        severity="by cost",
        setting=setting.title,
        factors=joined(times),
        batch=BATCHES[loops.kinds[0]].title,
        intervals=_intervals(some),
        others="; ".join(rest) or None,
        workers=_workers(some),
        given=setting.given,
        write=setting.code,
        slower=_workers(slower) or None,
        gainless=_workers(gainless) or None,
    )


def _by_batch(loops: Loops) -> Iterator[Costed]:
    """Where another kind of batch gains something else."""
    setting = WAYS[BOTH]
    usual = {effect.workers: effect for effect in loops.effects(setting)}
    for kind in loops.kinds[1:]:
        for other in loops.effects(setting, kind):
            single = usual.get(other.workers)
            if single and other.is_apart(single):
                yield say(
                    "gain-by-batch",
                    *_evidence([single], f"{BATCHES[loops.kinds[0]].title}, "),
                    *_evidence([other], f"{BATCHES[kind].title}, "),
                    cost=max(single.value, other.value),
                    setting=setting.title,
                    batch=BATCHES[loops.kinds[0]].title,
                    kind=BATCHES[kind].title,
                    usual=single,
                    other=other,
                    workers=other.workers_words,
                    advice=_BY_BATCH[kind],
                )


def _no_difference(alike: Mapping[str, Sequence[Effect]], loops: Loops) -> Costed:
    """What the run cannot tell from its absence, and how large a difference it would not have seen."""
    known = {name: own for name, effects in alike.items() if (own := [effect for effect in effects if effect.is_known])}
    unknown = {name: [effect for effect in effects if not effect.is_known] for name, effects in alike.items()}
    varied = [f"{name} with {_workers(effects)}" for name, effects in unknown.items() if effects]
    ends = [effect.ends for effects in known.values() for effect in effects]
    rounds = min(effect.ratio.count for effects in alike.values() for effect in effects)
    return say(
        "no-difference-measured" if known else "no-difference-measured/varies",
        *(each for name, effects in known.items() for each in _evidence(effects, f"{name}, ")),
        *([] if known else [quantity("Rounds", rounds, "count")]),
        settings=joined(list(known or alike)),
        batch=BATCHES[loops.kinds[0]].title,
        listed="; ".join(f"{name} {_intervals(effects)}" for name, effects in known.items()),
        varied=varied or None,
        rounds=rounds,
        unseen=max((max(high - 1, 1 - low) for low, high in ends), default=None),
    )


def _intervals(effects: Sequence[Effect]) -> str:
    return ", ".join(f"{effect.times} with {effect.workers_words}" for effect in effects)


def _evidence(effects: Sequence[Effect], name: str = "") -> Iterator[Quantity]:
    for effect in effects:
        yield effect.figure(f"Speed with ÷ without, {name}{effect.workers_words}")


def _workers(effects: Sequence[Effect]) -> str:
    """``2 workers or 8 workers``."""
    return " or ".join(effect.workers_words for effect in effects)


def _rounding(loops: Loops) -> Iterator[Costed]:
    """Pinned blocks are rounded up to powers of two; and what the pool's settings change, where it was looked at."""
    pinned = [cell for cell in loops.cells if cell.pin_memory and cell.pinned_bytes and cell.batch_kind != "many"]
    most = max(pinned, key=lambda cell: (cell is loops.fastest, cell.pinned_bytes or 0), default=None)
    uses = [use for use in loops.uses if use.taken is not None]
    if not uses and most is None:
        return
    asked = (uses or pinned)[0].batch_bytes
    rounded = uses[0].taken if uses else rounded_up(asked)
    waste = (rounded or 0) / asked
    if waste < ROUNDING_RATIO:
        return
    yield say(
        "pinned-rounding",
        quantity("Asked for, a batch", asked, "bytes"),
        *([quantity(f"Pinned in all, {most.words}", most.pinned_bytes, "bytes")] if most else []),
        quantity("Rounded up", waste, "ratio"),
        *(quantity(f"Pinned, {use.title}", use.taken, "bytes") for use in uses),
        cost=waste,
        severity="by cost",
        rounded=rounded,
        asked=asked,
        most=most,
        settings=(uses[0].settings or "none") if uses else None,
        tight=_texts(use for use in uses if (use.taken or 0) < (rounded or 0) - SAME_BYTES),
        staying=_texts(use for use in uses if (use.left_bytes or 0) > SAME_BYTES),
    )


def _texts(uses: Iterable[PoolUse]) -> str | None:
    return ", ".join(use.settings.partition("=")[2] or use.title for use in uses) or None


RULES = (_never_steady, _rounding, _bound, _effects, _by_batch)
