"""FindCoordinator: the broker that is named for each key, and the reason if there is none."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from app.coordinator.topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE, InternalTopic, partition_for
from app.core.errors import ErrorCode, RequestRejected, StorageUnavailable
from app.groups.share.core.share_state import ShareKey
from app.handlers.apis import coordinators
from app.handlers.apis.coordinators import GROUP, SHARE, TRANSACTION, handle, refuse
from app.handlers.base.request import Request
from app.metadata.image.records import Endpoint
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tests.support.callers import SOMEBODY

TOPIC_ID = UUID(int=1)
LEADERS = (1, 2, -1)
"""Of the partitions of each internal topic."""
SHARE_KEY = ShareKey("g", UUID(int=5), 0).name
ONE_KEY, MANY_KEYS, SHARE_KEYS = 3, 4, 6
"""Versions."""


def key_led_by(leader: int, *, but: str = "") -> str:
    return next(
        name for name in map(str, range(100)) if LEADERS[partition_for(name, len(LEADERS))] == leader and name != but
    )


class World:
    """Brokers 1 and 2. Only the first has the client's listener."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[InternalTopic] = []
        self.error: Exception | None = None
        self.leaders = LEADERS
        self.offline: set[tuple[UUID, int]] = set()
        self.shut: set[int] = set()
        self.elsewhere: list[int] = []
        self.listeners = {1: SOMEBODY.listener, 2: SOMEBODY.listener}
        monkeypatch.setattr(coordinators, "ensure_topic", self._ensure)

    async def _ensure(self, _cluster: object, _controller: object, topic: InternalTopic) -> Any:
        self.asked.append(topic)
        if self.error is not None:
            raise self.error
        partitions = [
            SimpleNamespace(partition_index=index, leader=leader, isr=(1, 2))
            for index, leader in enumerate(self.leaders)
        ]
        return SimpleNamespace(topic_id=TOPIC_ID, name=topic.name, partitions=partitions)

    def _broker(self, number: int) -> Any:
        found = Endpoint(self.listeners[number], f"host-{number}", 9000 + number, "PLAINTEXT")
        return SimpleNamespace(broker_id=number, endpoint=lambda name: found if name == found.listener else None)

    async def find(self, version: int, key_type: int, *keys: str) -> FindCoordinatorResponse:
        context: Any = SimpleNamespace(
            cluster=None,
            controller=None,
            rng=random.Random(1),
            image=SimpleNamespace(brokers={number: self._broker(number) for number in (1, 2)}),
            partitions=SimpleNamespace(
                offline=self.offline,
                elsewhere=self.elsewhere,
                is_shut=lambda partition: partition.partition_index in self.shut,
            ),
        )
        message = FindCoordinatorRequest(key_type=key_type)
        if version >= MANY_KEYS:
            message.coordinator_keys = list(keys)
        else:
            (message.key,) = keys
        return await handle(context, Request(ApiKey.FIND_COORDINATOR, version, 1, "test", SOMEBODY), message)

    async def place(self, key: str, *, key_type: int = GROUP) -> tuple[int, str, int]:
        (found,) = (await self.find(SHARE_KEYS, key_type, key)).coordinators
        assert (found.key, found.error_code, found.error_message) == (key, ErrorCode.NONE, None)
        return found.node_id, found.host, found.port

    async def reason(self, key: str, *, key_type: int = GROUP) -> tuple[ErrorCode, str]:
        """The code and the sentence for a key, which are the same for one key and for many."""
        (found,) = (await self.find(SHARE_KEYS, key_type, key)).coordinators
        assert (found.key, found.node_id, found.host, found.port) == (key, -1, "", -1)
        if key_type != SHARE:
            with pytest.raises(RequestRejected) as refused:
                await self.find(ONE_KEY, key_type, key)
            assert (refused.value.code, str(refused.value)) == (found.error_code, found.error_message)
        assert found.error_message is not None
        return ErrorCode(found.error_code), found.error_message


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


async def test_the_coordinator_is_the_leader_of_the_keys_partition(world: World) -> None:
    assert await world.place(key_led_by(1)) == (1, "host-1", 9001)
    assert await world.place(key_led_by(2)) == (2, "host-2", 9002)
    found = await world.find(ONE_KEY, GROUP, key_led_by(2))
    assert (found.error_code, found.error_message) == (0, None)
    assert (found.node_id, found.host, found.port) == (2, "host-2", 9002)


