"""Large topics are encoded in chunks, and only what has changed of them. The oracle is the codec, with the whole response."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Iterator
from typing import Any

import pytest

from app.core import turns
from app.core.units import PartitionIndex, TopicIdPartition
from app.handlers.apis import metadata
from app.handlers.apis.metadata import handle
from app.handlers.base.request import Request
from app.handlers.state.metadata_cache import TOPIC_OPERATIONS, with_operations
from app.wire.apikeys import ApiKey
from app.wire.apis.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from app.wire.codec import decode_response, encode_response, struct_encoder
from app.wire.versions import SERVED
from tests.handlers.admin_bench import admin_bench
from tests.support.callers import SOMEBODY
from tests.support.changing import delete_topic

FIRST, LAST = SERVED[ApiKey.METADATA]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.handlers.state.metadata_cache.CHUNK", 2)


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
    monkeypatch.setattr("app.handlers.apis.metadata.PARTITIONS_AT_ONCE", 2)
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
    monkeypatch.setattr("app.handlers.apis.metadata.PARTITIONS_AT_ONCE", 2)
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


@pytest.mark.parametrize("version", range(FIRST, LAST + 1))
@pytest.mark.parametrize("named", [True, False])
async def test_many_topics_are_described_in_portions_as_they_are_at_once(
    monkeypatch: pytest.MonkeyPatch, version: int, named: bool
) -> None:
    async with admin_bench() as bench:
        for number in range(7):
            await bench.controller.create_topic(f"t{number}", 1 + number)
        names = ["t3", "none", "t1", "t3", "t6", "t0", "other", "t4", "none", "t2"]
        request = Request(int(ApiKey.METADATA), version, 1, "test", SOMEBODY)
        asked = [MetadataRequestTopic(name=name) for name in names] if named else None
        message = MetadataRequest(topics=asked, allow_auto_topic_creation=False)
        if not named:
            if version < metadata.NULL_TOPICS_FROM:
                message.topics = []
            # Who is told other things than others are has his own list of topics.
            monkeypatch.setattr(metadata, "depends_on_caller", lambda *_: True)
            monkeypatch.setattr(metadata, "operations", lambda *_: 5)
            monkeypatch.setattr(metadata, "with_operations", lambda version, topic, operations: topic)
        at_once = handle(bench.context, request, message)
        assert not isinstance(at_once, Awaitable)
        monkeypatch.setattr(metadata, "TOPICS_AT_ONCE", 2)
        monkeypatch.setattr(metadata, "SLICE_TOPICS", 2)
        monkeypatch.setattr(turns, "PORTION_S", 0.0)
        answer = handle(bench.context, request, message)
        assert isinstance(answer, Coroutine)
        steps = list(_awaited(answer))
        assert steps[-1].body == at_once.body
        assert len(steps) > 3, "others are served in between"


def _awaited(answer: Coroutine[Any, Any, Any]) -> Iterator[Any]:
    """Run a coroutine whose pauses are places in the queue of long work, which come to be at once."""
    while True:
        try:
            place = answer.send(None)
        except StopIteration as over:
            yield over.value
            return
        if not place.done():
            place.set_result(None)
        yield None


async def test_a_topic_that_is_gone_meanwhile_is_left_out_of_a_list_that_the_broker_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with admin_bench() as bench:
        for number in range(6):
            await bench.controller.create_topic(f"t{number}", 1)
        monkeypatch.setattr(metadata, "depends_on_caller", lambda *_: True)
        monkeypatch.setattr(metadata, "operations", lambda *_: 5)
        monkeypatch.setattr(metadata, "TOPICS_AT_ONCE", 2)
        monkeypatch.setattr(metadata, "SLICE_TOPICS", 2)
        monkeypatch.setattr(turns, "PORTION_S", 0.0)
        request = Request(int(ApiKey.METADATA), LAST, 1, "test", SOMEBODY)
        message = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        steps = _awaited(handle(bench.context, request, message))
        assert next(steps) is None
        await delete_topic(bench.controller, "t5")
        body = list(steps)[-1].body
        told = decode_response(ApiKey.METADATA, LAST, memoryview(body)).topics
        assert [(one.name, one.error_code, one.topic_authorized_operations) for one in told] == [
            (f"t{number}", 0, 5) for number in range(5)
        ]


@pytest.mark.parametrize("version", range(TOPIC_OPERATIONS, LAST + 1))
@pytest.mark.parametrize("partitions", [0, 3])
def test_other_operations_of_an_encoded_topic_are_what_the_codec_makes(version: int, partitions: int) -> None:
    shown = [MetadataResponsePartition(partition_index=index) for index in range(partitions)]
    topic = MetadataResponseTopic(name="t", partitions=shown, topic_authorized_operations=-(1 << 31))
    encode = struct_encoder(ApiKey.METADATA, version, "MetadataResponseTopic")
    kept = encode(topic)
    topic.topic_authorized_operations = 4088
    assert with_operations(version, kept, 4088) == encode(topic)
