"""Schedules that simulated clusters meet too seldom, forced on three brokers: what comes late from a broker that has another broker
epoch by now (ADR 0023, M5; ADR 0024, R5 and A5). Each is held with the rule, and with the rule taken back, which must show."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.broker.peers.control_link import KafkaControlLink
from app.core.errors import FirnError, RequestRejected
from app.core.units import TimestampMs
from app.metadata.image.image import PartitionImage
from app.metadata.peers.control import Heartbeat, InSyncAsked, MemberEpoch, NotSent
from app.wire.fetch import FetchPartition, FetchRequest
from tests.cluster_simulation.planted import (
    fetches_count_by_node_id,
    heartbeats_of_any_broker_epoch_count,
    members_enter_by_their_node_ids,
)
from tests.handlers.conversation import batch
from tests.support.broker import RunningBroker
from tests.support.several import cluster_on, unfenced
from tests.support.waiting import until

NOW = TimestampMs(1_700_000_000_000)
OLDER = -1
"""Of a broker epoch, to the present one."""
ANSWERS = 10
"""Rounds in which the cluster may do what it must not do."""


class Cut:
    """What broker 3 sends does not arrive. It goes on as it was, apart from that."""

    def __init__(self, broker: RunningBroker, patch: pytest.MonkeyPatch) -> None:
        self._link, self._patch = broker.node._link, patch
        self.late = KafkaControlLink()
        """What it sent earlier comes over this one."""

    def off(self, *names: str) -> None:
        async def cut(*_: Any) -> Any:
            raise NotSent("cut")

        for name in names:
            self._patch.setattr(self._link, name, cut, raising=True)

    def on(self, name: str) -> None:
        self._patch.setattr(self._link, name, getattr(KafkaControlLink, name).__get__(self._link))


class Schedule:
    """Three brokers; the first one is the controller and leads, the third one is cut off."""

    def __init__(self, brokers: list[RunningBroker], patch: pytest.MonkeyPatch) -> None:
        self.first, _, self.third = brokers
        self.cut = Cut(self.third, patch)

    @property
    def image(self) -> Any:
        return self.first.node.cluster.image

    @property
    def partition(self) -> PartitionImage:
        found: PartitionImage = self.image.topic("t").partitions[0]
        return found

    @property
    def older_epoch(self) -> int:
        return int(self.image.brokers[3].broker_epoch) + OLDER

    async def falls_behind(self) -> None:
        """Broker 3 leaves the in-sync set, a record is committed without it, and it is unfenced again."""
        self.cut.off("heartbeat", "fetch", "entries")
        await until(lambda: unfenced(self.first) == [1, 2])
        await until(lambda: tuple(self.partition.isr) == (1,))
        log = self.first.node.logs.get("t", 0)
        assert log is not None
        log.append_as_leader(bytearray(batch(5)), now_ms=NOW)
        await until(lambda: log.high_watermark == 5)
        self.cut.on("heartbeat")
        self.cut.on("entries")
        await until(lambda: unfenced(self.first) == [1, 2, 3])

    async def settles(self) -> None:
        """Time for what must not happen: entries of the cluster log come and go."""
        for number in range(ANSWERS):
            await self.first.node.membership.controller.create_topic(f"other{number}", 1, {}, 1)

    def broken(self) -> list[str]:
        """INV-1: whoever is in sync has what is committed."""
        follower = self.third.node.logs.get("t", 0)
        end = 0 if follower is None else int(follower.log_end_offset)
        return ["INV-1: broker 3 is in sync without committed records"] if 3 in self.partition.isr and end < 5 else []


@asynccontextmanager
async def schedule(path: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[Schedule]:
    async with cluster_on(path) as brokers:
        made = Schedule(brokers, patch)
        configs = {"min.insync.replicas": "1"}
        await made.first.node.membership.controller.create_topic("t", configs=configs, assignments={0: [1, 3]})
        await until(lambda: made.third.node.logs.get("t", 0) is not None)
        try:
            yield made
        finally:
            await made.cut.late.close()


async def arrives(send: Callable[[], Awaitable[object]]) -> None:
    """Send something until the controller answers it. After a pause it is unsure of itself for a moment, and refuses everything."""
    async with asyncio.timeout(60):
        while True:
            try:
                await send()
            except RequestRejected:
                await asyncio.sleep(0.02)
            else:
                return


async def late_heartbeat(run: Schedule) -> list[str]:
    run.cut.off("heartbeat")
    await until(lambda: unfenced(run.first) == [1, 2])
    beat = Heartbeat(3, run.older_epoch, int(run.image.sequence), False)
    for number in range(ANSWERS):
        await arrives(lambda: run.cut.late.heartbeat(run.image.brokers[1], beat))
        await run.first.node.membership.controller.create_topic(f"other{number}", 1, {}, 1)
    return ["member: broker 3 is unfenced by a heartbeat of before"] if 3 in unfenced(run.first) else []


async def late_proposal(run: Schedule) -> list[str]:
    await run.falls_behind()
    found = run.partition
    members = (
        MemberEpoch(1, run.image.brokers[1].broker_epoch),
        MemberEpoch(3, run.older_epoch),
    )
    asked = InSyncAsked(run.image.topic("t").topic_id, 0, int(found.leader_epoch), found.partition_epoch, members)
    me = run.image.brokers[1]
    await arrives(lambda: run.cut.late.alter_in_sync(me, 1, me.broker_epoch, [asked]))
    await run.settles()
    return run.broken()


async def late_fetch(run: Schedule) -> list[str]:
    await run.falls_behind()
    found = run.partition
    position = FetchPartition(0, int(found.leader_epoch), 5, int(found.leader_epoch), 0, 1 << 20, 5)
    request = FetchRequest(
        replica_id=3,
        replica_epoch=run.older_epoch,
        max_wait_ms=0,
        min_bytes=0,
        topics=[(run.image.topic("t").topic_id, [position])],
    )
    with contextlib.suppress(FirnError):
        await run.cut.late.fetch(run.image.brokers[1], request)
    await run.settles()
    return run.broken()


SCHEDULES: dict[str, tuple[Callable[[Schedule], Awaitable[list[str]]], Callable[[pytest.MonkeyPatch], None]]] = {
    "M5 a heartbeat of an older broker epoch": (late_heartbeat, heartbeats_of_any_broker_epoch_count),
    "R5 a proposal with an older broker epoch": (late_proposal, members_enter_by_their_node_ids),
    "A5 a fetch of an older broker epoch": (late_fetch, fetches_count_by_node_id),
}


@pytest.mark.ci
@pytest.mark.parametrize("name", SCHEDULES)
async def test_what_comes_late_counts_for_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play, _ = SCHEDULES[name]
    async with schedule(tmp_path, monkeypatch) as run:
        assert await play(run) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
async def test_with_the_rule_taken_back_the_schedule_breaks_an_invariant(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, plant = SCHEDULES[name]
    plant(monkeypatch)
    async with schedule(tmp_path, monkeypatch) as run:
        assert await play(run) != []
