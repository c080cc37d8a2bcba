"""A Fetch of many partitions is served in portions, as a short one is served at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.handlers.fetch import fetch
from app.handlers.fetch.fetch_long import LOOKED_AT_ONCE
from app.wire.apikeys import ApiKey
from app.wire.apis.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.counted_loop import growth_in_turns

PARTITIONS = 1_200


def asked(topic_id: UUID, partitions: range, **fields: Any) -> FetchRequest:
    wanted = [FetchPartition(index, -1, 0, -1, -1, 1 << 20, high_watermark=9223372036854775807) for index in partitions]
    values = {"max_wait_ms": 0, "min_bytes": 1, "session_epoch": -1, **fields}
    return FetchRequest(topics=[FetchTopic(topic_id, partitions=wanted)] if wanted else [], **values)


def found(answer: Any) -> dict[int, int]:
    """Bytes of records by partition."""
    return {one.partition_index: len(one.records or b"") for topic in answer.responses for one in topic.partitions}


async def id_of(broker: RunningBroker) -> UUID:
    await broker.create_topic("wide", PARTITIONS)
    async with asyncio.timeout(30):
        while broker.node.logs.get("wide", PARTITIONS - 1) is None:
            await asyncio.sleep(0)
    return broker.node.context.image.topics_by_name["wide"].topic_id


async def test_all_partitions_are_answered_with_what_they_have(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        topic_id = await id_of(broker)
        async with talk(broker.port) as client:
            written = (0, 700, PARTITIONS - 1)
            for index in written:
                await client.produce(9, [("wide", [(index, batch())])])
            answer = await client.ask(ApiKey.FETCH, 17, asked(topic_id, range(PARTITIONS + 1)))
            bytes_of = found(answer)
            assert set(bytes_of) == set(range(PARTITIONS + 1))
            assert {index for index, size in bytes_of.items() if size} == set(written)
            errors = {one.partition_index: one.error_code for one in answer.responses[0].partitions if one.error_code}
            assert errors == {PARTITIONS: 3}


async def test_the_limit_of_bytes_counts_across_portions(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        topic_id = await id_of(broker)
        async with talk(broker.port) as client:
            for index in (0, 600, 1_100):
                await client.produce(9, [("wide", [(index, batch(value=b"v" * 1000))])])
            answer = await client.ask(ApiKey.FETCH, 17, asked(topic_id, range(PARTITIONS), max_bytes=1_500))
            assert [index for index, size in found(answer).items() if size] == [0]


async def test_a_long_fetch_waits_for_a_record_of_any_partition(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        topic_id = await id_of(broker)
        async with talk(broker.port) as client, talk(broker.port) as producer:
            await ask_and_produce(broker, client, producer, asked(topic_id, range(PARTITIONS), max_wait_ms=60_000))


async def test_a_session_of_many_partitions_waits_as_well(tmp_path: Path) -> None:
    """Its requests are short, but there is much to look at."""
    async with running_broker(tmp_path) as broker:
        topic_id = await id_of(broker)
        async with talk(broker.port) as client, talk(broker.port) as producer:
            first = await client.ask(ApiKey.FETCH, 17, asked(topic_id, range(PARTITIONS), session_epoch=0))
            assert first.session_id
            assert len(found(first)) == PARTITIONS
            again = asked(topic_id, range(0), session_id=first.session_id, session_epoch=1, max_wait_ms=60_000)
            await ask_and_produce(broker, client, producer, again)


async def ask_and_produce(broker: RunningBroker, client: Talk, producer: Talk, request: FetchRequest) -> None:
    client.send(ApiKey.FETCH, 17, request)
    log = broker.log("wide", 900)
    async with asyncio.timeout(30):
        while not log._waiters:
            await asyncio.sleep(0)
        await producer.produce(9, [("wide", [(900, batch())])])
        _, answer = await client.answer(ApiKey.FETCH, 17)
    assert [index for index, size in found(answer).items() if size] == [900]
    assert not log._waiters


async def test_a_long_fetch_whose_client_leaves_listens_to_nothing(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        topic_id = await id_of(broker)
        log = broker.log("wide", 900)
        async with talk(broker.port) as client:
            client.send(ApiKey.FETCH, 17, asked(topic_id, range(PARTITIONS), max_wait_ms=60_000))
            async with asyncio.timeout(30):
                while not log._waiters:
                    await asyncio.sleep(0)
        async with asyncio.timeout(30):
            while log._waiters or broker.node.server._tasks:
                await asyncio.sleep(0)


async def test_a_long_fetch_whose_client_left_while_it_was_read_makes_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower has one session: it would end that of its next connection."""
    looked = asyncio.Event()

    def has_left(*_: object) -> bool:
        looked.set()
        return True

    monkeypatch.setattr(fetch, "has_left", has_left)
    async with running_broker(tmp_path) as broker:
        topic_id = await id_of(broker)
        async with talk(broker.port) as client, asyncio.timeout(30):
            client.send(ApiKey.FETCH, 17, asked(topic_id, range(PARTITIONS), session_epoch=0))
            await looked.wait()
            while broker.node.server._tasks:
                await asyncio.sleep(0)
            assert len(broker.node.context.fetch_sessions) == 0


async def test_the_response_of_a_long_fetch_is_put_together_in_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = range(300)
    async with running_broker(tmp_path) as broker:
        topic_id = await id_of(broker)
        logs = [broker.log("wide", index) for index in written]
        async with talk(broker.port) as client:
            await client.produce(9, [("wide", [(index, batch()) for index in written])])
            monkeypatch.setattr("app.core.turns.PORTION_S", 0.0)
            async with growth_in_turns(lambda: sum(log.sent_records for log in logs)) as sent:
                answer = await client.ask(ApiKey.FETCH, 17, asked(topic_id, range(PARTITIONS)))
        assert sum(1 for size in found(answer).values() if size) == sum(sent) == len(written)
        assert max(sent) <= LOOKED_AT_ONCE
