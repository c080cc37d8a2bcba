"""Large topics are encoded in chunks, and only what has changed of them. The oracle is the codec, with the whole response."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from app.handlers import metadata
from app.handlers.context import Request
from app.handlers.metadata import handle
from app.units import PartitionIndex, TopicIdPartition
from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.codec import decode_response, encode_response
from app.wire.versions import SERVED
from tests.handlers.admin_bench import admin_bench
from tests.support.callers import SOMEBODY

FIRST, LAST = SERVED[ApiKey.METADATA]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.handlers.metadata_cache.CHUNK", 2)


def ask(bench: Any, version: int = LAST, topic: str = "t") -> Any:
    request = Request(int(ApiKey.METADATA), version, 1, "test", SOMEBODY)
    return handle(bench.context, request, MetadataRequest(topics=[MetadataRequestTopic(name=topic)]))


def key_of(bench: Any, index: int) -> TopicIdPartition:
    return TopicIdPartition(bench.context.image.topics_by_name["t"].topic_id, PartitionIndex(index))


@pytest.mark.parametrize("version", range(FIRST, LAST + 1))
@pytest.mark.parametrize("partitions", [1, 2, 3, 5])
async def test_chunks_make_the_response_that_the_codec_makes(version: int, partitions: int) -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", partitions)
        for count in (partitions, partitions + 3):
            if count > partitions:
                await bench.controller.create_partitions("t", count)
            body = ask(bench, version).body
            message = decode_response(ApiKey.METADATA, version, memoryview(body))
            assert [one.partition_index for one in message.topics[0].partitions] == list(range(count))
            assert encode_response(ApiKey.METADATA, version, message) == body


async def test_chunks_that_did_not_change_are_not_encoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[int] = []
    topic_of = metadata.topic_shown

    def spy(context: Any, topic: Any, partitions: Any, operations: int) -> Any:
        described.extend(int(one.partition_index) for one in partitions)
        return topic_of(context, topic, partitions, operations)

    monkeypatch.setattr(metadata, "topic_shown", spy)
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 6)
        ask(bench)
        assert described == [0, 1, 2, 3, 4, 5]
        described.clear()
        key = key_of(bench, 3)
        await bench.controller.bump_leader_epochs([key])
        before = ask(bench).body
        assert described == [2, 3]
        described.clear()
        assert ask(bench).body == before
        assert not described


def _steps(answer: Coroutine[Any, Any, Any]) -> Iterator[Any]:
    while True:
        try:
            answer.send(None)
        except StopIteration as over:
            yield over.value
            return
        yield None


async def test_a_large_topic_is_encoded_in_turns_and_told_as_it_is_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.handlers.metadata.PARTITIONS_AT_ONCE", 2)
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 10)
        steps = _steps(ask(bench))
        assert [next(steps) for _ in range(2)] == [None, None]
        key = key_of(bench, 1)
        await bench.controller.bump_leader_epochs([key])
        rest = list(steps)
        assert len(rest) > 2, "more than a turn was left"
        told = decode_response(ApiKey.METADATA, LAST, memoryview(rest[-1].body)).topics[0].partitions
        image = bench.context.image.topics_by_name["t"].partitions
        assert [one.leader_epoch for one in told] == [one.leader_epoch for one in image]
        assert not isinstance(ask(bench), Coroutine), "nothing is left to encode"


async def test_a_topic_that_changes_all_the_time_is_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.handlers.metadata.PARTITIONS_AT_ONCE", 2)
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 6)
        key = key_of(bench, 1)
        steps, found = _steps(ask(bench)), None
        for _ in range(100):
            found = next(steps, None)
            if found is not None:
                break
            await bench.controller.bump_leader_epochs([key])
        assert found is not None
        told = decode_response(ApiKey.METADATA, LAST, memoryview(found.body)).topics[0].partitions
        assert told[1].leader_epoch == bench.context.image.topics_by_name["t"].partitions[1].leader_epoch
