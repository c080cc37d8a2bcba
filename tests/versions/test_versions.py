"""What the version before clusters of several brokers wrote is opened and served, and refused by it afterwards (ADR 0023)."""

from __future__ import annotations

import asyncio
import tarfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from app.core.errors import CorruptionError
from app.metadata.changes.features import FeatureAsked
from app.metadata.image import draft
from app.metadata.image.records import WalStoreClusterRecord
from app.metadata.log.log_format import ValueDecoder
from tests.support.broker import RunningBroker
from tests.support.changing import update_features
from tests.support.several import broker_on, image_of, unfenced
from tests.support.waiting import until
from tests.versions.what import ABORTED, COMPACTED, GROUP, OFFSETS, TIERED, TOPICS, TRANSACTIONAL, records

ARCHIVE = Path(__file__).parent / "one_broker.tar.xz"


@pytest.fixture(params=["stopped", "killed"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the old broker's data in ``b1/data``, and its bucket in ``store``."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    (tmp_path / "b1").mkdir()
    (tmp_path / request.param / "data").rename(tmp_path / "b1" / "data")
    (tmp_path / request.param / "store").rename(tmp_path / "store")
    return tmp_path


def read_all(bootstrap: str) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """``(offset, value)`` of all that is committed, by topic and partition."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "check",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
    }
    consumer = Consumer(settings)
    found: dict[tuple[str, int], list[tuple[int, bytes]]] = {
        (topic, partition): [] for topic, (count, _) in TOPICS.items() for partition in range(count)
    }
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in found])
        open_ends = set(found)
        end_s = time.monotonic() + 120
        while open_ends:
            assert time.monotonic() < end_s, open_ends
            for message in consumer.consume(1000, 0.5):
                key = (str(message.topic()), int(message.partition() or 0))
                if message.error() is not None:
                    open_ends.discard(key)
                else:
                    found[key].append((int(message.offset() or 0), bytes(message.value() or b"")))
    finally:
        consumer.close()
    return found


def offsets(bootstrap: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": GROUP})
    try:
        asked = [TopicPartition(TIERED, partition) for partition in OFFSETS]
        return {one.partition: one.offset for one in consumer.committed(asked, timeout=30)}
    finally:
        consumer.close()


async def check(broker: RunningBroker) -> None:
    """All that the old broker acknowledged is there."""
    found = await asyncio.to_thread(read_all, broker.bootstrap)
    for (topic, partition), got in found.items():
        sent = [value for _, value in records(topic, partition)]
        if topic == COMPACTED:
            newest = {key: (offset, value) for offset, (key, value) in enumerate(records(topic, partition))}
            assert sorted(newest.values()) == [one for one in got if one in newest.values()]
            assert len(got) < len(sent), "it was compacted"
        elif topic == TRANSACTIONAL:
            assert [value for _, value in got] == [value for index, value in enumerate(sent) if index not in ABORTED]
        else:
            assert got == list(enumerate(sent)), (topic, partition)
    assert await asyncio.to_thread(offsets, broker.bootstrap) == OFFSETS


@asynccontextmanager
async def one(path: Path, **more: Any) -> AsyncIterator[RunningBroker]:
    async with broker_on(path, "b1", node_id=1, **more) as broker:
        yield broker


@pytest.mark.ci
async def test_it_opens_and_serves_without_a_hands_turn(old: Path) -> None:
    for _ in range(2):
        async with one(old) as broker:
            assert broker.node.cluster.image.level == 0
            assert not broker.node.partitions.table.offline
            await check(broker)


@pytest.mark.ci
async def test_it_becomes_a_cluster_that_others_join_and_the_old_version_refuses_it(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one(old) as broker:
        await update_features(broker.node.membership.controller, [FeatureAsked("firn.version", 1)])
        await check(broker)
    async with one(old) as first, broker_on(old, "b2") as second:
        await until(lambda: unfenced(first) == [1, 2])
        assert second.node.config.node_id == 2
        await check(first)
    monkeypatch.setattr(
        draft, "CLUSTERS", ValueDecoder(WalStoreClusterRecord, 1, "cluster")
    )  # what the old version knows
    with pytest.raises(CorruptionError, match="format version 2, a format version from the future"):
        await image_of(old)
