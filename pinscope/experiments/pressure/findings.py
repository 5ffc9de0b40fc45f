"""What a pressure run found. The texts stand first; the functions below give them their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from pinscope.analysis.cells import near
from pinscope.analysis.statistics import are_known, exceeds, measured, ratio, together
from pinscope.analysis.texts import ROUGH, Costed, Text, Texts, part_words, saying, times
from pinscope.experiments.pressure.reading import MARKS, Climb, OnHost, Pressures, share_of_memory, slowdown
from pinscope.experiments.pressure.ways import WAYS
from pinscope.records.run import Finding, Quantity, quantity
from pinscope.units import GIB, format_bytes, format_seconds, format_share

RETURNED = 0.9
CHARGED = 0.9
"""Memory of which the group is charged less than this share escapes its limit."""
TEXTS: Texts = {
    "others-suffer": Text(
        "from a step on page faults take 1.75 times as long as before, reading a file 1.5 times, 5 % of it left the "
        "page cache, 16 MiB were swapped, or tasks stalled for 1 % of the time and 3 times as long as before",
        "From {cliff.bytes:bytes} pinned on {how}",
        "It was not so with {cliff.below_bytes:bytes}, and stayed so at every later step.[ A page fault of an ordinary "
        "process took {ends} pinned.]",
        "Pin less than that: leave other programs their memory, and the page cache what they read again and again.",
        "warning",
    ),
    "gone-for-everybody": Text(
        "memory was pinned in two steps at least, and other programs took and gave back none meanwhile",
        "Each pinned GiB lowered the host's available memory by {lost:bytes}",
        "With {last.bytes:bytes} pinned, {available:bytes} were available on the host[; only {returned:share} of what "
        "went was back afterwards]. The kernel can neither swap nor move nor drop pinned pages, whether used or not.",
        "Pin what is copied again and again, reuse it, and give it back; the page Plan says what is safe here.",
    ),
    "cliff": Text(
        "others in the group suffer before anybody is killed",
        "Other work in the group slows[, at worst {slowed},] [with less left than the {climb.needed_bytes:bytes} that "
        "was in use before][{unexplained}]{climb.swap_words}",
        "It begins between {climb.cliff.below_bytes:bytes} and {climb.cliff.bytes:bytes} pinned of a limit of "
        "{climb.limit:bytes}, where {how}.[ A round took {ends} pinned.]",
        "Give the group a limit of what is pinned (write-combined memory is not charged), what its programs hold and "
        "the files that they read again and again, with a margin. 'pinscope live' shows what the group leaves.",
        "warning",
    ),
    "refused": Text(
        "memory was refused",
        "At {ended.bytes:bytes} ({share:share} of the group's limit) pinned memory was refused, and nobody "
        "killed{climb.swap_words}",
        "The process that pins got an error in place of memory.",
        "Pin less than that: a program that does not expect the error ends there.",
    ),
    "killed": Text(
        "the kernel killed a process of the group, as a rule the one that the run marked to be killed first",
        "At {ended.bytes:bytes} ({share:share} of the group's limit) pinned the kernel killed {whom} for want of "
        "memory{climb.swap_words}",
        "Pinned pages cannot be given back, so the kernel takes from others until nothing is left. The "
        "ordinary process, which pinned nothing, was marked by the run (oom_score_adj); else the kernel usually "
        "kills the one that holds most.",
        "Give a program that pins much a control group of its own, or a lower oom_score_adj to those that must live: "
        "echo -500 > /proc/PID/oom_score_adj, as root; never to the one that pins.",
        "warning",
    ),
    "outside-slower": Text(
        "a round outside the group takes 1.05 times as long from the cliff on, and not only by chance",
        "Outside the group a round took {climb.outside_times:.2f} times as long{climb.swap_words}",
        "Medians of {below.count} and {beyond.count} rounds of a process that does the same work outside. The group "
        "reads from the disk that others use, and the kernel looks for memory on all processors.",
        "Run it again on an idle machine; if it repeats, limit the group's disk too (io.max).",
        "warning",
    ),
    "not-charged": Text(
        "less than nine tenths of what was pinned in a way were charged to the group",
        "The group's limit does not hold for {free:and} memory: {charged} of it was charged",
        "What the group's account grew by: {words}. The driver takes such pages straight from the kernel.",
        "Count such memory by hand: a container's limit does not stop it, and the host runs out instead.",
        "warning",
    ),
}
say = saying(TEXTS)


def verdict(measured: Pressures, concluded: Sequence[Finding]) -> str | None:
    """Where others suffer: in the first group, or on the host."""
    del concluded
    on_model, host = measured.run.lab == "host", measured.host
    pin, pinning, pinned = ("Lock", "Locking", "locked") if on_model else ("Pin", "Pinning", "pinned")
    if host is None:
        return _group_verdict(measured.groups[0], pinned)
    if host.cliff:
        return f"{pin} less than {format_bytes(host.cliff.bytes)}: with that {MARKS[host.cliff.kind]}."
    share, owner = share_of_memory(measured.run, host)
    whole = "RAM" if owner == "host's" else "the cgroup"
    return _faults(host, f"{pinning} {format_bytes(host.most_bytes)} ({format_share(share)} of {whole})")


def _ends(run: OnHost | Climb) -> str | None:
    """What the ordinary process's work took before, and at worst; ``None`` where that is not known."""
    if run.slowest is None or run.slowed is None:
        return None
    longest, before = (format_seconds(time.median) for time in run.slowed)
    return f"{before} before, {longest} with {format_bytes(run.slowest.bytes)}"


