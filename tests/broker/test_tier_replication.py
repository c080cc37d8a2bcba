"""Tiered topics with replicas on several real brokers in one loop (ADR 0024, T)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.broker.partitions import partitions
from app.broker.partitions.partitions import Partitions
from app.broker.partitions.tier_views import TierViews
from app.core.errors import BrokerUnavailable, ErrorCode, StorageUnavailable
from app.core.units import PartitionIndex, TopicIdPartition
from app.hot.checkpoints import CLEAN_SHUTDOWN_FILE, LOG_STARTS_FILE
from app.hot.log import PartitionLog
from app.hot.state_file import STATE_FILE
from app.metadata.log import layout
from app.records.builder import build_batch
from app.replication.reading import Awaited
from app.replication.roles import Role
from app.tiering.repair.rebuild import RestorePlan
from app.wire.apikeys import ApiKey
from app.wire.apis.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from app.wire.apis.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from app.wire.apis.elect_leaders import ElectLeadersRequest, TopicPartitions
from app.wire.private import FOLLOWING, TierStatusRequest, TierStatusResponse, pack, unpack
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker
from tests.support.changing import replace_configs
from tests.support.several import member, unfenced
from tests.support.talking import fetch_all, headers, produce, tier_everything
from tests.support.waiting import until

TIERED = {
    "segment.bytes": "1048576",
    "local.retention.ms": "0",
    "retention.ms": "-1",
    "remote.storage.enable": "true",
    "min.insync.replicas": "1",
}
BATCHES = 8
"""Of ten records each; a segment holds three."""
END = BATCHES * 10


class Brokers:
    """The brokers of one cluster, by node id."""

    def __init__(self, path: Path, stack: AsyncExitStack) -> None:
        self.path = path
        self._stack = stack
        self._of: dict[int, AsyncExitStack] = {}
        self.running: dict[int, RunningBroker] = {}

    async def start(self, node_id: int, **settings: Any) -> RunningBroker:
        own = self._of[node_id] = await self._stack.enter_async_context(AsyncExitStack())
        settings = {"remote_log_manager_task_interval_ms": 50, **settings}
        broker = self.running[node_id] = await own.enter_async_context(member(self.path, node_id, **settings))
        for one in self.running.values():
            await until(lambda one=one: set(self.running) <= set(unfenced(one)))
        return broker

    async def stop(self, node_id: int) -> None:
        """Stop a broker in order."""
        del self.running[node_id]
        await self._of.pop(node_id).aclose()

    @property
    def any(self) -> RunningBroker:
        return next(iter(self.running.values()))

    async def create(self, topic: str, factor: int, **configs: str) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        found = self.any.node.membership.controller
        await found.create_topic(topic, 1, {**TIERED, **named}, replication_factor=factor)
        for broker in self.running.values():
            await until(lambda broker=broker: broker.node.cluster.image.topic(topic) is not None)
        await until(lambda: all(one.node.logs.get(topic, 0) is not None for one in self.replicas(topic)))

    async def create_led_by(self, node_id: int, factor: int, **configs: str) -> str:
        """Create topics until this broker leads one. Returns: its name."""
        for number in range(20):
            topic = f"t{number}"
            await self.create(topic, factor, **configs)
            if self.image(topic).leader == node_id and await self.leader(topic) is self.running[node_id]:
                return topic
        raise AssertionError(f"20 topics, none is led by broker {node_id}")

    def image(self, topic: str) -> Any:
        return self.any.node.cluster.image.topics_by_name[topic].partitions[0]

    def replicas(self, topic: str) -> list[RunningBroker]:
        return [self.running[one] for one in self.image(topic).replicas if one in self.running]

    async def leader(self, topic: str) -> RunningBroker:
        """The broker that leads, and knows it."""

        def leads(broker: RunningBroker) -> bool:
            partition = broker.node.partitions.table.get(topic, 0)
            return partition is not None and partition.leads

        await until(lambda: any(leads(one) for one in self.running.values()))
        return next(one for one in self.running.values() if leads(one))

    async def followers(self, topic: str) -> list[RunningBroker]:
        leader = await self.leader(topic)
        return [one for one in self.replicas(topic) if one is not leader]


@asynccontextmanager
async def brokers(path: Path, *node_ids: int) -> AsyncIterator[Brokers]:
    async with AsyncExitStack() as stack:
        found = Brokers(path, stack)
        for node_id in node_ids:
            await found.start(node_id)
        yield found


def key_of(broker: RunningBroker, topic: str) -> TopicIdPartition:
    return TopicIdPartition(broker.log(topic).topic_id, PartitionIndex(0))


def view(broker: RunningBroker, topic: str) -> Any:
    """What a follower knows of the manifest."""
    return broker.node.tier_views.manifest_of(key_of(broker, topic))


async def fill(broker: RunningBroker, topic: str, count: int = BATCHES, first: int = 0) -> None:
    async with talk(broker.port) as client:
        await produce(client, topic, *[batch(10, value=b"%d" % n * 30_000) for n in range(first, first + count)])


async def read_all(broker: RunningBroker, topic: str, end: int, start: int = 0) -> list[int]:
    """The base offset of every batch, as a consumer of the leader reads them."""
    async with talk(broker.port) as client:
        return [one.base_offset for one in headers(await fetch_all(client, topic, start=start, end=end))]


async def tier(found: Brokers, topic: str) -> None:
    """Roll and copy all that the leader has."""
    leader = await found.leader(topic)
    await until(lambda: leader.log(topic).high_watermark == leader.log(topic).log_end_offset)
    await tier_everything(leader, topic)


@pytest.mark.ci
async def test_t3_followers_drop_what_the_tier_has_and_the_next_leader_reads_everything(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, 2, 3) as found:
        await found.create("t", 3)
        leader = await found.leader("t")
        await fill(leader, "t")
        await tier(found, "t")
        await until(lambda: leader.log("t").local_log_start_offset == END)
        followers = await found.followers("t")
        for one in followers:
            await until(lambda one=one: view(one, "t") is not None and view(one, "t").tiered_end == END)
            # Its segments have rolled where they are full; the last one is active here.
            await until(lambda one=one: one.log("t").local_log_start_offset == one.log("t").segments()[-1].base_offset)
            assert 0 < one.log("t").local_log_start_offset < END
            assert one.log("t").log_start_offset == 0
        await found.stop(leader.node.config.node_id)
        following = await found.leader("t")
        assert following in followers
        await fill(following, "t", 1, BATCHES)
        assert await read_all(following, "t", END + 10) == list(range(0, END + 10, 10))


@pytest.mark.ci
async def test_t3_a_follower_without_entries_drops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with brokers(tmp_path, 1, 2) as found:
        await found.create("t", 2)
        leader = await found.leader("t")
        (follower,) = await found.followers("t")
        await until(lambda: any(one.is_current for one in follower.node.tier_views.followed()))
        held, opened = asyncio.Event(), asyncio.Event()
        link = follower.node._link
        manifests = link.manifests

        async def hold(*args: Any) -> Any:
            held.set()
            await opened.wait()
            return await manifests(*args)

        monkeypatch.setattr(link, "manifests", hold)
        await asyncio.wait_for(held.wait(), 60)
        await fill(leader, "t")
        await tier(found, "t")
        await until(lambda: leader.log("t").local_log_start_offset == END)
        await until(lambda: follower.log("t").high_watermark == END)
        await follower.node.tier_views.look()
        assert follower.log("t").local_log_start_offset == 0
        opened.set()
        await until(lambda: follower.log("t").local_log_start_offset > 0)
        assert follower.log("t").local_log_start_offset <= view(follower, "t").tiered_end


async def test_entries_reach_followers_without_a_request_to_the_store(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, 2) as found:
        await found.create("t", 2)
        leader = await found.leader("t")
        (follower,) = await found.followers("t")
        await until(lambda: any(one.is_current for one in follower.node.tier_views.followed()))
        asked: list[str] = []
        store = follower.node._around.store
        get, list_objects = store.get, store.list_objects

        async def counted_get(key: str, *args: Any, **more: Any) -> Any:
            asked.append(key)
            return await get(key, *args, **more)

        async def counted_list(prefix: str, *args: Any, **more: Any) -> Any:
            asked.append(prefix)
            return await list_objects(prefix, *args, **more)

        store.get, store.list_objects = counted_get, counted_list
        await fill(leader, "t")
        await tier(found, "t")
        manifest = leader.node.remote_log_manager.manifest_of(key_of(leader, "t"))
        assert manifest is not None
        await until(lambda: view(follower, "t") is not None and view(follower, "t").version == manifest.version)
        topic = str(key_of(leader, "t").topic_id)
        assert [one for one in asked if topic in one] == []
        assert view(follower, "t").to_cache() == manifest.to_cache() or view(follower, "t").entries == manifest.entries


@pytest.mark.ci
async def test_a_restarted_follower_knows_its_tier_again_and_begins_where_it_began(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, 2, 3) as found:
        await found.create("t", 3)
        leader = await found.leader("t")
        await fill(leader, "t")
        await tier(found, "t")
        follower = (await found.followers("t"))[0]
        node_id = follower.node.config.node_id
        await until(lambda: follower.log("t").local_log_start_offset > 0)
        local_start = follower.log("t").local_log_start_offset
        await found.stop(node_id)
        await fill(leader, "t", 4, BATCHES)
        await tier(found, "t")
        again = await found.start(node_id)
        await until(lambda: view(again, "t") is not None and view(again, "t").tiered_end == END + 40)
        await until(lambda: again.log("t").log_end_offset == END + 40)
        assert again.log("t").log_start_offset == 0
        assert again.log("t").local_log_start_offset >= local_start
        partition = again.node.partitions.table.get("t", 0)
        assert partition is not None
        assert partition.role is Role.FOLLOWER


async def test_t5_a_new_replica_copies_only_the_tail(tmp_path: Path) -> None:
    """Though the leader has kept everything on its disk."""
    async with brokers(tmp_path, 1, 2) as found:
        await found.create("t", 1, local_retention_ms="-2")
        leader = await found.leader("t")
        await fill(leader, "t")
        await tier(found, "t")
        assert leader.log("t").local_log_start_offset == 0
        await fill(leader, "t", 1, BATCHES)
        tail_bytes = sum(one.size_bytes for one in leader.log("t").segments() if one.base_offset >= END)
        other = found.running[3 - leader.node.config.node_id]
        await move(leader, "t", other.node.config.node_id)
        await until(lambda: other.node.partitions.table.led("t", 0) is not None, 60)
        assert other.log("t").local_log_start_offset == END
        copied = leader.node.context.metrics.replication_bytes_out.value
        assert copied <= tail_bytes * 1.5, (copied, tail_bytes)
        assert tail_bytes < 400_000, "of 2.4 MB"
        await fill(other, "t", 1, BATCHES + 1)
        assert await read_all(other, "t", END + 20) == list(range(0, END + 20, 10))


async def test_t5_what_is_not_tiered_is_copied_whole(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, 2) as found:
        for topic, more in (
            ("plain", {"remote_storage_enable": "false"}),
            ("compacted", {"cleanup_policy": "compact", "remote_storage_enable": "false"}),
        ):
            await found.create(topic, 1, **more)
            leader = await found.leader(topic)
            if topic == "plain":
                await fill(leader, topic)
            else:
                async with talk(leader.port) as client:
                    await produce(client, topic, *[keyed(n) for n in range(BATCHES)])
            end = leader.log(topic).log_end_offset
            other = found.running[3 - leader.node.config.node_id]
            await move(leader, topic, other.node.config.node_id)
            await until(lambda other=other, topic=topic: other.node.partitions.table.led(topic, 0) is not None, 60)
            assert other.log(topic).local_log_start_offset == 0
            assert other.log(topic).log_end_offset == end


async def test_a_far_behind_replica_begins_at_the_tiered_end(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, 2, 3) as found:
        await found.create("t", 3, local_retention_ms="-2")
        leader = await found.leader("t")
        await fill(leader, "t", 2)
        follower = (await found.followers("t"))[0]
        node_id = follower.node.config.node_id
        await until(lambda: follower.log("t").log_end_offset == 20)
        await found.stop(node_id)
        await fill(leader, "t", BATCHES, 2)
        await tier(found, "t")
        again = await found.start(node_id)
        await until(lambda: again.log("t").log_end_offset == END + 20)
        assert again.log("t").local_log_start_offset == END + 20
        assert again.log("t").log_start_offset == 0
        await until(lambda: node_id in found.image("t").isr)


async def test_a_replica_that_begins_at_the_tiered_end_keeps_no_other_waiting_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one after another, a leader drops what comes after the tiered end before the last one can fetch it."""
    begun: set[str] = set()
    opened = asyncio.Event()
    start_at_tier = Partitions.start_at_tier

    async def hold(self: Partitions, log: PartitionLog, *more: Any) -> None:
        begun.add(log.topic)
        await opened.wait()
        await start_at_tier(self, log, *more)

    async with brokers(tmp_path, 1, 2) as found:
        for topic, enable in (("t", "true"), ("u", "true"), ("plain", "false")):
            await found.create(topic, 2, remote_storage_enable=enable)
        await found.stop(2)
        for topic in ("t", "u", "plain"):
            await fill(await found.leader(topic), topic)
        for topic in ("t", "u"):
            await tier(found, topic)
        monkeypatch.setattr(Partitions, "start_at_tier", hold)
        again = await found.start(2)
        await until(lambda: begun == {"t", "u"})
        await until(lambda: 2 in found.image("plain").isr)
        assert again.log("plain").log_end_offset == END
        assert again.log("t").log_end_offset == again.log("u").log_end_offset == 0
        opened.set()
        await until(lambda: all(2 in found.image(topic).isr for topic in ("t", "u")))
        assert again.log("t").local_log_start_offset == again.log("u").local_log_start_offset == END


