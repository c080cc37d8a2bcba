"""Fetches that repeat: what is served by comparison is what decoding would have served."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.errors import ErrorCode
from app.handlers.fetch import fetch
from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from tests.handlers.conversation import batch
from tests.handlers.fetching import FETCH, VERSIONS, ask, fill, only, ref, request, send
from tests.support.waiting import until

BATCHES = [batch(2, value=bytes([n]) * 300) for n in range(9)]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[FetchRequest]:
    """The requests that were decoded."""
    found: list[FetchRequest] = []
    decode = fetch.decode_fetch

    def noted(version: int, view: memoryview) -> FetchRequest:
        found.append(decode(version, view))
        return found[-1]

    monkeypatch.setattr(fetch, "decode_fetch", noted)
    return found


async def at(client: Any, version: int, topic: Any, offset: int, **fields: Any) -> Any:
    return only(await ask(client, version, request(FetchPartition(0, fetch_offset=offset), topic=topic, **fields)))


@pytest.mark.parametrize("version", VERSIONS)
async def test_requests_that_differ_in_their_offset_are_decoded_once_and_answered_alike(
    start, connect, decoded, version
):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", *BATCHES)
    topic = ref(bench, version)
    for offset in (5, 7, 16, 0, 18, 5, 99, -1, 1 << 40):
        again = await at(client, version, topic, offset)
        other = await connect(bench)
        assert again == await at(other, version, topic, offset), offset
    # The first, and each on a connection of its own.
    assert len(decoded) == 10


@pytest.mark.parametrize(
    "changed",
    [{"isolation_level": 1}, {"max_bytes": 400}, {"min_bytes": 7}, {"wait_ms": 1}, {"replica_id": 3}],
    ids=str,
)
async def test_a_request_that_differs_in_anything_else_is_decoded(start, connect, decoded, changed):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", *BATCHES)
    await at(client, 11, "t", 5)
    await at(client, 11, "t", 7)
    assert len(decoded) == 1
    found = await at(client, 11, "t", 7, **changed)
    assert len(decoded) == 2
    assert found == await at(await connect(bench), 11, "t", 7, **changed)


async def test_limits_of_the_partition_and_the_version_are_heeded_each_time(start, connect, decoded):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", *BATCHES)
    size = len(BATCHES[0])
    for count in (2, 5, 1):
        for offset in (4, 6):
            asked = FetchPartition(0, fetch_offset=offset, partition_max_bytes=count * size)
            assert len(only(await ask(client, 11, request(asked))).records) == count * size
    assert len(decoded) == 3
    topic = ref(bench, 16)
    for version in (15, 16, 16):
        assert (await at(client, version, topic, 5)).high_watermark == 18
    assert len(decoded) == 5


async def test_a_request_without_its_offset_is_refused_as_ever(start, connect):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", *BATCHES)
    await at(client, 11, "t", 5)
    whole = encode_fetch_request(11, 9, "test", request(FetchPartition(0, fetch_offset=5)))
    place = whole.index((5).to_bytes(8, "big"))
    frame = whole[4:place] + whole[place + 8 :]
    client.writer.write(len(frame).to_bytes(4, "big") + frame)
    assert await client.closed()


async def test_another_partition_or_topic_of_the_same_length_is_not_taken_for_the_first(start, connect):
    bench = await start()
    for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
        bench.logs.add(topic, partition)
    client = await connect(bench)
    for number, (topic, partition) in enumerate((("t", 0), ("t", 1), ("u", 0))):
        await fill(client, topic, *BATCHES[: 3 + number], partition=partition)
    for topic, partition, end in (("t", 0, 6), ("t", 1, 8), ("u", 0, 10), ("t", 0, 6)):
        for offset in (3, 5):
            asked = FetchPartition(partition, fetch_offset=offset)
            assert only(await ask(client, 12, request(asked, topic=topic))).high_watermark == end


async def test_a_request_that_waits_is_served_by_comparison_too(start, connect, decoded):
    bench = await start()
    log = bench.logs.add("t")
    client, producer = await connect(bench), await connect(bench)
    await fill(producer, "t", *BATCHES[:4])
    await at(client, 12, "t", 6, wait_ms=60_000)
    sent = send(client, 12, request(FetchPartition(0, fetch_offset=8), wait_ms=60_000))
    await until(lambda: log.waiters, pause_s=0)
    await fill(producer, "t", BATCHES[4])
    correlation_id, answer = await client.answer(FETCH, 12)
    assert correlation_id == sent
    assert bytes(only(answer).records)[61:] == BATCHES[4][61:]
    assert len(decoded) == 1


async def test_requests_of_a_session_are_decoded(start, connect, decoded):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", *BATCHES)
    first = await ask(client, 12, request(FetchPartition(0, fetch_offset=5), session_epoch=0))
    for epoch in (1, 2, 3):
        asked = FetchPartition(0, fetch_offset=5 + epoch)
        await ask(client, 12, request(asked, session_id=first.session_id, session_epoch=epoch))
    assert len(decoded) == 4
    again = FetchPartition(0, fetch_offset=9)
    late = await ask(client, 12, request(again, session_id=first.session_id, session_epoch=3))
    assert late.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    sessions = [
        (await ask(client, 12, request(FetchPartition(0, fetch_offset=offset), session_epoch=0))).session_id
        for offset in (5, 6, 7)
    ]
    assert len(set(sessions)) == 3


async def test_an_offset_whose_bytes_are_in_two_places_is_not_learnt(start, connect, decoded):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    await fill(client, "t", *BATCHES)
    # The log start offset of a follower is the same number here, and the next time it is not.
    for log_start in (6, 6, 4):
        asked = FetchPartition(0, fetch_offset=6, log_start_offset=log_start)
        client.correlation_id += 1
        client.writer.write(encode_fetch_request(12, client.correlation_id, "test", request(asked)))
        _, answer = await client.answer(FETCH, 12)
        assert only(answer).high_watermark == 18
    assert len(decoded) == 3
    await at(client, 12, "t", 6)
