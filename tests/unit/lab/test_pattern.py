"""Patterns: fresh, cheap, and different in every word; and threads that copy together."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pinscope.lab.pattern import BLOCK_WORDS, Block, CopyThreads, Pattern, stretches

BLOCK = Block.random()
COUNTS = [1, 511, 65_536, 65_537, BLOCK_WORDS, 2 * BLOCK_WORDS + 3]
OFFSETS = st.integers(0, BLOCK_WORDS - 1)
KEYS = st.integers(1, 2**63 - 1)


def by_definition(pattern: Pattern, count: int) -> np.ndarray:
    positions = (np.arange(count) + pattern.offset) % BLOCK_WORDS
    return BLOCK.words[positions] ^ np.uint64(pattern.key)


def test_laid_words_follow_the_definition_and_check_as_right() -> None:
    for count in COUNTS:
        for offset in [0, 1, BLOCK_WORDS - 1]:
            words = np.zeros(count, dtype=np.uint64)
            pattern = Pattern(offset, 0x1234_5678_9ABC_DEF0)
            BLOCK.lay(words, pattern)
            assert np.array_equal(words, by_definition(pattern, count))
            assert BLOCK.count_wrong(words, pattern) == 0


@given(OFFSETS, KEYS, st.sets(st.integers(0, 199_999), max_size=20))
def test_exactly_the_damaged_words_are_counted(offset: int, key: int, damaged: set[int]) -> None:
    words = np.zeros(200_000, dtype=np.uint64)
    pattern = Pattern(offset, key)
    BLOCK.lay(words, pattern)
    for position in damaged:
        words[position] ^= np.uint64(1 << position % 64)
    assert BLOCK.count_wrong(words, pattern) == len(damaged)


@given(OFFSETS, KEYS, KEYS)
def test_content_of_an_older_pattern_is_wrong_in_every_word(offset: int, old: int, new: int) -> None:
    words = np.zeros(70_000, dtype=np.uint64)
    BLOCK.lay(words, Pattern(offset, old))
    assert BLOCK.count_wrong(words, Pattern(offset, new)) == (0 if old == new else 70_000)


@given(OFFSETS, KEYS, st.integers(0, 511))
def test_a_sample_is_the_pattern_at_those_positions(offset: int, key: int, first: int) -> None:
    positions = np.arange(first, 600_000, 512)
    pattern = Pattern(offset, key)
    assert np.array_equal(BLOCK.sample(pattern, positions), by_definition(pattern, 600_000)[positions])


def test_fresh_patterns_and_blocks_differ() -> None:
    generator = np.random.default_rng()
    assert len({Pattern.fresh(generator).key for _ in range(1000)}) == 1000
    assert not np.array_equal(BLOCK.words, Block.random().words)


def test_the_block_repeats_at_no_power_of_two() -> None:
    assert all(BLOCK_WORDS % divisor for divisor in range(2, int(BLOCK_WORDS**0.5) + 1))


def test_stretches_cover_every_byte_once_and_are_no_more_than_threads() -> None:
    for nbytes, count in [(8, 1), (8, 4), (4096, 3), (10 * 4096 + 8, 3), (2**20, 7)]:
        parts = stretches(nbytes, count)
        assert len(parts) <= count
        assert [at for at, _ in parts] == [0, *np.cumsum([length for _, length in parts])[:-1]]
        assert sum(length for _, length in parts) == nbytes


@pytest.mark.parametrize("count", [1, 3])
def test_threads_copy_all_of_it_and_one_is_the_calling_thread(count: int) -> None:
    source, target = np.arange(2**15, dtype=np.uint64), np.zeros(2**15, np.uint64)
    before, seen = threading.active_count(), []
    with CopyThreads(count) as threads:
        threads.copy(target.ctypes.data, source.ctypes.data, source.nbytes)
        threads.run(lambda _: seen.append(threading.current_thread()), [1])
    assert np.array_equal(target, source)
    assert (seen[0] is threading.current_thread()) == (count == 1)
    assert threading.active_count() == before