def _marks(run: OnHost | Climb) -> tuple[Quantity, ...]:
    return tuple(quantity(f"From this much pinned on {MARKS[mark.kind]}", mark.bytes, "bytes") for mark in run.marks)


def _on_host(measured: Pressures) -> Iterator[Costed]:
    """What others felt, and what they lost."""
    run = measured.host
    if run is None:
        return
    last, returned = run.held[-1], run.returned_share
    if run.cliff:
        longest = slowdown(run, "Page fault, slowest step against before", nothing="not measured")
        how = MARKS[run.cliff.kind]
        yield say("others-suffer", *_marks(run), longest, cliff=run.cliff, how=how, ends=_ends(run))
    if lost := run.known_price:
        available = last.at_end("available_bytes")
        evidence = (
            run.price,
            quantity("Least memory available", available, "bytes"),
            quantity("Share of the memory back after freeing", returned, "share", reason="not measured"),
        )
        little = returned if returned is not None and returned < RETURNED else None
        values = {"lost": lost * GIB, "last": last, "available": available, "returned": little}
        yield say("gone-for-everybody", *evidence, **values)


def _cliff(climb: Climb) -> Iterator[Costed]:
    """Where others in the group suffer, before anybody is killed."""
    cliff = climb.cliff
    if cliff is None or cliff.kind == "killed":
        return
    evidence = (
        quantity("Cliff, pinned", cliff.bytes, "bytes"),
        quantity("Step before it, pinned", cliff.below_bytes, "bytes"),
        quantity(
            "Expected by the group's account", climb.expected_cliff, "bytes", reason="the group's account is not known"
        ),
        slowdown(climb, "Slowest round of work against before pinning"),
        *_marks(climb),
    )
    unexplained = None if climb.needed_bytes else f"from {cliff.place(climb.limit)} of its limit pinned on"
    slowed = times(ratio(*climb.slowed), *climb.slowed) if climb.slowed else None
    values: dict[str, Any] = {"how": MARKS[cliff.kind], "unexplained": unexplained, "ends": _ends(climb)}
    yield say("cliff", *evidence, climb=climb, slowed=slowed, **values)


