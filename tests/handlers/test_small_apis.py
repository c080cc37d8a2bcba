"""The APIs that only look something up, in every version, over a raw socket."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.errors import ErrorCode
from app.handlers.serving.dispatch import Apis
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from app.wire.apis.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from app.wire.private import MetricsRequest, MetricsResponse, pack, unpack
from app.wire.versions import BETWEEN_BROKERS, PRIVATE, SERVED
from tests.handlers.conversation import Talk, batch
from tests.handlers.fakes import Bench


def test_every_served_api_has_a_handler():
    table = set(Apis())
    assert {int(key) for key in SERVED} - table == {ApiKey.PRODUCE, ApiKey.FETCH}
    private = {int(key) for key in PRIVATE | set(BETWEEN_BROKERS)} - {
        ApiKey.FIRN_APPEND,
        ApiKey.FIRN_KEYED,
    }  # as Produce
    assert table - {int(key) for key in SERVED} == private


def test_a_family_answers_the_keys_that_it_is_looked_up_by():
    apis = Apis()
    assert all(callable(apis[key].handle) for key in apis)
    assert apis.get(32_767) is None


async def test_families_are_imported_before_they_are_asked_for():
    apis = Apis()
    await apis.load_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Apis, "load", None)
        assert all(apis[key] for key in apis)


@pytest.mark.parametrize("version", range(5))
async def test_api_versions(start, connect, version):
    client = await connect(await start())
    answer = await client.ask(ApiKey.API_VERSIONS, version, ApiVersionsRequest("librdkafka", "2.4.0"))
    assert answer.error_code == 0
    assert len(answer.api_keys) == len(SERVED)


@pytest.mark.parametrize(("name", "version"), [("", "1"), ("-x", "1"), ("x", "a b"), ("x\u00e9", "1")])
async def test_api_versions_refuses_software_names_that_are_none(start, connect, name, version):
    client = await connect(await start())
    answer = await client.ask(ApiKey.API_VERSIONS, 3, ApiVersionsRequest(name, version))
    assert answer.error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(6))
async def test_producer_ids_are_all_different(start, connect, version):
    bench = await start()
    clients = [await connect(bench) for _ in range(3)]
    ask = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
    for _ in range(4):
        for client in clients:
            client.send(ApiKey.INIT_PRODUCER_ID, version, ask)
    answers = [(await client.answer(ApiKey.INIT_PRODUCER_ID, version))[1] for client in clients for _ in range(4)]
    assert [a.error_code for a in answers] == [0] * 12
    assert [a.producer_epoch for a in answers] == [0] * 12
    assert len({a.producer_id for a in answers}) == 12


@pytest.mark.parametrize("version", range(6))
async def test_transactional_producers_are_told_that_there_is_no_coordinator(start, connect, version):
    client = await connect(await start())
    for name, code in (("tx", ErrorCode.COORDINATOR_NOT_AVAILABLE), ("", ErrorCode.INVALID_REQUEST)):
        answer = await client.ask(
            ApiKey.INIT_PRODUCER_ID, version, InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1)
        )
        assert (answer.error_code, answer.producer_id) == (code, -1)


@pytest.mark.parametrize("version", range(1, 7))
async def test_a_kind_of_key_without_a_coordinator_is_answered_with_the_reason(start, connect, version):
    client = await connect(await start())
    strange = FindCoordinatorRequest(key="g", key_type=9, coordinator_keys=["g"])
    answer = await client.ask(ApiKey.FIND_COORDINATOR, version, strange)
    found = answer.coordinators if version >= 4 else [answer]
    assert found[0].error_code == ErrorCode.INVALID_REQUEST


# --- ListOffsets ---------------------------------------------------------------------------------------------------------


async def list_offset(client: Talk, version: int, timestamp: int, partition: int = 0, **fields: Any) -> Any:
    request = ListOffsetsRequest(
        replica_id=fields.pop("replica_id", -1),
        isolation_level=fields.pop("isolation_level", 0),
        topics=[ListOffsetsTopic("t", [ListOffsetsPartition(partition, timestamp=timestamp, **fields)])],
        timeout_ms=1000,
    )
    answer = await client.ask(ApiKey.LIST_OFFSETS, version, request)
    return answer.topics[0].partitions[0]


async def filled(start: Any, connect: Any) -> tuple[Bench, Any, Talk]:
    bench = await start()
    log = bench.logs.add("t")
    client = await connect(bench)
    for n in range(3):
        await client.produce(9, [("t", [(0, batch(10, timestamp=1000 * (n + 1)))])])
    return bench, log, client


@pytest.mark.parametrize("version", range(1, 12))
async def test_places_with_names(start, connect, version):
    bench, log, client = await filled(start, connect)
    log.log_start_offset, log.local_log_start_offset, log.last_stable_offset = 3, 10, 20
    bench.context.remote_log_manager.end = 15
    expected = {-1: 30, -2: 3, -4: 10, -5: 14, -6: 15}
    introduced = {-1: 1, -2: 1, -4: 8, -5: 9, -6: 11}
    for place, offset in expected.items():
        found = await list_offset(client, version, place)
        if version < introduced[place]:
            assert (found.error_code, found.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)
        else:
            assert (found.error_code, found.timestamp, found.offset) == (0, -1, offset)
            assert found.leader_epoch == (0 if version >= 4 else -1)
    if version >= 2:
        assert (await list_offset(client, version, -1, isolation_level=1)).offset == 20
    bench.context.remote_log_manager.end = None
    if version >= 9:
        assert (await list_offset(client, version, -5)).offset == -1
    if version >= 11:
        assert (await list_offset(client, version, -6)).offset == 3


@pytest.mark.parametrize("version", range(1, 12))
async def test_times_are_found_in_the_local_log(start, connect, version):
    _, _, client = await filled(start, connect)
    found = await list_offset(client, version, 1500)
    assert (found.error_code, found.timestamp, found.offset) == (0, 2009, 10)
    found = await list_offset(client, version, 99_999)
    assert (found.error_code, found.timestamp, found.offset) == (0, -1, -1)
    found = await list_offset(client, version, -3)
    assert (found.error_code, found.offset) == ((0, 20) if version >= 7 else (ErrorCode.UNSUPPORTED_VERSION, -1))


async def test_times_are_found_in_the_tier_first(start, connect):
    bench, log, client = await filled(start, connect)
    log.local_log_start_offset = 10
    bench.remote.by_time = (1004, 4)
    assert (await list_offset(client, 11, 1004)).offset == 4
    bench.remote.by_time = (2009, 15)
    assert (await list_offset(client, 11, 1999)).offset == 10
    bench.remote.latest = (50_000, 7)
    found = await list_offset(client, 11, -3)
    assert (found.timestamp, found.offset) == (50_000, 7)
    bench.remote.latest = (5, 7)
    assert (await list_offset(client, 11, -3)).offset == 20


async def test_list_offsets_refuses_partition_by_partition(start, connect):
    _, log, client = await filled(start, connect)
    log.leader_epoch = 4
    assert (await list_offset(client, 11, -1, partition=5)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await list_offset(client, 11, -1, current_leader_epoch=3)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (await list_offset(client, 11, -1, current_leader_epoch=5)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert (await list_offset(client, 11, -9)).error_code == ErrorCode.UNSUPPORTED_VERSION
    twice = ListOffsetsRequest(
        replica_id=-1,
        topics=[ListOffsetsTopic("t", [ListOffsetsPartition(0, timestamp=-1), ListOffsetsPartition(0, timestamp=-2)])],
    )
    answer = await client.ask(ApiKey.LIST_OFFSETS, 5, twice)
    assert [p.error_code for p in answer.topics[0].partitions] == [ErrorCode.INVALID_REQUEST] * 2


@pytest.mark.parametrize("version", range(1, 12))
async def test_nobody_is_told_an_offset_past_the_high_watermark_by_claiming_to_be_a_replica(start, connect, version):
    _, log, client = await filled(start, connect)
    log.high_watermark = log.last_stable_offset = 20
    for reader in (-1, -2, -3, 0, 1, 5, 2**31 - 1):
        for epoch in (-1, log.leader_epoch) if version >= 4 else (-1,):
            found = await list_offset(client, version, -1, replica_id=reader, current_leader_epoch=epoch)
            assert (found.error_code, found.offset) == (0, 20)


@pytest.mark.parametrize("version", range(2, 5))
async def test_the_end_of_a_leader_epoch(start, connect, version):
    _, log, client = await filled(start, connect)
    log.leader_epoch = 2

    async def ask(epoch: int, partition: int = 0, current: int = -1) -> Any:
        request = OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic("t", [OffsetForLeaderPartition(partition, current, epoch)])]
        )
        answer = await client.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, request)
        return answer.topics[0].partitions[0]

    found = await ask(2)
    assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 2, 30)
    assert (await ask(2, current=1)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (await ask(2, partition=3)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


# --- Firn's own ----------------------------------------------------------------------------------------------------------


async def test_metrics_are_told_over_the_protocol(start, connect):
    bench, _, client = await filled(start, connect)
    answer = unpack(MetricsResponse, await client.ask(ApiKey.FIRN_METRICS, 0, pack(MetricsRequest())))
    values = {(s.name, tuple(map(tuple, s.labels))): s.value for s in answer.samples}
    assert values["firn_records_in_total", (("process", "broker"),)] == 30
    assert values["firn_requests_total", (("api", "produce"), ("process", "broker"))] == 3
    assert answer.node_id == bench.context.config.node_id


async def test_private_bytes_that_are_none_close_the_connection(start, connect):
    bench = await start()
    client = await connect(bench)
    client.send(ApiKey.FIRN_TIER_STATUS, 0, b"\xff\xff")
    assert await client.closed()
    assert len(bench.lines) == 1