async def test_a_log_is_not_emptied_for_the_tiered_end_by_who_does_not_follow_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have become the leader while the store was read."""
    held, opened = asyncio.Event(), asyncio.Event()
    ends: list[int] = []
    start_at_tier, plan_restore = Partitions.start_at_tier, partitions.plan_restore

    async def hold(*arguments: Any) -> RestorePlan:
        plan = await plan_restore(*arguments)
        held.set()
        await opened.wait()
        return plan

    async def noted(self: Partitions, log: PartitionLog, *more: Any) -> None:
        await start_at_tier(self, log, *more)
        ends.append(log.log_end_offset)

    async with brokers(tmp_path, 1, 2) as found:
        await found.create("t", 2)
        await found.stop(2)
        leader = await found.leader("t")
        await fill(leader, "t")
        await tier(found, "t")
        monkeypatch.setattr(partitions, "plan_restore", hold)
        monkeypatch.setattr(Partitions, "start_at_tier", noted)
        again = await found.start(2)
        await asyncio.wait_for(held.wait(), 60)
        epoch = found.image("t").leader_epoch
        await leader.node.membership.controller.bump_leader_epochs([key_of(leader, "t")])
        await until(lambda: again.node.partitions.table.get("t", 0).leader_epoch > epoch)  # type: ignore[union-attr]
        opened.set()
        await until(lambda: ends)
        assert ends[0] == 0, "what was begun in an older leader epoch is dropped"
        await until(lambda: 2 in found.image("t").isr)
        assert again.log("t").local_log_start_offset == END


@pytest.mark.ci
async def test_records_are_deleted_when_the_replicas_in_sync_begin_there(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, 2) as found:
        for topic, enable in (("t", "true"), ("u", "false")):
            await found.create(topic, 2, local_retention_ms="-2", remote_storage_enable=enable)
            leader = await found.leader(topic)
            (follower,) = await found.followers(topic)
            await fill(leader, topic, 2)
            await until(lambda topic=topic: len(found.image(topic).isr) == 2)
            assert await delete(leader, topic, 15) == (0, 15)
            assert follower.log(topic).log_start_offset == 15
            assert await delete(leader, topic, 15) == (0, 15)
            # A follower that does not fetch does not learn of it.
            follower.node.followers.link.fetch = never
            await asyncio.sleep(0)
            code, start = await delete(leader, topic, 18, timeout_ms=1500)
            assert (code, start) == (int(ErrorCode.REQUEST_TIMED_OUT), -1)
            assert leader.log(topic).log_start_offset == 18
            del follower.node.followers.link.fetch
            await until(lambda topic=topic, follower=follower: follower.log(topic).log_start_offset == 18, 60)


STEPS = [(entry, durable) for entry in (1, 2, 3) for durable in (False, True)]
"""Where a leader dies in an upload: before its seal, COPY_STARTED or COPY_FINISHED is durable, or after, before it knows."""


class DiesWithEntry:
    """Lets a broker stand still with an entry of the manifest of some topics, each at its step."""

    def __init__(self, broker: RunningBroker, steps: dict[str, tuple[int, bool]]) -> None:
        self._steps = {str(key_of(broker, topic).topic_id): step for topic, step in steps.items()}
        self._put = broker.node._around.store.put_if_absent
        self._seen: dict[str, int] = {}
        self.standing: set[str] = set()
        self.release = asyncio.Event()
        broker.node._around.store.put_if_absent = self.put_if_absent

    async def put_if_absent(self, key: str, data: bytes, *args: Any, **more: Any) -> Any:
        topic_id = next((one for one in self._steps if one in key and "/log/" in key), None)
        if topic_id is None:
            return await self._put(key, data, *args, **more)
        entry, durable = self._steps[topic_id]
        self._seen[topic_id] = self._seen.get(topic_id, 0) + 1
        if self._seen[topic_id] < entry:
            return await self._put(key, data, *args, **more)
        if durable and self._seen[topic_id] == entry:
            await self._put(key, data, *args, **more)
        self.standing.add(topic_id)
        await self.release.wait()
        return await self._put(key, data, *args, **more)


@pytest.mark.ci
async def test_t6_a_leader_dies_at_each_step_of_an_upload(tmp_path: Path) -> None:
    """The next leader finishes or withdraws the copy, and no record is lost, doubled, or tiered twice (INV-4)."""
    async with brokers(tmp_path, 1, 2) as found:
        dying: list[str] = []
        for number in range(4 * len(STEPS)):
            await found.create(f"t{number}", 2, segment_bytes="1048576")
            if await found.leader(f"t{number}") is found.running[2]:
                dying.append(f"t{number}")
            if len(dying) == len(STEPS):
                break
        steps = dict(zip(dying, STEPS, strict=True))
        old = found.running[2]
        standing = DiesWithEntry(old, steps)
        old.node.remote_log_manager._copier._copies = asyncio.Semaphore(len(STEPS))
        for topic in steps:
            await fill(old, topic, 2)
            await until(lambda topic=topic: old.log(topic).high_watermark == 20)
            old.log(topic).roll()
        old.node.remote_log_manager.kick()
        await until(lambda: len(standing.standing) == len(STEPS))
        await old.kill()
        new = found.running[1]
        tiering = new.node.remote_log_manager
        for topic, step in steps.items():
            await until(lambda topic=topic: new.node.partitions.table.led(topic, 0) is not None, 60)
            key = key_of(new, topic)
            await until(lambda key=key: tiering.manifest_of(key) is not None)
            manifest = tiering.manifest_of(key)
            assert manifest is not None
            await fill(new, topic, 2, 2)
            assert await read_all(new, topic, 40) == [0, 10, 20, 30], step
            await tier_everything(new, topic)
            assert manifest.state.pending_copies() == []
            await until(lambda topic=topic: new.log(topic).local_log_start_offset == 40)
            assert await read_all(new, topic, 40) == [0, 10, 20, 30], step
            covered = [(one.base_offset, one.end_offset) for one in manifest.finished]
            assert covered[0][0] == 0
            assert [end for _, end in covered[:-1]] == [base for base, _ in covered[1:]]
            assert covered[-1][1] == 40
            named = {manifest.object_key(one) for one in manifest.entries}
            there = await new.store.list_objects(layout.data_prefix(*key))
            assert {one.key for one in there} <= named, step
            assert not [one for one in tiering.status() if one.topic == topic and one.faults]


@pytest.mark.ci
async def test_t2_the_leader_after_a_clean_stop_needs_no_store(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, 2) as found:
        topic = await found.create_led_by(2, 2)
        old, new = found.running[2], found.running[1]
        await fill(old, topic, 2)
        await tier(found, topic)
        await until(lambda: view(new, topic) is not None and view(new, topic).tiered_end == 20)
        await until(lambda: len(found.image(topic).isr) == 2)
        away = Away(new, str(key_of(new, topic).topic_id))
        await found.stop(2)
        await until(lambda: new.node.partitions.table.led(topic, 0) is not None)
        async with talk(new.port) as client:
            assert await produce(client, topic, batch(10)) == [20]
        assert new.node.remote_log_manager.manifest_of(key_of(new, topic)) is None, "it waits for the store"
        away.over()
        # Tiered records are read by what it knew as a follower, until it has read the manifest.
        assert await read_all(new, topic, 30) == [0, 10, 20]


async def test_t2_an_unclean_leader_takes_no_record_before_it_has_read_the_manifest(tmp_path: Path) -> None:
    """It lacks what the last leader tiered, and would give the offsets of those records to others."""
    async with brokers(tmp_path, 1, 2) as found:
        topic = await found.create_led_by(2, 2, unclean_leader_election_enable="true")
        old, new = found.running[2], found.running[1]
        await fill(old, topic, 2)
        await until(lambda: new.log(topic).log_end_offset == 20)
        new.node.followers.link.fetch = never
        led = old.node.partitions.table.led(topic, 0)
        assert led is not None
        assert led.counting is not None
        led.counting._lag_ms_max, led.counting._deadline_ms = 500, 0
        await until(lambda: len(found.image(topic).isr) == 1, 90)
        await fill(old, topic, 2, 2)
        await tier(found, topic)
        away = Away(new, str(key_of(new, topic).topic_id))
        await old.kill()
        await until(lambda: found.image(topic).leader == 1, 60)
        assert found.image(topic).recovering
        await away.asked()
        assert new.node.partitions.table.led(topic, 0) is None
        assert new.log(topic).log_end_offset == 20
        away.over()
        await until(lambda: new.node.partitions.table.led(topic, 0) is not None, 60)
        async with talk(new.port) as client:
            assert await produce(client, topic, batch(10)) == [40]
        assert await read_all(new, topic, 50) == [0, 10, 20, 30, 40]


@pytest.mark.ci
async def test_a3_a_replica_cuts_away_what_an_unclean_election_has_given_up(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, 2) as found:
        topic = await found.create_led_by(2, 2, remote_storage_enable="false", unclean_leader_election_enable="true")
        old, new = await found.leader(topic), (await found.followers(topic))[0]
        node_id = old.node.config.node_id
        await fill(old, topic, 2)
        await until(lambda: new.log(topic).log_end_offset == 20)
        fetch, new.node.followers.link.fetch = new.node.followers.link.fetch, never
        led = old.node.partitions.table.led(topic, 0)
        assert led is not None
        assert led.counting is not None
        led.counting._lag_ms_max, led.counting._deadline_ms = 500, 0
        await until(lambda: len(found.image(topic).isr) == 1, 90)
        await fill(old, topic, 2, 2)
        assert old.log(topic).high_watermark == 40
        await found.stop(node_id)
        await until(lambda: new.node.partitions.table.led(topic, 0) is not None, 60)
        new.node.followers.link.fetch = fetch
        assert found.image(topic).unclean_epoch == found.image(topic).leader_epoch
        await fill(new, topic, 1, 9)
        again = await found.start(node_id)
        await until(lambda: len(found.image(topic).isr) == 2, 60)
        assert again.log(topic).log_end_offset == new.log(topic).log_end_offset == 30
        assert again.node.partitions.table.given_up == 20
        assert any("20 offsets of them were committed" in line for line in again.lines)
        assert not again.node.partitions.table.offline
        assert await read_all(new, topic, 30) == [0, 10, 20]


@pytest.mark.ci
async def test_t2_a_leader_that_does_not_know_its_log_start_reads_the_manifest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed before a checkpoint told, and would call its first local record the start of the log."""
    async with brokers(tmp_path, 1, 2) as found:
        await found.create("t", 2)
        old = await found.leader("t")
        node_id = old.node.config.node_id
        await fill(old, "t")
        await tier(found, "t")
        await until(lambda: old.log("t").local_log_start_offset == END)
        await found.stop(node_id)
        data = Path(old.node.config.data_dir)
        for name in (CLEAN_SHUTDOWN_FILE, STATE_FILE, LOG_STARTS_FILE):
            (data / name).unlink(missing_ok=True)  # a killed broker has not written them
        shutil.rmtree(data / ".firn" / "manifests")
        monkeypatch.setattr(TierViews, "ask", never)
        await until(lambda: len(found.image("t").isr) == 1)
        again = await found.start(node_id)
        await until(lambda: len(found.image("t").isr) == 2, 60)
        assert again.log("t").log_start_offset == END
        await again.node.logs.checkpoint()
        assert b"t 0" not in (data / LOG_STARTS_FILE).read_bytes(), "what is assumed is not known at the next start"
        away = Away(again, str(key_of(again, "t").topic_id))
        await lead(found.any, "t", node_id)
        await until(lambda: found.image("t").leader == node_id)
        await away.asked()
        assert again.node.partitions.table.led("t", 0) is None
        away.over()
        await until(lambda: again.node.partitions.table.led("t", 0) is not None)
        assert again.log("t").log_start_offset == 0
        assert await read_all(again, "t", END) == list(range(0, END, 10))


