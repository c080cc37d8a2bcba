"""Large ranged GETs: the short cut is only that, and what it cannot do is told as precisely as everything else."""

from __future__ import annotations

import random

import pytest

from app.errors import StorageUnavailable
from app.objectstore.api import ObjectMissing, RangeUnsatisfiable
from app.objectstore.s3_bulk import BULK_BYTES_MIN, FAILURES_MAX
from tests.objectstore.scripted_server import CUT, HANG, Request, answer, refusal
from tests.objectstore.test_s3 import scripted

pytestmark = pytest.mark.usefixtures("aws_credentials")

START, END = 1_000, 1_000 + BULK_BYTES_MIN
CONTENT = random.Random(1).randbytes(END)
GOOD = answer(
    206, CONTENT[START:END], Content_Range=f"bytes {START}-{END - 1}/{END}", ETag='"e"',
    Last_Modified="Fri, 21 Nov 2025 08:00:00 GMT",
)  # fmt: skip


def is_short_cut(request: Request) -> bool:
    return "firn/" not in request.headers["user-agent"]


async def test_a_large_range_takes_the_short_cut_with_the_same_credentials() -> None:
    async with scripted(GOOD, query="&region=eu-central-1") as (server, store, _):
        assert await store.get_range("k", START, END) == CONTENT[START:END]
    [request] = server.requests
    assert is_short_cut(request)
    assert request.target == "/bucket/cluster/k"
    assert request.headers["range"] == f"bytes={START}-{END - 1}"
    assert "/eu-central-1/s3/aws4_request" in request.headers["authorization"]


async def test_a_small_range_does_not() -> None:
    body = answer(206, CONTENT[:100], Content_Range=f"bytes 0-99/{END}")
    async with scripted(body) as (server, store, _):
        assert await store.get_range("k", 0, 100) == CONTENT[:100]
    assert not is_short_cut(server.requests[0])


@pytest.mark.parametrize(
    "trouble",
    [
        refusal(503, "SlowDown"),
        CUT,
        answer(206, CONTENT[: END - START], Content_Range=f"bytes 0-{END - START - 1}/{END}", ETag='"e"'),
        answer(206, CONTENT[START : END - 1], length=END - START, Content_Range=f"bytes {START}-{END - 1}/{END}"),
    ],
)
async def test_what_the_short_cut_cannot_do_is_asked_again(trouble: bytes) -> None:
    async with scripted(trouble, GOOD) as (server, store, _):
        assert await store.get_range("k", START, END) == CONTENT[START:END]
    assert [is_short_cut(request) for request in server.requests] == [True, False]


async def test_a_short_cut_that_hangs_is_not_tried_again() -> None:
    async with scripted(HANG, GOOD, attempt_timeout_s=2.0) as (server, store, _):
        assert await store.get_range("k", START, END) == CONTENT[START:END]
    assert [is_short_cut(request) for request in server.requests] == [True, False]


async def test_what_is_wrong_is_told_by_the_second_answer() -> None:
    for code, error in ((refusal(404, "NoSuchKey"), ObjectMissing), (refusal(416, "InvalidRange"), RangeUnsatisfiable)):
        async with scripted(code) as (_, store, _):
            with pytest.raises(error):
                await store.get_range("k", START, END)
    async with scripted(refusal(403, "AccessDenied")) as (_, store, _):
        with pytest.raises(StorageUnavailable, match="s3:GetObject"):
            await store.get_range("k", START, END)


async def test_an_object_that_ends_within_the_range_is_answered_up_to_its_end() -> None:
    short = answer(206, CONTENT[START : END - 9], Content_Range=f"bytes {START}-{END - 10}/{END - 9}", ETag='"e"')
    async with scripted(short) as (_, store, _):
        assert await store.get_range("k", START, END) == CONTENT[START : END - 9]


async def test_a_short_cut_that_never_works_is_left_alone() -> None:
    answers = [refusal(503, "SlowDown"), GOOD] * FAILURES_MAX + [GOOD] * 2
    async with scripted(*answers) as (server, store, _):
        for _ in range(FAILURES_MAX + 2):
            assert await store.get_range("k", START, END) == CONTENT[START:END]
    assert [is_short_cut(request) for request in server.requests] == [True, False] * FAILURES_MAX + [False, False]
