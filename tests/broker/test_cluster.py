"""Several real brokers in one loop, on one directory as object store: one cluster (ADR 0023)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest

from app.core.errors import RequestRejected, StorageUnavailable
from app.core.seams import BlockingPool
from app.core.units import BrokerId, DurationMs
from app.machine.runtime import ThreadPool
from app.metadata.controller import broker_sessions, desk
from app.metadata.peers.control import Heartbeat, HeartbeatAnswer
from app.metadata.peers.liveness import Identity
from app.objectstore.directory import DirectoryStore
from tests.support.broker import running_broker
from tests.support.several import member, unfenced
from tests.support.waiting import until

T = TypeVar("T")


async def test_three_brokers_are_one_cluster(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(tmp_path, node_id)) for node_id in (1, 2, 3)]
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
        assert {broker.node.cluster.image.cluster_id for broker in brokers} == {
            brokers[0].node.cluster.image.cluster_id
        }
        assert {broker.node.cluster.image.controller.broker_id for broker in brokers} == {1}


class SilentRedis:
    """Signs of life that never answer."""

    async def beat(self, identity: Identity) -> None:
        await asyncio.Event().wait()

    async def age_ms(self, broker_id: BrokerId, directory_id: UUID) -> DurationMs | None:
        await asyncio.Event().wait()
        return None

    async def leave(self, identity: Identity) -> None:
        await asyncio.Event().wait()


async def test_several_brokers_need_no_redis(tmp_path: Path) -> None:
    async with member(tmp_path, 1, liveness=SilentRedis()) as one:
        await until(lambda: unfenced(one) == [1])
        async with member(tmp_path, 2, liveness=SilentRedis()) as two:
            await until(lambda: unfenced(two) == [1, 2])
    signs = {path.parent.name for path in (tmp_path / "store" / "cluster" / "heartbeat").glob("*/*")}
    assert signs == set(), "who stopped in order has taken its sign of life back"


class GoneAway(BlockingPool):
    """Of a store that cannot be reached now and then."""

    def __init__(self, pool: BlockingPool) -> None:
        self._pool = pool
        self.away = False

    async def run(self, work: Callable[[], T]) -> T:
        if self.away:
            raise StorageUnavailable("it is away")
        return await self._pool.run(work)


@pytest.mark.ci
async def test_a_controller_that_was_unsure_of_itself_fences_nobody_that_it_has_heard_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses heartbeats while the store is away, and still they are signs of life."""
    monkeypatch.setattr(broker_sessions, "MOST_SILENT_S_MIN", 0.0)
    monkeypatch.setattr(desk, "UNCONFIRMED_S", 0.5)
    monkeypatch.setattr(desk, "CONFIRM_S", 0.2)
    monkeypatch.setattr(desk, "CONFIRM_EARLY_S", 0.0)
    pool = ThreadPool(2)
    gone = GoneAway(pool)
    store = DirectoryStore(tmp_path / "store", gone)
    await store.open()
    settings = {"broker_heartbeat_interval_ms": 50, "broker_session_timeout_ms": 500}
    async with running_broker(tmp_path / "b", store=store, new_level=1, node_id=1, **settings) as broker:
        await until(lambda: unfenced(broker) == [1])
        member = broker.node.membership.member
        assert member is not None
        office, beats, refused = member.desk, 0, 0
        heard = office.heard

        async def counted(beat: Heartbeat) -> HeartbeatAnswer:
            nonlocal beats, refused
            try:
                return await heard(beat)
            except RequestRejected:
                refused += 1
                raise
            finally:
                beats += 1

        monkeypatch.setattr(office, "heard", counted)
        epoch = broker.node.cluster.image.brokers[BrokerId(1)].changed_at
        gone.away = True
        await until(lambda: refused > 40)  # for longer than two session time-outs
        gone.away = False
        await until(lambda: office.serving)
        await until(lambda before=beats: beats > before + 20)
        assert broker.node.cluster.image.brokers[BrokerId(1)].changed_at == epoch
    pool.close()