async def test_a_leader_that_is_replaced_while_it_uploads_does_not_finish_its_copy(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, 2) as found:
        await found.create("t", 2)
        old = await found.leader("t")
        (new,) = await found.followers("t")
        held = DiesWithEntry(old, {"t": (3, False)})  # the object is there, and COPY_FINISHED is not
        await fill(old, "t", 2)
        await until(lambda: len(found.image("t").isr) == 2 and old.log("t").high_watermark == 20)
        old.log("t").roll()
        old.node.remote_log_manager.kick()
        await until(lambda: held.standing)
        await lead(old, "t", new.node.config.node_id)
        await until(lambda: new.node.partitions.table.led("t", 0) is not None)
        tiering = new.node.remote_log_manager
        await until(lambda: tiering.manifest_of(key_of(new, "t")) is not None)
        held.release.set()
        await until(lambda: not old.node.remote_log_manager._leaving)
        manifest = tiering.manifest_of(key_of(new, "t"))
        assert manifest is not None
        assert manifest.tiered_end == 20, "the new leader has finished the copy"
        await fill(new, "t", 4, 2)
        await tier(found, "t")
        await until(lambda: new.log("t").local_log_start_offset == 60)
        assert await read_all(new, "t", 60) == list(range(0, 60, 10))
        there = await new.store.list_objects(layout.data_prefix(*key_of(new, "t")))
        assert {one.key for one in there} == {manifest.object_key(one) for one in manifest.finished}
        # The old leader follows, and learns the tier from the new one.
        await until(lambda: view(old, "t") is not None and view(old, "t").tiered_end == 60)
        await until(lambda: old.log("t").local_log_start_offset > 0)
        assert not old.ended.is_set()


