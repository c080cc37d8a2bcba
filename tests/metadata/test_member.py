"""One broker of several joins: what it asks before it takes a place, and which broker it tells afterwards."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from app.configs import BrokerConfig
from app.core.errors import BrokerUnavailable
from app.core.units import BrokerId, LeaderEpoch, TimestampMs, TopicId
from app.metadata.changes.broker_changes import RegistrationAsked, register_broker
from app.metadata.changes.topic_changes import Planned
from app.metadata.image.image import BrokerImage
from app.metadata.image.records import LEVEL_MAX, Endpoint, PartitionRecord, TopicRecord, partition_change, topic_change
from app.metadata.log import layout
from app.metadata.membership.membership import Membership
from app.metadata.peers.control import RegisterRequest, RegisterResponse
from app.metadata.peers.liveness import ObjectLiveness
from app.metadata.peers.place import Holder
from app.metadata.view.registration import StartRefused
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from tests.metadata.support import on_virtual_time, running, uuid_of
from tests.support.virtual_loop import VirtualClock, VirtualLoop


class CutLink:
    """No other broker is reached."""

    async def refuses(self, endpoint: Endpoint) -> bool:
        return False

    async def close(self) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def unreachable(*_: object) -> None:
            raise BrokerUnavailable(f"nobody hears {name}")

        return unreachable


class LostAnswer(CutLink):
    """Registers at the controller ``to``. The first answer is lost."""

    def __init__(self, controller: Membership) -> None:
        self._controller = controller
        self.asked = 0

    async def register(self, _: BrokerImage, asked: RegisterRequest) -> RegisterResponse:
        self.asked += 1
        assert self._controller.member is not None
        made = await self._controller.member.desk.register(
            RegistrationAsked(
                asked.broker_id,
                asked.directory_id,
                asked.incarnation,
                asked.boot_id,
                asked.endpoints,
                asked.level_min,
                asked.level_max,
                asked.replaces,
            ),
            check_endpoints=False,
        )
        if self.asked == 1:
            raise BrokerUnavailable("the answer is lost")
        return RegisterResponse(0, "", made.broker_id, made.broker_epoch, made.sequence)


class Told:
    """Nobody answers, except to be told that it is replaced."""

    def __init__(self) -> None:
        self.directories: list[UUID] = []

    async def ask(
        self, endpoint: Endpoint, *, cluster_id: str, node_id: int, directory_id: UUID, replaced_by: str = ""
    ) -> Holder | None:
        if not replaced_by:
            return None
        self.directories.append(directory_id)
        return Holder(cluster_id, node_id, directory_id, looks=True)


TOPIC_ID = TopicId(uuid_of(900))
OLD = RegistrationAsked(
    2, uuid_of(12), uuid_of(112), "", (Endpoint("PLAINTEXT", "h12", 9092, "PLAINTEXT"),), 1, LEVEL_MAX
)
"""The broker that had the place of node 2."""
ITS_OWN = (
    topic_change(TOPIC_ID, TopicRecord(1, "t", 1, {}, TimestampMs(0))),
    partition_change(TOPIC_ID, 0, PartitionRecord(1, BrokerId(2), LeaderEpoch(0), 0, (BrokerId(2),), (BrokerId(2),))),
)
"""A partition that it alone has."""


def make(store: MemoryStore, loop: VirtualLoop, node_id: int, directory: int, **more: Any) -> Membership:
    clock, rng = VirtualClock(loop), random.Random(f"{node_id} {directory}")
    return Membership(
        store,
        config=BrokerConfig(node_id=node_id, wal_store_url=more.pop("wal_store_url", "")),
        directory_id=uuid_of(directory),
        endpoints=[Endpoint("PLAINTEXT", f"h{directory}", 9092, "PLAINTEXT")],
        liveness=ObjectLiveness(store, rng=rng, clock=clock),
        rng=rng,
        clock=clock,
        link=more.pop("link", CutLink()),
        new_level=LEVEL_MAX,
        **more,
    )


async def waiting_for_its_wal_store(store: MemoryStore, broker: Membership) -> asyncio.Task[None]:
    """Its start, which waits for the WAL store that is there again now."""
    away = Fault(FaultKind.UNAVAILABLE, key_prefix=layout.WAL_STORE_KEY)
    store.faults = [away]
    starting = asyncio.create_task(broker.start())
    while not away.struck:
        await asyncio.sleep(0.001)
    store.faults = []
    return starting


def test_a_start_that_waited_for_its_wal_store_does_not_depose_the_controller_that_came_meanwhile() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        first, second = (make(store, loop, one, 10 + one, wal_store_url="file:///fast") for one in (1, 2))
        starting = await waiting_for_its_wal_store(store, second)
        await first.start()
        await starting
        assert not second.controller.active
        await first.view.log.poll()
        assert first.view.log.writer.writer_id == first.view.writer_id
        assert list(first.view.log.state.image.brokers) == [1], "the second one asks its controller"

    on_virtual_time(main)


def test_a_start_that_waited_for_its_wal_store_asks_again_who_has_its_place() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        first, second = (make(store, loop, 1, directory, wal_store_url="file:///fast") for directory in (11, 12))
        starting = await waiting_for_its_wal_store(store, second)
        await first.start()
        with pytest.raises(StartRefused, match="Node id 1 is in use by a broker with another data directory"):
            await starting
        await first.view.look()

    on_virtual_time(main)


def test_a_broker_whose_first_registration_had_no_answer_tells_the_one_that_had_its_place() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        async with running(make(store, loop, 1, 11)) as first:
            await first.controller.submit(lambda draft, around: register_broker.steps(draft, around, OLD))
            await first.controller.submit(lambda _draft, _around: Planned(ITS_OWN, None))
            link, places = LostAnswer(first), Told()
            second = make(store, loop, 2, 13, link=link, places=places)
            async with running(second):
                assert second.member is not None
                await second.member.joined()
                assert link.asked == 2
                assert places.directories == [OLD.directory_id]
                assert second.registration.predecessor == OLD.incarnation

    on_virtual_time(main)
