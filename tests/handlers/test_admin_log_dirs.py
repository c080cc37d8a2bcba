"""DescribeLogDirs and DeleteRecords, in every version."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.errors import ErrorCode, FencedError, FirnError, RequestRejected, StorageUnavailable
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from app.wire.apis.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from app.wire.apis.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from tests.handlers.admin_bench import AdminBench, admin_bench, versions


def sizes(result: Any) -> dict[tuple[str, int], int]:
    return {(t.name, p.partition_index): p.partition_size for t in result.topics for p in t.partitions}


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_LOG_DIRS))
async def test_the_log_directory_is_described_in_every_version(version: int) -> None:
    async with admin_bench() as bench:
        bench.logs.add("b", 0, high_watermark=3)
        bench.logs.add("a", 1, high_watermark=2)
        bench.logs.add("a", 0, high_watermark=1)
        whole = await bench.ask(ApiKey.DESCRIBE_LOG_DIRS, version, DescribeLogDirsRequest(topics=None))
        [result] = whole.results
        assert (result.error_code, result.log_dir) == (ErrorCode.NONE, "/var/firn")
        assert list(sizes(result).items()) == [(("a", 0), 100), (("a", 1), 200), (("b", 0), 300)]
        if version >= 4:
            assert (result.total_bytes, result.usable_bytes) == (1 << 41, 1 << 40)
        asked = [DescribableLogDirTopic("a", [1, 1, 9]), DescribableLogDirTopic("missing", [0])]
        some = await bench.ask(ApiKey.DESCRIBE_LOG_DIRS, version, DescribeLogDirsRequest(topics=asked))
        assert sizes(some.results[0]) == {("a", 1): 200}


async def test_a_directory_that_is_offline_or_silent_says_so() -> None:
    async with admin_bench() as bench:
        bench.logs.add("a", 0, high_watermark=1)
        bench.logs.free = StorageUnavailable("no answer")
        [result] = (await bench.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))).results
        assert result.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert (result.total_bytes, result.usable_bytes) == (-1, -1)
        bench.logs.offline_reason = "fdatasync failed"
        [result] = (await bench.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, DescribeLogDirsRequest(topics=None))).results
        assert (result.error_code, result.topics) == (ErrorCode.KAFKA_STORAGE_ERROR, [])


async def move(bench: AdminBench, *asked: tuple[str, str, int], version: int = 2) -> dict[tuple[str, int], int]:
    """The code of each partition; asked are path, topic and partition."""
    dirs = [AlterReplicaLogDir(path, [AlterReplicaLogDirTopic(topic, [index])]) for path, topic, index in asked]
    answer = await bench.ask(ApiKey.ALTER_REPLICA_LOG_DIRS, version, AlterReplicaLogDirsRequest(dirs))
    return {
        (one.topic_name, part.partition_index): part.error_code for one in answer.results for part in one.partitions
    }


@pytest.mark.parametrize("version", versions(ApiKey.ALTER_REPLICA_LOG_DIRS))
async def test_a_replica_is_in_the_one_directory_or_cannot_go_where_it_is_to_be(version: int) -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("t", 2)
        own = bench.logs.data_dir
        asked = [(own, "t", 0), ("/elsewhere", "t", 1), (own, "t", 2), (own, "missing", 0), (own, "x" * 230, 0)]
        assert await move(bench, *asked, version=version) == {
            ("t", 0): ErrorCode.NONE,
            ("t", 1): ErrorCode.LOG_DIR_NOT_FOUND,
            ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("x" * 230, 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert await move(bench, (own, "t", 0), ("/b", "t", 0)) == {("t", 0): ErrorCode.LOG_DIR_NOT_FOUND}
        bench.logs.offline_reason = "fdatasync failed"
        assert await move(bench, (own, "t", 0)) == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR}


async def delete(bench: AdminBench, *asked: tuple[str, int, int], version: int = 2) -> list[tuple[int, int]]:
    """(code, low watermark) of each (topic, partition, offset)."""
    topics = [DeleteRecordsTopic(name, [DeleteRecordsPartition(index, offset)]) for name, index, offset in asked]
    answer = await bench.ask(ApiKey.DELETE_RECORDS, version, DeleteRecordsRequest(topics=topics))
    assert [topic.name for topic in answer.topics] == [name for name, _, _ in asked]
    return [(part.error_code, part.low_watermark) for topic in answer.topics for part in topic.partitions]


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_RECORDS))
async def test_records_are_deleted_in_every_version_once_the_new_start_is_durable(version: int) -> None:
    async with admin_bench() as bench:
        log = bench.logs.add("t", 0, high_watermark=50)
        assert await delete(bench, ("t", 0, 20), version=version) == [(ErrorCode.NONE, 20)]
        assert bench.tier.durable == {(log.topic_id, 0): 20}
        assert await delete(bench, ("t", 0, -1), version=version) == [(ErrorCode.NONE, 50)]
        assert bench.tier.durable == {(log.topic_id, 0): 50}


async def test_a_start_that_is_below_the_one_there_is_changes_nothing() -> None:
    async with admin_bench() as bench:
        bench.logs.add("t", 0, high_watermark=50).log_start_offset = 30
        assert await delete(bench, ("t", 0, 10)) == [(ErrorCode.NONE, 30)]
        assert bench.tier.durable == {}


@pytest.mark.parametrize("offset", [51, -2, -(1 << 63), (1 << 63) - 1])
async def test_an_offset_that_consumers_cannot_see_is_out_of_range(offset: int) -> None:
    async with admin_bench() as bench:
        bench.logs.add("t", 0, high_watermark=50)
        assert await delete(bench, ("t", 0, offset)) == [(ErrorCode.OFFSET_OUT_OF_RANGE, -1)]
        assert bench.tier.durable == {}


async def test_each_partition_is_answered_for_itself() -> None:
    async with admin_bench() as bench:
        await bench.controller.create_topic("made", 1)
        bench.logs.add("t", 0, high_watermark=50)
        bench.logs.add("keys", 0, high_watermark=5, cleanup_policy="compact")
        bench.logs.add("both", 0, high_watermark=5, cleanup_policy="compact,delete")
        assert await delete(bench, ("missing", 0, 1), ("made", 0, 1), ("t", 0, 1), ("keys", 0, 1), ("both", 0, 1)) == [
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            (ErrorCode.KAFKA_STORAGE_ERROR, -1),
            (ErrorCode.NONE, 1),
            (ErrorCode.POLICY_VIOLATION, -1),
            (ErrorCode.NONE, 1),
        ]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageUnavailable("undecided"), ErrorCode.KAFKA_STORAGE_ERROR),
        (FencedError("another leads"), ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_a_start_that_is_not_durable_is_not_answered_as_one(error: FirnError, code: ErrorCode) -> None:
    async with admin_bench() as bench:
        bench.logs.add("t", 0, high_watermark=50)
        bench.tier.fails_with = error
        assert await delete(bench, ("t", 0, 20)) == [(code, -1)]


async def test_a_refusal_of_the_whole_request_names_every_partition_in_every_version() -> None:
    error = RequestRejected(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    async with admin_bench() as bench:
        for version in versions(ApiKey.DELETE_RECORDS):
            message = DeleteRecordsRequest([DeleteRecordsTopic("t", [DeleteRecordsPartition(4, 1)])])
            [topic] = bench.refuse(ApiKey.DELETE_RECORDS, version, message, error).topics
            [part] = topic.partitions
            assert (topic.name, part.partition_index, part.error_code) == ("t", 4, error.code)
        for version in versions(ApiKey.DESCRIBE_LOG_DIRS):
            answer = bench.refuse(ApiKey.DESCRIBE_LOG_DIRS, version, DescribeLogDirsRequest(topics=None), error)
            assert answer.error_code == (error.code if version >= 3 else 0)