async def test_a_follower_reads_what_is_in_the_tier_only(tmp_path: Path) -> None:
    async with brokers(tmp_path, 1, 2) as found:
        await found.create("t", 2)
        leader = await found.leader("t")
        (follower,) = await found.followers("t")
        await fill(leader, "t")
        await tier(found, "t")
        await until(lambda: follower.log("t").local_log_start_offset > 0)
        await until(lambda: follower.log("t").high_watermark == END)
        reads, log = follower.node.context.reads, follower.log("t")
        data = b""
        at = 0
        while at < END:
            read = await reads.read_when_ready(log, at, 1 << 20, end_offset=END, committed=True)
            if not read.ranges:
                assert isinstance(read.lacks, Awaited)
                woken = asyncio.Event()
                read.lacks.add(woken.set)
                await asyncio.wait_for(woken.wait(), 60)
                continue
            at = read.end_offset
            data += await reads.take(read)
        assert [one.base_offset for one in headers(data)] == list(range(0, END, 10))
        asked = TierStatusRequest(["t"], replicas=True)
        async with talk(follower.port) as client:
            told = unpack(TierStatusResponse, await client.ask(ApiKey.FIRN_TIER_STATUS, 0, pack(asked)))
            plain = unpack(
                TierStatusResponse, await client.ask(ApiKey.FIRN_TIER_STATUS, 0, pack(TierStatusRequest(["t"])))
            )
        (one,) = told.partitions
        assert (one.role, one.state, one.leader) == ("follower", FOLLOWING, leader.node.config.node_id)
        assert (one.tiered_end_offset, one.log_end_offset, one.remote_bytes) == (END, END, 0)
        assert plain.partitions == []


