"""Changes that share one entry of the cluster log, as those do that come while an entry is being stored."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from app.core.errors import ErrorCode
from app.machine.files import PosixFileSystem
from app.metadata.changes.topic_changes import ConfigChange
from app.metadata.image.image import ImageDelta
from app.wire.config_resources import ConfigOperation
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.changing import alter_configs, delete_topic
from tests.support.leadership import produced
from tests.support.talking import produce
from tests.support.waiting import until

TOPICS = [f"t{number}" for number in range(8)]
"""So many that the sets of ids, which have no order, have both."""
BROKERS = 4


async def together(broker: RunningBroker, *changes: object) -> ImageDelta:
    """Make the changes while another is being stored. Returns: what the entry changed that they share."""
    entries: list[ImageDelta] = []
    broker.node.cluster.on_change(lambda _, delta: entries.append(delta))
    first = asyncio.create_task(broker.create_topic("first"))
    await asyncio.sleep(0)
    await asyncio.gather(*changes)  # type: ignore[call-overload]
    await first
    return entries[1]


async def test_topics_that_are_deleted_and_made_again_in_one_entry_take_records(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        for topic in TOPICS:
            await broker.create_topic(topic)
            await produce(client, topic, batch(3))
        controller = broker.node.membership.controller
        again = [
            change for topic in TOPICS for change in (delete_topic(controller, topic), controller.create_topic(topic))
        ]
        assert len((await together(broker, *again)).topics) == 2 * len(TOPICS)
        for topic in TOPICS:
            assert broker.log(topic).topic_id == broker.node.cluster.image.topics_by_name[topic].topic_id
            assert await produce(client, topic, batch(1)) == [0], "the offsets begin anew"


async def test_a_topic_that_is_deleted_beside_a_change_of_the_brokers_settings_is_gone(tmp_path: Path) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await produce(client, "t", batch(3))
        controller = broker.node.membership.controller
        retention = [ConfigChange("log.retention.ms", ConfigOperation.SET, "5000000")]
        entry = await together(broker, delete_topic(controller, "t"), alter_configs(controller, BROKERS, "", retention))
        assert entry.topics
        assert entry.broker_configs
        assert broker.node.logs.get("t", 0) is None
        assert (await produced(client, "t"))[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        await broker.create_topic("t")
        assert await produce(client, "t", batch(1)) == [0]


async def test_a_topic_whose_directory_cannot_be_renamed_is_served_no_more_and_made_anew_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t")
        await produce(client, "t", batch(3))
        old = broker.log("t")

        def full(self: PosixFileSystem, source: str, target: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as broken:
            broken.setattr(PosixFileSystem, "rename", full)
            await delete_topic(broker.node.membership.controller, "t")
            assert (await produced(client, "t"))[0] != ErrorCode.NONE
            assert broker.node.logs.get("t", 0) is old, "it is still to be deleted"
            making = asyncio.create_task(broker.create_topic("t"))
            await until(lambda: "t" in broker.node.cluster.image.topics_by_name)
            assert (await produced(client, "t"))[0] != ErrorCode.NONE
        await making
        await until(lambda: broker.node.partitions.table.led_log("t", 0) is not None)
        assert await produce(client, "t", batch(1)) == [0]
        assert broker.log("t") is not old
        assert len([name for name in (tmp_path / "data").iterdir() if name.name.startswith("t-0")]) == 2
