"""What a brim run found. The texts stand first; the functions below give them their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pinscope.analysis.conclusions import part_words, times
from pinscope.analysis.rows import Row
from pinscope.analysis.statistics import measured
from pinscope.analysis.texts import Text, say
from pinscope.experiments.brim.reading import MARKS, Climb, climbs, conclude
from pinscope.experiments.brim.ways import WAYS
from pinscope.records.finding import Finding, Reading, quantity
from pinscope.records.run import ExperimentRun
from pinscope.units import format_bytes, format_seconds

CHARGED = 0.9
"""Memory of which the group is charged less than this share escapes its limit."""
_ACCOUNT = "What the group's account grew by: {words}."
_MEDIANS = "Medians of {below.count} and {beyond.count} rounds of a process that does the same work outside."
TEXTS = {
    "cliff": Text(
        "others in the group suffer before anybody is killed",
        "From {place} of the group's limit pinned on, other work in it slows, at worst {climb.times:.1f} "
        "times{climb.swap_words}",
        "It lies between two steps, {climb.cliff.below_bytes:bytes} and {climb.cliff.bytes:bytes}; at the second {how}"
        "[, and the limit less what was in the group before is {expected:bytes}]. A round took {ends} pinned.",
        "Give the group a limit of what is pinned, what its programs hold and the files that they read again and "
        "again, with a margin. 'pinscope live' shows what the group leaves.",
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
        "the kernel killed a process of the group",
        "At {ended.bytes:bytes} ({share:share} of the group's limit) pinned the kernel killed {whom} for want of "
        "memory{climb.swap_words}",
        "Pinned pages cannot be given back, so the kernel takes from others until nothing is left. This run named whom "
        "to kill first (oom_score_adj); without that the kernel usually kills the process that holds most.",
        "Give a program that pins much a control group of its own, or a lower oom_score_adj to those that must live: "
        "echo -500 > /proc/PID/oom_score_adj, as root; never to the one that pins.",
        "warning",
    ),
    "outside-undisturbed": Text(
        "a round outside takes at most 1.05 times as long from the cliff on",
        "The one process outside the group did not slow{climb.swap_words}: a round took "
        "{climb.outside_times:.2f} times as long",
        _MEDIANS,
        "A limit on the group protects others from what is charged to it, which write-combined memory is not: docker "
        "run --memory, or systemd's MemoryMax.",
        "good",
    ),
    "outside-unclear": Text(
        "it takes longer, and that may be chance, or stays so once the group is gone",
        "Outside the group a round took {rough} as long, and the group may not be the cause{climb.swap_words}",
        _MEDIANS + " It may be chance, or was as slow once the group was gone.",
        "For a sure answer let each step take longer: --set step_seconds=2.",
    ),
    "outside-slower": Text(
        "it takes longer, and not only by chance",
        "Outside the group a round took {climb.outside_times:.2f} times as long{climb.swap_words}",
        _MEDIANS + " The group reads from the disk that others use, and the kernel looks for memory on all processors.",
        "Run it again on an idle machine; if it repeats, limit the group's disk too (io.max).",
        "warning",
    ),
    "not-charged": Text(
        "less than nine tenths of what was pinned in a way were charged to the group",
        "The group's limit does not hold for {free:and} memory: {charged} of it was charged",
        _ACCOUNT + " The driver takes such pages straight from the kernel.",
        "Count such memory by hand: a container's limit does not stop it, and the host runs out instead.",
        "warning",
    ),
    "charged": Text(
        "all that was pinned was charged",
        "The group is charged for what is pinned in it, in each way",
        _ACCOUNT,
        "Count pinned memory into a container's limit.",
    ),
}


def read_brim_run(run: ExperimentRun, rows: Sequence[Row]) -> Reading:
    """Headline, tables and findings; empty parts where nothing was measured yet."""
    groups = climbs(rows)
    if not groups or not groups[0].held:
        return Reading(headline=(), tables=(), findings=())
    inside = [finding for climb in groups for judge in (_ended, _cliff) for finding in judge(climb)]
    outside = [finding for climb in groups for finding in _outside(climb)]
    return conclude(run.lab, groups, (*inside, *_charged(groups[0]), *outside))


def _cliff(climb: Climb) -> Iterator[Finding]:
    """Where others in the group suffer, before anybody is killed."""
    cliff, slowest, expected, before = climb.cliff, climb.slowest, climb.expected_cliff, climb.before.inside
    if cliff is None or cliff.kind == "killed" or slowest is None or before is None:
        return
    evidence = (
        quantity("Cliff, pinned", cliff.bytes, "bytes"),
        quantity("Step before it, pinned", cliff.below_bytes, "bytes"),
        quantity("Expected by the group's account", expected, "bytes", reason="the group's account is not known"),
        quantity("Slowest round of work ÷ before pinning", climb.times, "ratio"),
        *(quantity(f"From this much pinned on {MARKS[mark.kind]}", mark.bytes, "bytes") for mark in climb.marks),
    )
    place, how = cliff.place(climb.limit), MARKS[cliff.kind]
    ends = f"{format_seconds(before.median)} before, {format_seconds(slowest[1])} with {format_bytes(slowest[0].bytes)}"
    yield say(TEXTS, "cliff", *evidence, climb=climb, place=place, how=how, expected=expected, ends=ends)[1]


def _ended(climb: Climb) -> Iterator[Finding]:
    """Somebody was killed, or the one that pins got no more."""
    mark, ended = climb.kill, climb.ended
    if ended is None:
        return
    evidence = [quantity("Pinned then", ended.bytes, "bytes")]
    if mark:
        why, kills = "the account is not known", ended.account("kills")
        evidence = [
            quantity("Killed at, pinned", mark.bytes, "bytes"),
            quantity("Step before it, pinned", mark.below_bytes, "bytes"),
            quantity("Expected by the group's account", climb.expected_kill, "bytes", reason=why),
            quantity("Processes killed", kills, "count", reason="not reported here"),
        ]
    holder = ended.account("victim") == "holder"
    whom = "the process that pins" if holder else "the ordinary process, which pinned nothing,"
    key, share = "killed" if mark else "refused", ended.bytes / climb.limit
    yield say(TEXTS, key, *evidence, climb=climb, ended=ended, share=share, whom=whom)[1]


def _outside(climb: Climb) -> Iterator[Finding]:
    """The limit kept it inside, or not."""
    if climb.outside is None or climb.outside_times is None:
        return
    below, beyond = climb.outside
    evidence = (
        quantity("Round outside, from the cliff on ÷ below it", climb.outside_times, "ratio"),
        measured("Round outside below the cliff", below, "seconds"),
        measured("Round outside from the cliff on", beyond, "seconds"),
    )
    key = {True: "outside-slower", None: "outside-unclear", False: "outside-undisturbed"}[climb.disturbs]
    rough = times(climb.outside_times, below, beyond)
    yield say(TEXTS, key, *evidence, climb=climb, rough=rough, below=below, beyond=beyond)[1]


def _charged(climb: Climb) -> Iterator[Finding]:
    """Whether the limit holds for each way of pinning."""
    titles = {name: way.title for name, way in WAYS.items() if name in climb.charged}
    if not titles:
        return
    amounts = {title: (climb.charged[name][0], max(climb.charged[name][1], 0)) for name, title in titles.items()}
    shares = {title: got / asked for title, (asked, got) in amounts.items()}
    free = [title for title, share in shares.items() if share < CHARGED]
    words = [f"{title}: {format_bytes(got)} of {format_bytes(asked)}" for title, (asked, got) in amounts.items()]
    evidence = [quantity(f"Charged of what was pinned: {title}", share, "share") for title, share in shares.items()]
    charged = part_words(max((shares[title] for title in free), default=1.0))
    key = "not-charged" if free else "charged"
    yield say(TEXTS, key, *evidence, free=free, charged=charged, words="; ".join(words))[1]
