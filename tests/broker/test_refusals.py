"""What a refused request leaves behind: nothing. Neither the request, nor what its records were decompressed to."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from app.configs import BrokerConfig
from app.core.errors import ErrorCode, FirnError, StorageFull, StorageUnavailable
from app.core.limits import MIB
from app.handlers.state.metrics import ApiMeter
from app.hot.reads import PageMiss
from app.records.builder import build_batch
from app.records.compression import Codec
from app.wire.apis.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from app.wire.apis.create_topics import CreatableTopic, CreateTopicsRequest
from app.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.handlers.conversation import Talk, talk
from tests.support.broker import RunningBroker, running_broker

OFFSETS = "__consumer_offsets"
NOW = 1_700_000_000_000
TOO_FAR = BrokerConfig().firn_decompressed_batch_bytes_max + 1


def bomb(size_bytes: int, *, key: bytes | None = b"k") -> bytes:
    """A batch of some kilobytes that decompresses to ``size_bytes`` and a little more."""
    return build_batch([(NOW, key, bytes(size_bytes), ())], codec=Codec.ZSTD)


def plain(*, timestamp: int = NOW, key: bytes | None = None, **fields: Any) -> bytes:
    return build_batch([(timestamp, key, b"value", ())], **fields)


def damaged(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


@asynccontextmanager
async def prepared_broker(path: Path, **settings: Any) -> AsyncIterator[tuple[RunningBroker, Talk]]:
    async with running_broker(path, **settings) as broker, talk(broker.port) as client:
        await broker.create_topic("plain", retention_ms="-1")
        await broker.create_topic("recompressed", compression_type="uncompressed", retention_ms="-1")
        await broker.create_topic("compacted", cleanup_policy="compact", remote_storage_enable="false")
        await broker.create_topic("strict", message_timestamp_before_max_ms="1000", remote_storage_enable="false")
        await broker.create_topic("offline", retention_ms="-1")
        broker.log("offline").refuse(StorageUnavailable("the disk is away"))
        found = FindCoordinatorRequest(key_type=0, coordinator_keys=["group"])
        while (await client.ask(10, 4, found)).coordinators[0].error_code:
            await asyncio.sleep(0.002)
        yield broker, client


@cache
def refusals() -> list[tuple[str, ErrorCode, bytes | None, dict[str, Any]]]:
    too_far = bomb(TOO_FAR)
    return [
        ("compacted", ErrorCode.MESSAGE_TOO_LARGE, too_far, {}),
        ("compacted", ErrorCode.INVALID_RECORD, bomb(MIB // 2, key=None), {}),
        ("compacted", ErrorCode.CORRUPT_MESSAGE, damaged(bomb(MIB // 2)), {}),
        ("compacted", ErrorCode.INVALID_RECORD, plain(), {}),
        ("recompressed", ErrorCode.MESSAGE_TOO_LARGE, too_far, {}),
        ("recompressed", ErrorCode.MESSAGE_TOO_LARGE, bomb(3 * MIB // 2), {}),
        (OFFSETS, ErrorCode.INVALID_TOPIC_EXCEPTION, too_far, {}),
        (OFFSETS, ErrorCode.INVALID_TOPIC_EXCEPTION, plain(key=b"k"), {}),
        ("plain", ErrorCode.CORRUPT_MESSAGE, damaged(plain()), {}),
        ("plain", ErrorCode.INVALID_RECORD, None, {}),
        ("plain", ErrorCode.INVALID_REQUIRED_ACKS, plain(), {"acks": 2}),
        (
            "plain",
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            plain(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True),
            {},
        ),
        ("strict", ErrorCode.INVALID_TIMESTAMP, plain(), {}),
        ("offline", ErrorCode.KAFKA_STORAGE_ERROR, plain(), {}),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, plain(), {}),
    ]


async def refused(client: Talk, topic: str, records: bytes | None, **extra: Any) -> ErrorCode:
    answer = await client.produce(9, [(topic, [(0, records)])], **extra)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


async def refuse_all(client: Talk) -> None:
    for topic, code, records, extra in refusals():
        assert await refused(client, topic, records, **extra) is code, topic


async def left_in_cycles(work: Callable[[], Awaitable[None]]) -> list[Exception]:
    """Errors that only a garbage collection takes away, after ``work``."""
    await work()
    gc.collect()
    enabled, debug = gc.isenabled(), gc.get_debug()
    gc.disable()
    try:
        await work()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        return [thing for thing in gc.garbage if isinstance(thing, (FirnError, PageMiss))]
    finally:
        gc.set_debug(debug)
        gc.garbage.clear()
        if enabled:
            gc.enable()


@pytest.mark.ci
async def test_a_refused_produce_leaves_no_error_that_holds_its_records(tmp_path: Path) -> None:
    async with prepared_broker(tmp_path) as (_, client):
        assert await left_in_cycles(lambda: refuse_all(client)) == []


def frames_of(error: BaseException) -> int:
    count, step = 0, error.__traceback__
    while step is not None:
        count, step = count + 1, step.tb_next
    return count


async def test_errors_that_are_told_again_and_again_do_not_gather_the_frames_of_those_they_were_told_to(
    tmp_path: Path,
) -> None:
    async with prepared_broker(tmp_path) as (broker, client):
        full = StorageFull("the disk is full")
        broker.node.context.refuse_for_room(full)
        for _ in range(3):
            assert await refused(client, "plain", plain()) is ErrorCode.KAFKA_STORAGE_ERROR
        broker.node.context.refuse_for_room(None)
        offline = broker.log("offline").offline_error
        for _ in range(3):
            assert await refused(client, "offline", plain()) is ErrorCode.KAFKA_STORAGE_ERROR
        assert (frames_of(full), frames_of(offline)) == (0, 0)


async def test_changes_of_the_cluster_that_are_refused_leave_no_error_that_holds_their_requests(tmp_path: Path) -> None:
    async with prepared_broker(tmp_path) as (_, client):

        async def refuse_changes() -> None:
            made = await client.ask(19, 7, CreateTopicsRequest(topics=[CreatableTopic("plain", 1, 1)]))
            grown = await client.ask(37, 3, CreatePartitionsRequest(topics=[CreatePartitionsTopic("plain", 1)]))
            deleted = await client.ask(20, 6, DeleteTopicsRequest(topics=[DeleteTopicState("missing")]))
            altered = await client.ask(
                44,
                1,
                IncrementalAlterConfigsRequest(
                    [AlterConfigsResource(2, "plain", [AlterableConfig("retention.ms", 0, "never")])]
                ),
            )
            codes = [made.topics[0], grown.results[0], deleted.responses[0], altered.responses[0]]
            assert [ErrorCode(one.error_code) for one in codes] == [
                ErrorCode.TOPIC_ALREADY_EXISTS,
                ErrorCode.INVALID_PARTITIONS,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.INVALID_CONFIG,
            ]

        assert await left_in_cycles(refuse_changes) == []


async def test_requests_of_api_keys_that_do_not_exist_share_one_set_of_counters(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker:
        for api_key in range(1000, 1200):
            async with talk(broker.port) as client:
                client.writer.write(b"\0\0\0\x0a" + api_key.to_bytes(2, "big") + bytes(8))
                assert await client.closed()
        gc.collect()
        meters = sum(isinstance(one, ApiMeter) for one in gc.get_objects())
        assert meters < 100
        totals = {one.labels: one.value for one in broker.node.registry.samples() if one.name == "firn_requests_total"}
        assert totals[(("api", "unknown"),)] == 200


async def test_a_read_that_misses_the_page_cache_leaves_no_error_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with prepared_broker(tmp_path) as (broker, client):
        plan = broker.log("plain").plan_read
        missed: list[int] = []

        def plan_read(log: Any, *args: Any, **kwargs: Any) -> Any:
            if len(missed) % 2 == 0:
                missed.append(1)
                raise PageMiss(SimpleNamespace(deleted=False), lambda: None, lambda found: None)
            missed.append(0)
            return plan(*args, **kwargs)

        assert (await client.produce(9, [("plain", [(0, plain())])])).responses[0].partition_responses[
            0
        ].error_code == 0
        monkeypatch.setattr("app.hot.log.PartitionLog.plan_read", plan_read)

        async def fetch() -> None:
            from app.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request

            client.correlation_id += 1
            request = FetchRequest(
                max_wait_ms=0, topics=[("plain", [FetchPartition(0, -1, 0, partition_max_bytes=MIB)])]
            )
            client.writer.write(encode_fetch_request(12, client.correlation_id, "test", request))
            _, answer = await client.answer(1, 12)
            assert answer.responses[0].partitions[0].records

        assert await left_in_cycles(fetch) == []


async def test_a_batch_that_decompresses_beyond_the_limit_is_refused_with_a_sentence(tmp_path: Path) -> None:
    async with prepared_broker(tmp_path, firn_decompressed_batch_bytes_max=2 * MIB) as (broker, client):
        for topic in ("compacted", "recompressed"):
            answer = await client.produce(9, [(topic, [(0, bomb(3 * MIB))])])
            found = answer.responses[0].partition_responses[0]
            assert found.error_code == ErrorCode.MESSAGE_TOO_LARGE
            assert "decompresses to more than 2097152 bytes" in found.error_message
            assert "firn.decompressed.batch.bytes.max" in found.error_message
        assert await refused(client, "compacted", bomb(2 * MIB - 1000)) is ErrorCode.NONE
        assert await refused(client, "plain", bomb(3 * MIB)) is ErrorCode.NONE, "nobody looks into it there"
        assert broker.node.server.preparations.claimed_bytes == 0


async def test_what_can_be_refused_unseen_is_not_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with prepared_broker(tmp_path) as (broker, client):
        prepared: list[str] = []
        monkeypatch.setattr("app.hot.appending.prepare", lambda *_, **__: prepared.append("prepared"))
        records = bomb(MIB)
        assert await refused(client, OFFSETS, records) is ErrorCode.INVALID_TOPIC_EXCEPTION
        assert await refused(client, "compacted", records, acks=5) is ErrorCode.INVALID_REQUIRED_ACKS
        foreign = build_batch(
            [(NOW, b"k", b"v", ())],
            codec=Codec.ZSTD,
            producer_id=1,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
        assert await refused(client, "compacted", foreign) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        broker.node.context.refuse_for_room(StorageFull("the disk is full"))
        assert await refused(client, "compacted", records) is ErrorCode.KAFKA_STORAGE_ERROR
        assert prepared == []


async def test_a_batch_of_a_compacted_topic_is_looked_into_once_and_not_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from threading import current_thread, main_thread

    from app.hot.preparation import prepare

    threads: list[bool] = []

    def counted(*args: Any, **kwargs: Any) -> bytearray:
        threads.append(current_thread() is main_thread())
        return prepare(*args, **kwargs)

    monkeypatch.setattr("app.hot.appending.prepare", counted)
    async with prepared_broker(tmp_path) as (_, client):
        assert await refused(client, "compacted", plain(key=b"k")) is ErrorCode.NONE
        assert threads == [False]


def rss_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


async def hold_rss(client: Talk, rounds: int) -> None:
    large = bomb(255 * MIB, key=None), bomb(60 * MIB, key=None)
    for records in large:
        for topic in ("compacted", "recompressed", OFFSETS):
            await refused(client, topic, records)
    before = rss_bytes()
    for _ in range(rounds):
        await refuse_all(client)
        for records in large:
            for topic in ("compacted", "recompressed", OFFSETS):
                assert await refused(client, topic, records) is not ErrorCode.NONE
    assert rss_bytes() - before < 100 * MIB


@pytest.mark.ci
@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident size as Linux counts it")
async def test_refusals_of_what_decompresses_far_leave_memory_as_it_was(tmp_path: Path) -> None:
    async with prepared_broker(tmp_path) as (_, client):
        gc.disable()
        try:
            await hold_rss(client, 2)
        finally:
            gc.enable()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident size as Linux counts it")
async def test_hundreds_of_refusals_of_every_kind_leave_memory_as_it_was(tmp_path: Path) -> None:
    async with prepared_broker(tmp_path) as (_, client):
        gc.disable()
        try:
            await hold_rss(client, 100)
        finally:
            gc.enable()