@pytest.mark.ci
async def test_followers_of_untiered_topics_follow_the_log_start_of_retention(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        found = Brokers(tmp_path, stack)
        for node_id in (1, 2):
            await found.start(node_id, log_retention_check_interval_ms=100)
        for topic, policy in (("plain", "delete"), ("both", "compact,delete")):
            await found.create(
                topic,
                2,
                remote_storage_enable="false",
                cleanup_policy=policy,
                retention_ms="-1",
                local_retention_ms="-2",
            )
            leader = await found.leader(topic)
            (follower,) = await found.followers(topic)
            async with talk(leader.port) as client:
                await produce(client, topic, *[keyed(n) for n in range(3)])
            log, followed = leader.log(topic), follower.log(topic)
            await until(lambda log=followed: log.high_watermark == 3)
            followed.roll()
            assert followed.log_start_offset == 0
            await replace_configs(
                found.running[1].node.membership.controller,
                2,
                topic,
                {**TIERED, "remote.storage.enable": "false", "cleanup.policy": policy, "retention.ms": "1"},
            )
            await until(lambda log=log: log.log_start_offset == 3)
            await until(lambda log=followed: (log.log_start_offset, log.local_log_start_offset) == (3, 3))


@pytest.mark.ci
async def test_t12_a_broker_that_has_lost_its_disk_goes_on_at_the_tiered_end(tmp_path: Path) -> None:
    """It is elected although it may lack records; those in the tier it does not lose, and their offsets it does not give again."""
    async with brokers(tmp_path, 1, 2) as found:
        topic = await found.create_led_by(2, 1, unclean_leader_election_enable="true")
        await fill(found.running[2], topic, 2)
        await tier(found, topic)
        await fill(found.running[2], topic, 1, 2)
        await found.stop(2)
        await until(lambda: found.image(topic).leader < 0)
        shutil.rmtree(tmp_path / "broker-2" / "data")
        again = await found.start(2)
        await until(lambda: again.node.partitions.table.led(topic, 0) is not None, 60)
        async with talk(again.port) as client:
            assert await produce(client, topic, batch(10)) == [20]
        assert await read_all(again, topic, 30) == [0, 10, 20]


async def lead(broker: RunningBroker, topic: str, node_id: int) -> None:
    """Make an in-sync replica the leader, by making it the preferred one."""
    replicas = broker.node.cluster.image.topics_by_name[topic].partitions[0].replicas
    await move(broker, topic, node_id, *[one for one in replicas if one != node_id])
    await until(lambda: broker.node.cluster.image.topics_by_name[topic].partitions[0].replicas[0] == node_id)
    asked = ElectLeadersRequest(
        election_type=0, topic_partitions=[TopicPartitions(topic=topic, partitions=[0])], timeout_ms=30_000
    )
    async with talk(broker.port) as client:
        answer = await client.ask(ApiKey.ELECT_LEADERS, 2, asked)
    assert not answer.error_code, answer


class Away:
    """The store does not answer one broker for keys with ``part`` in them."""

    def __init__(self, broker: RunningBroker, part: str) -> None:
        self._part = part
        self._over = False
        self._met = asyncio.Event()
        store = broker.node._around.store
        for name in ("get", "get_range", "list_objects", "put_if_absent"):
            setattr(store, name, self._refusing(getattr(store, name)))

    def _refusing(self, call: Any) -> Any:
        async def refuse(key: str, *args: Any, **more: Any) -> Any:
            if not self._over and self._part in key:
                self._met.set()
                raise StorageUnavailable("the store is away")
            return await call(key, *args, **more)

        return refuse

    async def asked(self) -> None:
        """Wait until it was asked and has not answered."""
        await asyncio.wait_for(self._met.wait(), 60)

    def over(self) -> None:
        self._over = True


async def never(*_: Any) -> Any:
    raise BrokerUnavailable("cut")


def keyed(number: int) -> bytes:
    return build_batch([(1_700_000_000_000, b"k%d" % number, b"v" * 100, ())])


async def delete(broker: RunningBroker, topic: str, offset: int, timeout_ms: int = 30_000) -> tuple[int, int]:
    """Error code and new start that DeleteRecords is answered with."""
    asked = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(topic, [DeleteRecordsPartition(0, offset)])], timeout_ms=timeout_ms
    )
    async with talk(broker.port) as client:
        answer = await client.ask(ApiKey.DELETE_RECORDS, 2, asked)
    found = answer.topics[0].partitions[0]
    return found.error_code, found.low_watermark


async def move(broker: RunningBroker, topic: str, *node_ids: int) -> None:
    """Make these brokers the replicas (KIP-455)."""
    asked = AlterPartitionReassignmentsRequest(
        timeout_ms=30_000,
        topics=[ReassignableTopic(topic, [ReassignablePartition(partition_index=0, replicas=list(node_ids))])],
    )
    async with talk(broker.port) as client:
        answer = await client.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, asked)
    assert not answer.error_code, answer
    assert not answer.responses[0].partitions[0].error_code, answer
