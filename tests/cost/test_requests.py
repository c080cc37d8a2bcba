"""The model's requests against the counters of a broker that really produced, tiered, replayed and expired."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from app.client.cluster import ClusterClient
from app.client.consumer import Consumer
from app.core.limits import MIB
from app.core.metrics import Registry
from app.core.units import Offset, PartitionIndex, TopicIdPartition, TopicPartition
from app.cost import requests
from app.metadata.controller import desk
from app.metadata.peers import liveness
from app.objectstore.memory import MemoryStore
from app.objectstore.metered import MeteredStore
from app.records.builder import build_batch
from tests.support.broker import RunningBroker, running_broker

BATCH_BYTES = 500_000
SEGMENT_BYTES = 10 * MIB
BATCHES = 130
"""Six segments of 21 batches, and a few in the active one."""
DEADLINE_S = 60.0


def _counted(registry: Registry) -> Counter[str]:
    """Operations on the store by name, whatever came of them."""
    found: Counter[str] = Counter()
    for sample in registry.samples():
        if sample.name == "firn_store_requests_total":
            found[dict(sample.labels)["operation"]] += int(sample.value)
    return found


def _since(registry: Registry, before: Counter[str]) -> Counter[str]:
    """What was asked since, but for the heartbeats, which come when they come."""
    counted = _counted(registry) - before
    for operation in requests.heartbeats(requests.BEAT_INTERVAL_S):
        del counted[operation]
    return counted


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


def _fill(broker: RunningBroker, topic: str) -> None:
    log = broker.log(topic)
    rng = random.Random(3)
    for _ in range(BATCHES):
        batch = build_batch([(1, None, rng.randbytes(BATCH_BYTES), ())])
        log.append_as_leader(memoryview(bytearray(batch)), now_ms=1)


async def _replay(broker: RunningBroker, topic: str, end: int) -> None:
    partition = TopicPartition(topic, PartitionIndex(0))
    async with (
        ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster,
        Consumer(cluster) as consumer,
    ):
        consumer.assign({partition: Offset(0)})
        async for batch in consumer.batches():
            if batch.header.base_offset + 1 >= end:
                return


async def test_what_a_broker_asks_of_its_store_is_what_the_model_says(tmp_path: Path) -> None:
    registry = Registry()
    store = MeteredStore(MemoryStore(), registry)
    async with running_broker(tmp_path, store=store, remote_log_manager_task_interval_ms=200) as broker:
        await broker.create_topic(
            "counted",
            segment_bytes=str(SEGMENT_BYTES),
            local_retention_ms="1",
            retention_ms="-1",
            firn_tier_compression="none",
            firn_remote_delete_delay_ms="0",
        )
        tier, log = broker.node.remote_log_manager, broker.log("counted")
        key = TopicIdPartition(log.topic_id, log.partition)
        await _until(lambda: tier.manifest_of(key) is not None)
        manifest = tier.manifest_of(key)
        assert manifest is not None

        before = _counted(registry)
        _fill(broker, "counted")
        tiered_end = log.segments()[-1].base_offset
        await _until(lambda: log.local_log_start_offset == tiered_end)
        copied = tuple(manifest.finished)
        assert len(copied) == 6
        model = requests.add(*(requests.copy_segment(entry.size_bytes, backlog=True) for entry in copied))
        # Once in the life of a leader: its seal, and the start of the first copy.
        assert _since(registry, before) == model | {"put_if_absent": model["put_if_absent"] + 2}

        before = _counted(registry)
        await _replay(broker, "counted", tiered_end)
        model = requests.add(*(requests.replay_segment(entry.raw_bytes) for entry in copied))
        assert _since(registry, before) == model

        before = _counted(registry)
        await tier.advance_log_start(log.topic_id, log.partition, tiered_end)
        await _until(lambda: not manifest.finished and not manifest.state.pending_deletes())
        # The log start became durable in an entry of its own, as DeleteRecords asks; expiry puts it into DELETE_STARTED's.
        model = requests.expire_segments(len(copied), together=len(copied))
        assert _since(registry, before) == model | {"put_if_absent": model["put_if_absent"] + 1}


async def test_an_idle_broker_asks_for_what_the_model_says(tmp_path: Path) -> None:
    registry = Registry()
    store = MeteredStore(MemoryStore(), registry)
    async with running_broker(tmp_path, store=store) as broker:
        before = _counted(registry)
        await broker.node.membership.registration.heartbeat()
        assert _counted(registry) - before == Counter(requests.heartbeats(requests.BEAT_INTERVAL_S))


def test_a_small_segment_is_put_at_once_and_a_larger_one_in_parts() -> None:
    assert requests.copy_segment(requests.PART_BYTES) == {"put_if_absent": 3}
    assert requests.copy_segment(requests.PART_BYTES + 1) == {
        "put_if_absent": 2,
        "begin_upload": 1,
        "put_part": 2,
        "complete": 1,
    }


def test_large_batches_leave_room_in_their_chunks() -> None:
    assert requests.replay_segment(16 * MIB) == {"get_range": 5}
    assert requests.replay_segment(16 * MIB, batch_bytes=3 * MIB) == {"get_range": 7}
    assert requests.replay_segment(16 * MIB, batch_bytes=8 * MIB) == {"get_range": 3}


def test_deletions_are_free_and_everything_else_is_billed_in_one_of_two_classes() -> None:
    assert requests.billed({"put_part": 3, "list_objects": 1, "get_range": 5, "delete_many": 9}) == (4, 5)


def test_the_heartbeats_of_a_cluster_are_those_that_the_members_send() -> None:
    assert requests.CONFIRM_INTERVAL_S == desk.CONFIRM_S
    assert requests.BEAT_INTERVAL_S * 1000 == liveness.BEAT_INTERVAL_MS
    # What loadtests count of three brokers at rest, in an hour: 1,079 put, 719 list_objects, 2,398 get.
    assert requests.heartbeats(3600, 3) == {"put": 1080, "list_objects": 720, "get": 2400}
