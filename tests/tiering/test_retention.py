"""Retention lets go of what Kafka would, from the oldest on; coverage finds every gap and overlap."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.units import Offset, TimestampMs
from app.tiering.upload.retention import Span, coverage_faults, expired_end


def spans(*rows: tuple[int, int]) -> list[Span]:
    """(bytes, newest timestamp) of successive segments of ten offsets."""
    return [
        Span(Offset(index * 10), Offset(index * 10 + 10), size, TimestampMs(newest))
        for index, (size, newest) in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("rows", "total", "ms", "size", "end"),
    [
        ([(5, 100), (5, 200), (5, 900)], 20, -1, -1, None),  # no limits
        ([(5, 100), (5, 200), (5, 900)], 20, 500, -1, 20),
        ([(5, 900), (5, 100)], 10, 500, -1, None),  # an old one behind a young one stays
        ([(5, 500)], 5, 500, -1, None),  # exactly as old as the limit: stays
        ([(5, 499)], 5, 500, -1, 10),
        ([(5, -1)], 5, 0, -1, None),  # no time known: never too old
        ([(5, 900), (5, 900), (5, 900)], 20, -1, 10, 20),  # 20 - 5 - 5 = 10 still keeps the limit
        ([(5, 900), (5, 900), (5, 900)], 20, -1, 11, 10),
        ([(5, 900)], 5, -1, 0, 10),
        ([(5, 100), (5, 900), (5, 900)], 20, 500, 12, 10),  # both limits: by time, then none more by size
        ([], 0, 0, 0, None),
    ],
)
def test_what_expires(rows: list[tuple[int, int]], total: int, ms: int, size: int, end: int | None) -> None:
    found = expired_end(spans(*rows), total, retention_ms=ms, retention_bytes=size, now_ms=TimestampMs(1000))
    assert found == end


def faults(log_start: int, local_start: int, log_end: int, tiered_end: int, *remote: tuple[int, int]) -> list[str]:
    return coverage_faults(
        log_start=Offset(log_start),
        local_start=Offset(local_start),
        log_end=Offset(log_end),
        tiered_end=Offset(tiered_end),
        remote=[(Offset(base), Offset(end)) for base, end in remote],
    )


@pytest.mark.parametrize(
    "shape",
    [
        (0, 0, 0, 0),
        (0, 0, 50, 0),
        (0, 20, 50, 20, (0, 10), (10, 20)),
        (0, 10, 50, 20, (0, 10), (10, 20)),  # in both tiers
        (15, 20, 50, 20, (0, 10), (10, 20)),  # the log start is within a segment
        (10, 20, 50, 20, (10, 20)),
        (20, 20, 20, 20),  # all expired
        (12, 20, 50, 20, (0, 5), (10, 20)),  # a gap below the log start
    ],
)
def test_sound_shapes_have_no_faults(shape: tuple[int, ...]) -> None:
    assert faults(*shape) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((0, 20, 50, 20), r"no segment covers \[0, 20\)"),
        ((0, 20, 50, 20, (0, 10)), r"no segment covers \[10, 20\)"),
        ((0, 20, 50, 20, (10, 20)), r"no segment covers \[0, 10\)"),
        ((0, 20, 50, 20, (0, 12), (10, 20)), "overlap"),
        ((0, 10, 15, 20, (0, 10), (10, 20)), "below the tiered end"),
        ((0, 30, 50, 30, (0, 10), (20, 30)), r"no segment covers \[10, 20\)"),
    ],
)
def test_every_kind_of_fault_is_told(shape: tuple[int, ...], words: str) -> None:
    found = faults(*shape)  # type: ignore[arg-type]
    assert any(re.search(words, one) for one in found), found


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.integers(0, 40), st.integers(0, 40), st.data())
def test_coverage_agrees_with_counting_offsets(
    lengths: list[int], log_start: int, local_start: int, data: st.DataObject
) -> None:
    edges = [0]
    for length in lengths:
        edges.append(edges[-1] + length)
    remote = [pair for pair in pairwise(edges) if data.draw(st.booleans())]
    local_start = max(local_start, log_start)
    tiered_end = remote[-1][1] if remote else 0
    log_end = max(local_start, tiered_end)
    covered = {offset for base, end in remote for offset in range(base, end)}
    wanted = set(range(log_start, local_start))
    assert bool(faults(log_start, local_start, log_end, tiered_end, *remote)) == bool(wanted - covered)
