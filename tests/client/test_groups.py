"""Assignments of the consumer protocol are written by clients: any bytes are read, within a bounded number of steps."""

from __future__ import annotations

from itertools import islice
from struct import pack
from uuid import UUID

import pytest

from app.client.cluster import ClusterClient
from app.client.groups import BY_NAME_UNTIL, PARTITIONS_A_STEP, GroupClient, assigned_partitions, partitions_of
from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import whole
from app.core.units import PartitionIndex, TopicPartition
from app.wire.apikeys import ApiKey
from app.wire.apis.consumer_group_describe import TopicPartitions
from app.wire.apis.find_coordinator import Coordinator, FindCoordinatorResponse
from app.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from app.wire.header import RequestHeader
from app.wire.schema import ZERO_UUID
from tests.client.scripted import ScriptedBroker


def assignment(*topics: tuple[str, list[int]]) -> bytes:
    found = pack(">hi", 0, len(topics))
    for name, partitions in topics:
        found += pack(">h", len(name)) + name.encode() + pack(f">i{len(partitions)}i", len(partitions), *partitions)
    return found + pack(">i", -1)


def test_the_partitions_of_all_topics_are_found() -> None:
    found = assigned_partitions(assignment(("a", [0, 2]), ("b", [1])))
    assert found == tuple(TopicPartition(name, PartitionIndex(index)) for name, index in (("a", 0), ("a", 2), ("b", 1)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        pack(">hi", 0, 2**31 - 1),
        # The length of a name that leads back to the same place, two thousand million times.
        pack(">hihih", 0, 2**31 - 1, 0, 0, -6),
        pack(">hihi", 0, 1, 0, -1),
        pack(">hihi", 0, 1, 0, 2**31 - 1),
        pack(">hih", 0, 1, 1) + b"\xff" + pack(">i", 0),
    ],
)
def test_a_malformed_assignment_has_no_partitions_and_ends_soon(data: bytes) -> None:
    assert len(list(islice(assigned_partitions.steps(data), 10))) < 10
    assert assigned_partitions(data) == ()


def test_a_long_assignment_is_read_in_steps() -> None:
    count = 10 * PARTITIONS_A_STEP
    steps = assigned_partitions.steps(assignment(("a", list(range(count)))))
    assert sum(1 for _ in steps) >= 10


def test_a_long_assignment_that_a_coordinator_describes_is_read_in_steps() -> None:
    names = [TopicPartitions(topic_name=name, partitions=list(range(5 * PARTITIONS_A_STEP))) for name in "ab"]
    steps = partitions_of(names)
    assert sum(1 for _ in steps) == 10
    assert whole(partitions_of(names)) == tuple(
        TopicPartition(name, PartitionIndex(index)) for name in "ab" for index in range(5 * PARTITIONS_A_STEP)
    )


async def test_a_commit_with_a_new_epoch_names_what_the_member_has_then(
    broker: ScriptedBroker, cluster: ClusterClient
) -> None:
    kept, given_away = (TopicPartition("three", PartitionIndex(index)) for index in (0, 1))
    has = {kept: (5, ""), given_away: (7, "")}
    epoch = 1
    tries: list[tuple[int, list[int]]] = []

    @broker.on(ApiKey.FIND_COORDINATOR)
    async def find(header: RequestHeader, body: object) -> FindCoordinatorResponse:
        found = Coordinator("g", broker.node_id, "127.0.0.1", broker.port, 0, None)
        return FindCoordinatorResponse(coordinators=[found])

    @broker.on(ApiKey.OFFSET_COMMIT)
    async def commit(header: RequestHeader, body: OffsetCommitRequest) -> OffsetCommitResponse:
        nonlocal epoch
        (topic,) = body.topics
        tries.append((body.generation_id_or_member_epoch, [one.partition_index for one in topic.partitions]))
        code = ErrorCode.NONE if epoch > 1 else ErrorCode.STALE_MEMBER_EPOCH
        epoch = 2
        has.pop(given_away, None)
        rows = [OffsetCommitResponsePartition(one.partition_index, code) for one in topic.partitions]
        return OffsetCommitResponse(topics=[OffsetCommitResponseTopic(topic.name, partitions=rows)])

    groups = GroupClient(cluster)
    await groups.commit_as(lambda: ("m", epoch), "g", lambda: has)
    assert tries == [(1, [0, 1]), (2, [0])]
    has.clear()
    await groups.commit_as(lambda: ("m", epoch), "g", lambda: has)
    assert len(tries) == 2


@pytest.mark.parametrize("known", [True, False])
async def test_a_commit_names_topics_by_their_ids_if_all_are_known(
    broker: ScriptedBroker, cluster: ClusterClient, known: bool
) -> None:
    first, second = (TopicPartition(name, PartitionIndex(0)) for name in ("one", "three"))
    ids = {first: UUID(int=5), **({second: UUID(int=7)} if known else {})}
    asked: list[tuple[int, list[tuple[UUID, str]]]] = []

    @broker.on(ApiKey.FIND_COORDINATOR)
    async def find(header: RequestHeader, body: object) -> FindCoordinatorResponse:
        found = Coordinator("g", broker.node_id, "127.0.0.1", broker.port, 0, None)
        return FindCoordinatorResponse(coordinators=[found])

    @broker.on(ApiKey.OFFSET_COMMIT)
    async def commit(header: RequestHeader, body: OffsetCommitRequest) -> OffsetCommitResponse:
        asked.append((header.api_version, [(one.topic_id, one.name) for one in body.topics]))
        codes = {UUID(int=7): ErrorCode.UNKNOWN_TOPIC_ID}
        rows = [
            OffsetCommitResponseTopic(
                one.topic_id, one.name, [OffsetCommitResponsePartition(0, codes.get(one.topic_id, ErrorCode.NONE))]
            )
            for one in body.topics
        ]
        return OffsetCommitResponse(topics=rows)

    offsets = {first: (5, ""), second: (7, "")}
    committing = GroupClient(cluster).commit_as(lambda: ("m", 1), "g", lambda: offsets, ids.get)
    if known:
        with pytest.raises(RequestRejected, match="three-0") as refused:
            await committing
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_ID
        assert asked == [(10, [(UUID(int=5), ""), (UUID(int=7), "")])]
    else:
        await committing
        assert asked == [(BY_NAME_UNTIL, [(ZERO_UUID, "one"), (ZERO_UUID, "three")])]
