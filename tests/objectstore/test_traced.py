"""Single requests to a store are noted while an upload or a read is traced, each with its kind, bytes, outcome and retry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.core.metrics import Registry
from app.objectstore.api import ObjectMissing
from app.objectstore.memory import MemoryStore
from app.objectstore.noting import NOTED, REQUESTS_MAX, Noted
from app.objectstore.traced import TracedStore
from tests.objectstore.scripted_s3 import OK, scripted
from tests.objectstore.scripted_server import refusal


@contextmanager
def noting() -> Iterator[Noted]:
    """Each look at its clock is a second later."""
    seconds = iter(range(1000))
    noted = Noted(lambda: float(next(seconds)))
    token = NOTED.set(noted)
    try:
        yield noted
    finally:
        NOTED.reset(token)


async def test_each_request_has_its_kind_bytes_and_outcome() -> None:
    store = TracedStore(MemoryStore(), Registry())
    await store.put("data/0", b"not traced")
    with noting() as noted:
        await store.put("data/1", b"12345")
        await store.put_if_absent("topics/t", b"123")
        assert await store.get("data/1") == b"12345"
        assert await store.get_range("data/1", 1, 3) == b"23"
        assert await store.get_tail("data/1", 2) == (b"45", 5)
        with pytest.raises(ObjectMissing):
            await store.get("cluster/none")
        assert len(await store.list_objects("data/")) == 2
        upload = await store.begin_upload("data/2")
        await upload.put_part(1, b"x" * 7)
        await upload.complete()
    await store.get("data/2")
    assert [(one.operation, one.kind, one.size_bytes, one.outcome) for one in noted.requests] == [
        ("put", "data", 5, "ok"),
        ("put_if_absent", "manifests", 3, "ok"),
        ("get", "data", 5, "ok"),
        ("get_range", "data", 2, "ok"),
        ("get_tail", "data", 2, "ok"),
        ("get", "cluster", 0, "missing"),
        ("list_objects", "data", 0, "ok"),
        ("begin_upload", "data", 0, "ok"),
        ("put_part", "data", 7, "ok"),
        ("complete", "data", 0, "ok"),
    ]
    assert {one.retry for one in noted.requests} == {0}
    assert [(one.start_s, one.end_s) for one in noted.requests[:2]] == [(1, 2), (3, 4)]


@pytest.mark.usefixtures("aws_credentials")
async def test_a_request_that_is_sent_again_is_noted_for_each_try() -> None:
    slow = refusal(503, "SlowDown")
    async with scripted(slow, slow, OK) as (_, inner, registry):
        with noting() as noted:
            await TracedStore(inner, registry).put_if_absent("data/1", b"12345")
    assert [(one.retry, one.outcome, one.size_bytes) for one in noted.requests] == [
        (0, "retried", 5),
        (1, "retried", 5),
        (2, "ok", 5),
    ]
    assert [(one.start_s, one.end_s) for one in noted.requests] == [(1, 2), (3, 4), (5, 6)]


async def test_the_requests_of_one_work_are_bounded_and_counted() -> None:
    store = TracedStore(MemoryStore(), Registry())
    with noting() as noted:
        for _ in range(REQUESTS_MAX + 5):
            await store.put("data/1", b"1")
    assert (len(noted.requests), noted.count) == (REQUESTS_MAX, REQUESTS_MAX + 5)
    noted.take(noted.requests[:3], 3)
    assert (len(noted.requests), noted.count) == (REQUESTS_MAX, REQUESTS_MAX + 8)