async def test_each_kind_of_key_has_its_topic(world: World) -> None:
    for key_type, key in ((GROUP, "0"), (TRANSACTION, "0"), (SHARE, SHARE_KEY)):
        await world.find(SHARE_KEYS, key_type, key)
    assert world.asked == [CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE]
    assert (GROUP, TRANSACTION, SHARE) == (0, 1, 2), "as in Kafka's protocol"


async def test_kinds_that_there_are_not_are_refused(world: World) -> None:
    for version, key_type in ((SHARE_KEYS, 3), (SHARE_KEYS - 1, SHARE), (ONE_KEY, -1)):
        with pytest.raises(RequestRejected) as refused:
            await world.find(version, key_type, SHARE_KEY)
        assert refused.value.code is ErrorCode.INVALID_REQUEST
    assert world.asked == []


async def test_keys_of_a_list_are_refused_one_by_one(world: World) -> None:
    keys = [key_led_by(1), key_led_by(-1), key_led_by(2)]
    found = (await world.find(MANY_KEYS, GROUP, *keys)).coordinators
    assert [one.key for one in found] == keys
    assert [one.node_id for one in found] == [1, -1, 2]
    assert [one.error_code for one in found] == [0, ErrorCode.COORDINATOR_NOT_AVAILABLE, 0]


async def test_share_partitions_are_named_by_group_topic_and_number(world: World) -> None:
    world.leaders = (1, 1, 1)
    assert (await world.place(SHARE_KEY, key_type=SHARE))[0] == 1
    code, why = await world.reason("g", key_type=SHARE)
    assert code is ErrorCode.INVALID_REQUEST
    assert why.startswith("'g' is not the group, topic id and number of a share-partition")
    assert (await world.place("g", key_type=GROUP))[0] == 1


async def test_a_partition_without_a_leader_or_offline_has_no_coordinator(world: World) -> None:
    name = CONSUMER_OFFSETS.name
    assert await world.reason(key_led_by(-1)) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name}-2 has no leader.")
    world.offline = {(TOPIC_ID, 0)}
    assert await world.reason(key_led_by(1)) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{name}-0 is offline.")
    assert (await world.place(key_led_by(2)))[0] == 2


async def test_a_coordinator_without_the_clients_listener_cannot_be_reached(world: World) -> None:
    world.listeners[2] = "OTHER"
    code, why = await world.reason(key_led_by(2))
    assert code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert why == f"Broker 2 has no listener {SOMEBODY.listener}."


async def test_an_isolated_broker_names_another_one_that_may_lead(world: World) -> None:
    world.shut = {0}
    assert (await world.reason(key_led_by(1)))[1] == f"{CONSUMER_OFFSETS.name}-0 has no leader."
    world.elsewhere = [2]
    assert (await world.place(key_led_by(1)))[0] == 2


async def test_a_topic_that_cannot_be_made_now_is_a_reason_to_ask_again(world: World) -> None:
    world.error = StorageUnavailable("The bucket is away.")
    with pytest.raises(RequestRejected, match="The bucket is away") as refused:
        await world.find(SHARE_KEYS, GROUP, "0")
    assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    world.error = RequestRejected(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "No.")
    with pytest.raises(RequestRejected) as refused:
        await world.find(SHARE_KEYS, GROUP, "0")
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_refusal_is_told_for_each_key_from_the_version_with_lists_on() -> None:
    def refused(version: int) -> FindCoordinatorResponse:
        request = Request(ApiKey.FIND_COORDINATOR, version, 1, "test", SOMEBODY)
        message = FindCoordinatorRequest(key="a", coordinator_keys=["a", "b"])
        return refuse(request, message, ErrorCode.GROUP_AUTHORIZATION_FAILED, "No.")

    code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert refused(MANY_KEYS).coordinators == [Coordinator(key, -1, "", -1, code, "No.") for key in ("a", "b")]
    one = refused(ONE_KEY)
    assert (one.error_code, one.error_message, one.node_id, one.host, one.port) == (code, "No.", -1, "", -1)
    assert one.coordinators == []
