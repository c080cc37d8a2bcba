"""Transactional ids of other coordinators: which broker is asked, and what its refusals become."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from app.coordinator.topics import TRANSACTION_STATE, partition_for
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected
from app.core.units import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from app.metadata.peers.control import LookRequest, LookResponse
from app.transactions.elsewhere import OtherBrokers
from app.transactions.link import AddAnswer, AddAsked
from app.transactions.state import ProducerIdentity

OURS, OTHER = 1, 2
TARGET = TopicPartition("t", PartitionIndex(0))
SECOND = TopicPartition("t", PartitionIndex(1))
ASKED = AddAsked("id", ProducerIdentity(ProducerId(7), ProducerEpoch(0)), {}, verify_only=False)
STORED = AddAnswer({TARGET: ErrorCode.NONE}, 5)
LEADERS = (-1, OURS, OTHER)
"""Of the partitions of ``__transaction_state``."""


def id_led_by(leader: int) -> str:
    """A transactional id whose partition has this leader."""
    return next(name for name in map(str, range(100)) if LEADERS[partition_for(name, len(LEADERS))] == leader)


class Cluster:
    """Brokers 1 to 4. This is broker 1, and broker 4 is fenced."""

    def __init__(self) -> None:
        self.answer: AddAnswer | FirnError = STORED
        self.looked: dict[int, LookResponse] = {2: LookResponse(known=(2,)), 3: LookResponse(known=(3,))}
        self.asked: list[tuple[int, Sequence[AddAsked]]] = []
        self.topic: Any = SimpleNamespace(partitions=[SimpleNamespace(leader=leader) for leader in LEADERS])
        self.others = OtherBrokers(OURS, self, self.image)  # type: ignore[arg-type]

    def image(self) -> Any:
        brokers = {number: SimpleNamespace(broker_id=number, fenced=number == 4) for number in range(1, 5)}
        return SimpleNamespace(topic={TRANSACTION_STATE.name: self.topic}.get, brokers=brokers)

    async def write_markers(self, to: Any, asked: Sequence[Any]) -> Sequence[ErrorCode]:
        raise AssertionError("No test has markers written.")

    async def add_to_transactions(self, to: Any, asked: Sequence[AddAsked]) -> Sequence[AddAnswer]:
        self.asked.append((to.broker_id, asked))
        if isinstance(self.answer, FirnError):
            raise self.answer
        return [self.answer for _ in asked]

    async def look_at_transactions(self, to: Any, _asked: LookRequest) -> LookResponse:
        return self.looked[to.broker_id]

    async def add(self, leader: int = OTHER) -> AddAnswer:
        return await self.others.add(ASKED._replace(transactional_id=id_led_by(leader)))

    async def refusal(self, leader: int = OTHER) -> RequestRejected:
        with pytest.raises(RequestRejected) as refused:
            await self.add(leader)
        return refused.value


@asynccontextmanager
async def running() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    task = asyncio.create_task(cluster.others.run())
    for _ in range(5):
        await asyncio.sleep(0)
    try:
        yield cluster
    finally:
        task.cancel()
        await asyncio.wait([task])


def test_the_coordinator_of_an_id_is_the_leader_of_its_partition_if_that_is_another_broker() -> None:
    cluster = Cluster()
    assert [cluster.others.coordinator_of(id_led_by(leader)) for leader in LEADERS] == [-1, None, OTHER]
    cluster.topic = None
    assert cluster.others.coordinator_of(id_led_by(OTHER)) is None, "the topic does not exist yet"


async def test_the_answer_of_the_coordinator_is_returned() -> None:
    async with running() as cluster:
        assert await cluster.add() == STORED
        [(broker_id, asked)] = cluster.asked
        assert broker_id == OTHER
        assert [one.transactional_id for one in asked] == [id_led_by(OTHER)]


async def test_no_broker_is_asked_for_an_id_that_none_or_this_one_coordinates() -> None:
    async with running() as cluster:
        assert (await cluster.refusal(OURS)).code is ErrorCode.NOT_COORDINATOR
        assert (await cluster.refusal(-1)).code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert cluster.asked == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokerUnavailable("Broker 2 is not reached."), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (RequestRejected(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "Wait."), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
async def test_a_client_asks_again_if_the_coordinator_does_not_answer(error: FirnError, code: ErrorCode) -> None:
    async with running() as cluster:
        cluster.answer = error
        assert (await cluster.refusal()).code is code


@pytest.mark.parametrize(
    ("codes", "code", "named"),
    [
        ((ErrorCode.NONE, ErrorCode.INVALID_TXN_STATE), ErrorCode.INVALID_TXN_STATE, SECOND),
        # Only the partition that was looked at has a reason.
        ((ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INVALID_TXN_STATE), ErrorCode.INVALID_TXN_STATE, SECOND),
        # The coordinator has another image of the topics: the client asks again.
        ((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE), ErrorCode.COORDINATOR_NOT_AVAILABLE, TARGET),
        ((ErrorCode.NONE, ErrorCode.INCONSISTENT_TOPIC_ID), ErrorCode.COORDINATOR_NOT_AVAILABLE, SECOND),
        ((ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.NONE), ErrorCode.COORDINATOR_NOT_AVAILABLE, TARGET),
    ],
)
async def test_a_refusal_of_one_partition_refuses_all_and_names_it(
    codes: tuple[ErrorCode, ErrorCode], code: ErrorCode, named: TopicPartition
) -> None:
    async with running() as cluster:
        cluster.answer = AddAnswer(dict(zip((TARGET, SECOND), codes, strict=True)), 5)
        refused = await cluster.refusal()
        assert refused.code is code
        assert f"refuses {named}" in str(refused)


async def test_all_other_living_brokers_tell_their_facts() -> None:
    cluster = Cluster()
    assert [one.known for one in await cluster.others.look(LookRequest("c", 1))] == [(2,), (3,)]


async def test_a_broker_that_does_not_tell_its_facts_fails_the_question() -> None:
    cluster = Cluster()
    cluster.looked[3] = LookResponse(int(ErrorCode.LEADER_NOT_AVAILABLE))
    with pytest.raises(RequestRejected, match="Broker 3") as refused:
        await cluster.others.look(LookRequest("c", 1))
    assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE
