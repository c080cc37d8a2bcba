"""Fetch sessions (KIP-227) as a pure state machine: a golden conversation, and who gives way to whom."""

from __future__ import annotations

import random

from app.core.errors import ErrorCode
from app.core.limits import TOPIC_NAME_CHARS_MAX
from app.handlers.state.fetch_sessions import EVICTION_MS, AskedPartition, FetchPlan, FetchSessions

NOW = 1_000_000


def asked(partition: int, offset: int = 0, topic: str = "t") -> AskedPartition:
    return AskedPartition(topic, partition, offset, 1 << 20, -1, -1)


def sessions(slots: int = 10) -> FetchSessions:
    return FetchSessions(slots, random.Random(1))


def plan(
    cache: FetchSessions, session_id: int, epoch: int, *partitions: AskedPartition, forgotten=(), now=NOW, **extra
) -> FetchPlan:
    return cache.plan(session_id, epoch, list(partitions), forgotten, uses_topic_ids=False, now_ms=now, **extra)


def answer(plan: FetchPlan, records: dict[int, int] | None = None, *, hw: dict[int, int] | None = None) -> list[int]:
    """Which partitions a response carries, if these have so many record bytes and those high watermarks."""
    told = []
    for cached in list(plan.partitions):
        size = (records or {}).get(cached.partition, 0)
        if plan.includes(
            cached,
            error=0,
            high_watermark=(hw or {}).get(cached.partition, 0),
            log_start_offset=0,
            record_bytes=size,
            diverges=False,
        ):
            told.append(cached.partition)
    return told


def order(plan: FetchPlan) -> list[int]:
    return [cached.partition for cached in plan.partitions]


def test_a_conversation():
    cache = sessions()
    full = plan(cache, 0, 0, asked(0), asked(1), asked(2))
    assert full.session_id != 0
    assert answer(full) == [0, 1, 2], "a full answer carries everything"

    def step(epoch: int, *partitions: AskedPartition, **extra: object) -> FetchPlan:
        return plan(cache, full.session_id, epoch, *partitions, **extra)

    assert answer(step(1)) == [], "nothing is new"
    assert answer(step(2), hw={1: 5}) == [1], "a high watermark moved"
    assert answer(step(3), {0: 100}, hw={1: 5}) == [0], "records came"
    assert order(step(4)) == [1, 2, 0], "who was served goes to the end"
    assert answer(step(5, asked(2, 9)), {1: 10, 2: 10}, hw={1: 5}) == [1, 2]
    assert order(step(6)) == [0, 1, 2]
    assert order(step(7, asked(3), forgotten=[("t", 0)])) == [1, 2, 3], "one is new, one forgotten"
    assert step(7).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert step(9).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert answer(step(8), hw={1: 5}) == [3], "the new one's high watermark was never told"
    closed = step(-1, asked(1))
    assert (closed.session_id, closed.incremental, order(closed)) == (0, False, [1])
    assert step(9).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (len(cache), cache.partitions) == (0, 0)


def test_an_error_is_told_until_it_is_over():
    cache = sessions()
    full = plan(cache, 0, 0, asked(0))
    answer(full)
    for epoch in (1, 2, 3):
        step = plan(cache, full.session_id, epoch)
        (cached,) = step.partitions
        assert step.includes(cached, error=3, high_watermark=-1, log_start_offset=-1, record_bytes=0, diverges=False)
    assert answer(plan(cache, full.session_id, 4)) == [0], "that it is over is news"
    assert answer(plan(cache, full.session_id, 5)) == []


def test_a_full_request_replaces_the_session_it_names():
    cache = sessions()
    first = plan(cache, 0, 0, asked(0))
    second = plan(cache, first.session_id, 0, asked(1))
    assert len(cache) == 1
    assert plan(cache, first.session_id, 1).error in (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    )
    assert order(plan(cache, second.session_id, 1)) == [1]


