"""The fate of a record is asked of the broker that leads it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.coordinator.partition import ProducerIdAndEpoch
from app.core.errors import ErrorCode, ProtocolError, RequestRejected
from app.core.units import BrokerId, PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from app.exactly_once.record_fates import RecordFates
from app.wire.private import RequestsRequest, RequestsResponse

HERE, THERE, GONE = BrokerId(1), BrokerId(2), BrokerId(3)
PRODUCER = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(3))


def at(partition: int) -> TopicPartition:
    return TopicPartition("t", PartitionIndex(partition))


class Around:
    """The coordinator of this broker, and the way to the other one."""

    def __init__(self) -> None:
        self.asked: list[RequestsRequest] = []
        self.answer = RequestsResponse(found="aborted")

    async def fate(self, target: TopicPartition, offset: int, producer: ProducerIdAndEpoch) -> str:
        assert (target, offset, producer) == (at(0), 5, PRODUCER)
        return "committed"

    async def requests(self, to: Any, asked: RequestsRequest) -> RequestsResponse:
        assert to == "the other broker"
        self.asked.append(asked)
        return self.answer


def fates(around: Around) -> RecordFates:
    partitions = [SimpleNamespace(leader=leader) for leader in (HERE, THERE, GONE)]
    topic = SimpleNamespace(partitions=partitions)
    image: Any = SimpleNamespace(
        topic=lambda name: topic if name == "t" else None, brokers={HERE: "this broker", THERE: "the other broker"}
    )
    return RecordFates(HERE, around, lambda: image, around)  # type: ignore[arg-type]


async def test_a_record_that_is_led_here_is_looked_at_here() -> None:
    around = Around()
    assert await fates(around).fate(at(0), 5, PRODUCER) == "committed"
    assert around.asked == []


async def test_another_leader_is_asked_with_the_place_and_the_producer() -> None:
    around = Around()
    assert await fates(around).fate(at(1), 5, PRODUCER) == "aborted"
    assert around.asked == [RequestsRequest("fate", partitions=[at(1)], producer_id=7, producer_epoch=3, offset=5)]


async def test_a_refusal_of_the_leader_is_no_fate() -> None:
    around = Around()
    around.answer = RequestsResponse(int(ErrorCode.OFFSET_NOT_AVAILABLE), "Not yet.")
    with pytest.raises(RequestRejected, match="Not yet"):
        await fates(around).fate(at(1), 5, PRODUCER)


async def test_a_fate_that_this_version_does_not_know_is_none() -> None:
    around = Around()
    around.answer = RequestsResponse(found="half committed")
    with pytest.raises(ProtocolError, match="half committed"):
        await fates(around).fate(at(1), 5, PRODUCER)


async def test_a_partition_without_a_leader_has_no_fate_now() -> None:
    with pytest.raises(RequestRejected, match="no leader"):
        await fates(Around()).fate(at(2), 5, PRODUCER)


@pytest.mark.parametrize("target", [at(3), TopicPartition("gone", PartitionIndex(0))])
async def test_the_records_of_a_partition_that_does_not_exist_are_gone(target: TopicPartition) -> None:
    assert await fates(Around()).fate(target, 5, PRODUCER) == "gone"
