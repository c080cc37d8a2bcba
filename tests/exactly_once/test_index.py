"""The index of results, against a dictionary."""

from __future__ import annotations

import random
from array import array

import pytest

from app.core.turns import whole
from app.exactly_once.index import BUCKETS, KeyIndex


@pytest.mark.parametrize("seed", range(20))
def test_the_index_finds_what_a_dictionary_finds(seed: int) -> None:
    rng = random.Random(seed)
    index, plain = KeyIndex(4), dict[int, list[int]]()
    offset = start = 0
    for _ in range(500):
        draw = rng.random()
        hash64 = rng.choice((rng.randrange(8), rng.randrange(1 << 64)))
        if draw < 0.7:
            offset += 1 + rng.randrange(3)
            late = max(start, offset - rng.randrange(4))  # its transaction was open for longer
            if any(late in each for each in plain.values()):
                continue
            index.add(hash64, late)
            plain.setdefault(hash64, []).append(late)
        elif draw < 0.75:
            start = rng.randrange(start, offset + 1)
            index.start = start
        elif draw < 0.8:
            whole(index.drop_below(start))
            assert len(index) == sum(at >= start for each in plain.values() for at in each)
        assert sorted(index.find(hash64)) == sorted(at for at in plain.get(hash64, ()) if at >= start)


def test_a_hash_that_equals_an_offset_is_not_taken_for_it() -> None:
    index = KeyIndex(1)
    index.add(1, 7)
    assert index.find(7) == ()
    index.add(7, 9)
    assert index.find(7) == (9,)


def test_rows_below_the_start_take_no_memory_once_they_are_dropped() -> None:
    index = KeyIndex(512)
    empty = index.memory_bytes
    for offset in range(1_000):
        index.add(offset * 7_919, offset)
    assert sum(1 for _ in index.drop_below(1_000)) == 2
    assert len(index) == 0
    assert index.memory_bytes == empty + 512 * 8


def run_of(rows: list[tuple[int, int]]) -> tuple[array[int], array[int]]:
    """The rows (hash, offset) in the order of hashes."""
    hashes, offsets = zip(*sorted(rows), strict=True)
    return array("Q", hashes), array("Q", offsets)


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_runs_are_found_beside_others_until_they_expire(seed: int) -> None:
    rng = random.Random(seed)
    index, rows = KeyIndex(4), list[tuple[int, int]]()
    offset = 0
    for _ in range(6):
        run = [
            (rng.choice((rng.randrange(8), rng.randrange(1 << 64))), offset + at) for at in range(rng.randrange(1, 40))
        ]
        index.add_run(*run_of(run))
        offset += len(run)
        late = rng.randrange(8)
        index.add(late, offset)
        rows += [*run, (late, offset)]
        offset += 1
    for start in (0, *sorted(rng.randrange(offset) for _ in range(5)), offset):
        whole(index.drop_below(start))
        for hash64 in {*range(9), *(hash64 for hash64, _ in rows)}:
            assert sorted(index.find(hash64)) == [at for each, at in rows if each == hash64 and at >= start]
    assert len(index) == 0


def test_a_run_is_kept_until_its_newest_row_has_expired() -> None:
    index = KeyIndex(1)
    empty = index.memory_bytes
    index.add_run(*run_of([(9, 3), (1, 7), (5, 5)]))
    whole(index.drop_below(7))
    assert (index.find(9), index.find(1), len(index)) == ((), (7,), 3)
    whole(index.drop_below(8))
    assert (index.find(1), len(index), index.memory_bytes) == ((), 0, empty)


def test_a_row_of_a_run_takes_16_bytes() -> None:
    index = KeyIndex(1)
    index.add_run(*run_of([(hash64, hash64) for hash64 in range(10_000)]))
    assert index.memory_bytes / 10_000 < 16.1


def test_a_key_takes_26_bytes_at_the_bound() -> None:
    rng = random.Random(1)
    index = KeyIndex(BUCKETS >> 6)  # as full as with 1.25 million keys in all buckets
    keys = 1_250_000 >> 6
    for offset in range(keys):
        index.add(rng.randrange(1 << 64), offset)
    assert index.memory_bytes / keys < 26