def test_a_session_that_forgets_everything_ends():
    cache = sessions()
    full = plan(cache, 0, 0, asked(0))
    empty = plan(cache, full.session_id, 1, forgotten=[("t", 0)])
    assert (order(empty), empty.session_id, len(cache), cache.partitions) == ([], 0, 0, 0)


def test_a_request_that_was_overtaken_knows_it():
    cache = sessions()
    full = plan(cache, 0, 0, asked(0))
    waiting = plan(cache, full.session_id, 1)
    assert not waiting.overtaken
    plan(cache, full.session_id, 2)
    assert waiting.overtaken


def test_a_full_cache_makes_no_session_for_young_equals():
    cache = sessions(2)
    for _ in range(2):
        assert plan(cache, 0, 0, asked(0)).session_id
    refused = plan(cache, 0, 0, asked(0))
    assert (refused.session_id, order(refused), cache.evictions) == (0, [0], 0)


def test_a_long_unused_session_gives_way():
    cache = sessions(2)
    old = plan(cache, 0, 0, asked(0))
    used = plan(cache, 0, 0, asked(0))
    later = NOW + EVICTION_MS + 1
    plan(cache, used.session_id, 1, now=later)
    assert plan(cache, 0, 0, asked(0), now=later).session_id
    assert plan(cache, old.session_id, 1, now=later).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert plan(cache, used.session_id, 2, now=later).error is ErrorCode.NONE
    assert cache.evictions == 1


def test_a_larger_session_pushes_out_a_smaller_grown_up_one():
    cache = sessions(2)
    small = plan(cache, 0, 0, asked(0))
    large = plan(cache, 0, 0, asked(0), asked(1), asked(2))
    later = NOW + EVICTION_MS + 1
    for one in (small, large):
        plan(cache, one.session_id, 1, now=later)
    assert plan(cache, 0, 0, asked(0), now=later).session_id == 0
    assert plan(cache, 0, 0, asked(0), asked(1), now=later).session_id
    assert plan(cache, small.session_id, 2, now=later).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert plan(cache, large.session_id, 2, now=later).error is ErrorCode.NONE


def test_a_follower_pushes_out_a_young_consumer_but_not_the_reverse():
    cache = sessions(1)
    consumer = plan(cache, 0, 0, asked(0), asked(1))
    follower = plan(cache, 0, 0, asked(0), follower=(2, 7))
    assert follower.session_id
    assert plan(cache, consumer.session_id, 1).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert plan(cache, 0, 0, *[asked(n) for n in range(50)], now=NOW + EVICTION_MS - 1).session_id == 0


def test_an_epoch_goes_round():
    cache = sessions()
    full = plan(cache, 0, 0, asked(0))
    assert full.session is not None
    full.session.epoch = 2_147_483_647
    assert plan(cache, full.session_id, 2_147_483_647).error is ErrorCode.NONE
    assert plan(cache, full.session_id, 1).error is ErrorCode.NONE


def test_partitions_of_all_sessions_are_counted():
    cache = sessions(3)
    ids = [plan(cache, 0, 0, *[asked(n) for n in range(size)]).session_id for size in (1, 5, 10)]
    assert cache.partitions == 16
    plan(cache, ids[0], 1, asked(1), asked(2))
    assert cache.partitions == 18
    plan(cache, ids[2], 1, forgotten=[("t", n) for n in range(9)])
    assert cache.partitions == 9
    plan(cache, ids[1], -1)
    assert cache.partitions == 4


def test_a_name_that_no_topic_can_have_is_kept_in_no_session():
    cache, long = sessions(), "x" * (TOPIC_NAME_CHARS_MAX + 1)
    first = plan(cache, 0, 0, asked(0), asked(0, topic=long))
    assert (first.session_id, cache.partitions) == (0, 0)
    assert len(list(first.partitions)) == 2, "it is answered all the same"
    known = plan(cache, 0, 0, asked(0), asked(0, topic=long[1:]))
    assert known.session_id != 0
    assert cache.partitions == 2
    plan(cache, known.session_id, 1, asked(1, topic=long))
    assert cache.partitions == 0
    assert plan(cache, known.session_id, 2).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