def _ended(climb: Climb) -> Iterator[Costed]:
    """Somebody was killed, or the one that pins got no more."""
    mark, ended = climb.kill, climb.ended
    if ended is None:
        return
    evidence = [quantity("Pinned then", ended.bytes, "bytes")]
    if mark:
        why = "what others hold may be swapped out" if climb.swap == "with" else "the account is not known"
        kills = ended.at_end("kills")
        evidence = [
            quantity("Killed at, pinned", mark.bytes, "bytes"),
            quantity("Step before it, pinned", mark.below_bytes, "bytes"),
            quantity("Expected by the group's account", climb.expected_kill, "bytes", reason=why),
            quantity("Processes killed", kills, "count", reason="not reported here"),
        ]
    holder = ended.at_end("victim") == "holder"
    whom = "the process that pins" if holder else "the process marked to be killed first"
    key, share = "killed" if mark else "refused", ended.bytes / climb.limit
    yield say(key, *evidence, climb=climb, ended=ended, share=share, whom=whom)


def _outside(climb: Climb) -> Iterator[Costed]:
    """The limit did not keep it inside."""
    if climb.outside and climb.disturbs:
        below, beyond = climb.outside
        evidence = (
            quantity("Round outside, beyond the cliff against below it", climb.outside_times, "ratio"),
            measured("Round outside below the cliff", below, "seconds"),
            measured("Round outside from the cliff on", beyond, "seconds"),
        )
        yield say("outside-slower", *evidence, climb=climb, below=below, beyond=beyond)


def _not_charged(measured: Pressures) -> Iterator[Costed]:
    """The limit does not hold for a way of pinning."""
    charged = measured.groups[0].charged if measured.groups else {}
    amounts = {way.title: (charged[name][0], max(charged[name][1], 0)) for name, way in WAYS.items() if name in charged}
    shares = {title: got / asked for title, (asked, got) in amounts.items()}
    if free := [title for title, share in shares.items() if share < CHARGED]:
        words = [f"{title}: {format_bytes(got)} of {format_bytes(asked)}" for title, (asked, got) in amounts.items()]
        evidence = [quantity(f"Charged of what was pinned: {title}", share, "share") for title, share in shares.items()]
        most = part_words(max(shares[title] for title in free))
        yield say("not-charged", *evidence, free=free, charged=most, words="; ".join(words))


def _faults(run: OnHost, most: str) -> str:
    """Whether pinning lengthened page faults."""
    before, held, after = (
        run.before.work_seconds,
        run.slowest and run.slowest.work_seconds,
        run.after and run.after.work_seconds,
    )
    if not before or not held:
        return f"{most}: page faults were not timed."
    unclear = f"{most}: page faults vary too much to tell whether it slows them."
    if not exceeds(held, before):
        return unclear if together(held, before) > ROUGH else f"{most} did not measurably slow page faults."
    slower, freed = (ratio(work, before) if work else 0.0 for work in (held, after))
    if after and near(held, after):
        return f"{most} is not why page faults slowed: {slower:.2f} times with it, {freed:.2f} after freeing."
    if not are_known(held, before) or (after and not exceeds(held, after)):
        return unclear
    return f"{most} made page faults up to {slower:.2f} times slower."


def _group_verdict(climb: Climb, pinned: str) -> str | None:
    """From where on the others in the group slow or are killed; ``None`` before a mark."""
    cliff = climb.cliff
    if cliff is None:
        return None
    used, suffer = climb.needed_bytes, "the kernel kills one" if cliff.kind == "killed" else "they slow"
    less = "with less" if used else f"past {format_share(cliff.bytes / climb.limit)} {pinned}"
    times = f" up to {climb.times:.1f} times" if climb.times and cliff.kind != "killed" else ""
    here = f" ({format_bytes(used)} here)" if used else ""
    if used and times and climb.kill:
        return f"In a cgroup leave others what they use{here}: less slows them{times}, then kills."
    return f"In a cgroup leave others what they use{here}: {less} {suffer}{times}."


def _each_group(rule: Callable[[Climb], Iterator[Costed]]) -> Callable[[Pressures], Iterator[Costed]]:
    return lambda measured: chain.from_iterable(map(rule, measured.groups))


RULES = (_on_host, _each_group(_ended), _each_group(_cliff), _not_charged, _each_group(_outside))
