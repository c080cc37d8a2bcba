"""A topic that is deleted on a cluster: every broker stops to write there, and the controller lets the cluster forget it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pytest

from app.broker.partitions.partitions import Partitions
from app.core.errors import CorruptionError, ErrorCode, RequestRejected, StorageUnavailable
from app.core.units import PartitionIndex, TopicIdPartition
from app.hot.log import PartitionLog
from app.hot.manager import LogManager
from app.metadata.changes.topic_changes import Planned
from app.metadata.image.draft import ImageDraft
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.changing import delete_topic
from tests.support.several import cluster_on, member, unfenced
from tests.support.waiting import until


async def make_and_delete(brokers: list[RunningBroker]) -> None:
    controller = brokers[0].node.membership.controller
    assert controller.active
    await controller.create_topic("t", 6, {})
    await until(lambda: all(broker.node.cluster.image.topic("t") is not None for broker in brokers))
    await delete_topic(controller, "t")


async def test_a_deletion_of_a_topic_is_no_fault_of_any_broker(tmp_path: Path) -> None:
    async with cluster_on(tmp_path) as brokers:
        for _ in range(3):
            await make_and_delete(brokers)
            await until(lambda: not any(broker.node.cluster.image.deleting for broker in brokers))
        assert [line for broker in brokers for line in broker.lines if "delete" in line or "over after" in line] == []


async def test_a_deletion_that_one_controller_has_begun_is_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_on(tmp_path, broker_session_timeout_ms=1_000) as brokers:
        begun: list[UUID] = []

        def fails(_draft: ImageDraft, topic_id: UUID) -> Planned[None]:
            begun.append(topic_id)
            raise RequestRejected(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "This broker makes no changes for now.")

        monkeypatch.setattr("app.broker.partitions.sweeping.finish_topic_deletion", fails)
        await make_and_delete(brokers)
        await until(lambda: begun and all(broker.node.cluster.image.deleting for broker in brokers))
        monkeypatch.undo()
        await brokers[0].kill()
        await until(lambda: not any(broker.node.cluster.image.deleting for broker in brokers[1:]))


MANY = 30


async def test_a_deleted_topic_is_not_found_at_once_and_its_logs_go_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.broker.partitions.partitions.BROUGHT_AT_ONCE", 4)
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", MANY)
        table, logs = broker.node.partitions.table, broker.node.logs
        before = table.led("t", MANY - 1)
        assert before is not None
        topic_id = before.topic_id
        seen: list[tuple[int, int]] = []
        delete = LogManager.delete

        def watched(self: LogManager, topic: str, partition: int) -> bool:
            seen.append((sum(table.get("t", one) is not None for one in range(MANY)), partition))
            return delete(self, topic, partition)

        monkeypatch.setattr(LogManager, "delete", watched)
        await delete_topic(broker.node.membership.controller, "t")
        left = sum(log.topic == "t" for log in logs.logs())
        assert left > 0, "the answer does not wait for the logs"
        answer = await client.produce(8, [("t", [(MANY - 1, batch(1))])])
        assert answer.responses[0].partition_responses[0].error_code == 3
        await broker.node.partitions.wait_detached(topic_id)
        assert all(
            broker.node.remote_log_manager.manifest_of(before.key._replace(partition=one)) is None
            for one in range(MANY)
        )  # type: ignore[arg-type]
        await until(lambda: not any(log.topic == "t" for log in logs.logs()))
        assert [found for found, _ in seen] == [0] * MANY, "the table had none of them any more"


async def test_a_topic_that_is_made_again_while_logs_of_the_old_one_go_has_only_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.broker.partitions.partitions.BROUGHT_AT_ONCE", 4)
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        controller, logs = broker.node.membership.controller, broker.node.logs
        await broker.create_topic("t", MANY)
        everywhere = [(index, batch(3)) for index in range(MANY)]
        answer = await client.produce(8, [("t", everywhere)])
        assert {one.error_code for one in answer.responses[0].partition_responses} == {0}
        await delete_topic(controller, "t")
        assert any(log.topic == "t" for log in logs.logs())
        made = await controller.create_topic("t", MANY)
        answer = await client.produce(8, [("t", everywhere)])
        # A record that is acknowledged now is one of the new topic.
        assert {(one.error_code, one.base_offset) for one in answer.responses[0].partition_responses} == {(0, 0)}
        assert {log.topic_id for log in logs.logs() if log.topic == "t"} == {made.topic_id}
        await until(lambda: broker.node.partitions.has_followed(made.topic_id))
        assert [broker.log("t", index).log_end_offset for index in range(MANY)] == [3] * MANY


async def test_logs_of_a_deleted_topic_that_cannot_be_deleted_are_deleted_later_and_never_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        controller, logs = broker.node.membership.controller, broker.node.logs
        await broker.create_topic("t", 3)
        with monkeypatch.context() as patch:

            def fails(self: LogManager, topic: str, partition: int) -> bool:
                raise StorageUnavailable("the disk does not answer")

            patch.setattr(LogManager, "delete", fails)
            await delete_topic(controller, "t")
            answer = await client.produce(8, [("t", [(1, batch(1))])])
            assert answer.responses[0].partition_responses[0].error_code == 3
            assert len([log for log in logs.logs() if log.topic == "t"]) == 3
        await until(lambda: not any(log.topic == "t" for log in logs.logs()))
        assert any("the disk does not answer" in line for line in broker.lines)


HoldTurns = Callable[[], Callable[[], None]]


@pytest.fixture
def hold_turns(monkeypatch: pytest.MonkeyPatch) -> HoldTurns:
    """From the call on, topics that are made or changed have to wait for their turn. Returns: lets the turns begin."""

    def hold() -> Callable[[], None]:
        begin = asyncio.Event()
        give_way = Partitions.give_way

        async def waits(self: Partitions, over: Sequence[UUID]) -> list[UUID]:
            await begin.wait()
            return await give_way(self, over)

        def let() -> None:
            monkeypatch.setattr("app.broker.partitions.partitions.BROUGHT_AT_ONCE", 128)
            begin.set()

        monkeypatch.setattr(Partitions, "give_way", waits)
        monkeypatch.setattr("app.broker.partitions.partitions.BROUGHT_AT_ONCE", 0)
        monkeypatch.setattr("app.broker.partitions.partitions.WAITED_FOR_MAX", 0)
        return let

    return hold


async def test_a_partition_that_was_made_before_its_turn_goes_with_its_topic(
    tmp_path: Path, hold_turns: HoldTurns
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        controller, partitions = broker.node.membership.controller, broker.node.partitions
        let_turns_begin = hold_turns()
        first = await controller.create_topic("t", 10)
        assert [partitions.table.get("t", index) for index in range(10)] == [None] * 10, "their turn comes later"
        answer = await client.produce(8, [("t", [(5, batch(3))])])
        assert answer.responses[0].partition_responses[0].error_code == 0
        await delete_topic(controller, "t")
        assert partitions.table.get("t", 5) is None
        made = await controller.create_topic("t", 10)
        answer = await client.produce(8, [("t", [(5, batch(3))])])
        of_five = answer.responses[0].partition_responses[0]
        assert (of_five.error_code, of_five.base_offset) == (0, 0)
        assert broker.log("t", 5).topic_id == made.topic_id
        let_turns_begin()
        await until(lambda: partitions.has_followed(made.topic_id) and partitions.has_followed(first.topic_id))
        assert [broker.log("t", index).topic_id for index in range(10)] == [made.topic_id] * 10
        assert broker.log("t", 5).log_end_offset == 3


async def test_a_new_partition_that_was_made_before_its_turn_goes_with_its_topic(
    tmp_path: Path, hold_turns: HoldTurns
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        controller, partitions = broker.node.membership.controller, broker.node.partitions
        await broker.create_topic("t", 2)
        hold_turns()
        await controller.create_partitions("t", 10)
        answer = await client.produce(8, [("t", [(7, batch(3))])])
        assert answer.responses[0].partition_responses[0].error_code == 0
        await delete_topic(controller, "t")
        assert [partitions.table.get("t", index) for index in range(10)] == [None] * 10


async def test_a_partition_never_takes_over_the_log_of_an_older_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_broker(tmp_path) as broker, talk(broker.port) as client:
        controller, partitions = broker.node.membership.controller, broker.node.partitions
        older = await controller.create_topic("t", 3)
        answer = await client.produce(8, [("t", [(1, batch(3))])])
        assert answer.responses[0].partition_responses[0].error_code == 0
        old = partitions.table.led("t", 1)
        assert old is not None
        monkeypatch.setattr(partitions, "take_out", lambda topic_id: None)
        await delete_topic(controller, "t")
        assert partitions.table.get("t", 1) is old
        with monkeypatch.context() as patch:

            def fails(self: LogManager, topic: str, partition: int) -> bool:
                raise StorageUnavailable("the disk does not answer")

            patch.setattr(LogManager, "delete", fails)
            made = await controller.create_topic("t", 3)
            answer = await client.produce(8, [("t", [(0, batch(1))])])
            assert answer.responses[0].partition_responses[0].error_code == 56, (
                "the log of the older topic is in the way"
            )
        await until(lambda: partitions.has_followed(made.topic_id) and partitions.has_followed(older.topic_id))
        assert [broker.log("t", index).topic_id for index in range(3)] == [made.topic_id] * 3
        assert [broker.log("t", index).log_end_offset for index in range(3)] == [0] * 3
        assert broker.node.remote_log_manager.manifest_of(old.key) is None


class DamagedManifests:
    """The manifests that a broker reads from now on, which are damaged. It finds that out when it is let."""

    def __init__(self, partitions: Partitions, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading: set[tuple[UUID, int]] = set()
        """The partitions whose manifests are being read."""
        self.let = asyncio.Event()
        monkeypatch.setattr(partitions.manifests, "load", self._load)

    async def _load(self, log: PartitionLog, *_: object) -> NoReturn:
        key = log.topic_id, int(log.partition)
        self.reading.add(key)
        try:
            await self.let.wait()
        finally:
            self.reading.discard(key)
        raise CorruptionError("the entry is damaged")


async def test_a_partition_of_a_deleted_topic_that_cannot_be_opened_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold_turns: HoldTurns
) -> None:
    async with running_broker(tmp_path, new_level=1) as broker:
        controller, partitions = broker.node.membership.controller, broker.node.partitions
        manifests = DamagedManifests(partitions, monkeypatch)
        let_turns_begin = hold_turns()
        made = await controller.create_topic("t", 2)
        key = TopicIdPartition(made.topic_id, PartitionIndex(1))
        # In a later leader epoch a log that is made is that of a follower, which is opened.
        await controller.bump_leader_epochs([key])
        assert partitions.table.led("t", 1) is None
        await until(lambda: (key.topic_id, 1) in manifests.reading)
        await delete_topic(controller, "t")
        assert key in partitions.opener.opening, "what waits for it goes in turns"
        manifests.let.set()
        await until(lambda: not manifests.reading)
        let_turns_begin()
        await until(lambda: partitions.has_followed(made.topic_id))
        assert not broker.ended.is_set()
        assert [line for line in broker.lines if "t-1" in line] == []
        assert partitions.table.offline == {}


async def test_a_partition_of_a_deleted_topic_that_is_led_and_cannot_be_read_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hold_turns: HoldTurns
) -> None:
    async with member(tmp_path, 1) as broker:
        controller, partitions = broker.node.membership.controller, broker.node.partitions
        async with member(tmp_path, 2) as leaving:
            for one in (broker, leaving):
                await until(lambda one=one: unfenced(one) == [1, 2])
            made = await controller.create_topic("t", 4, {}, replication_factor=2)
            others = lambda: [one.index for one in leaving.node.partitions.table.all_led() if one.topic == "t"]  # noqa: E731
            await until(others)
            index = others()[0]
            topic = lambda: broker.node.cluster.image.topics_by_name["t"]  # noqa: E731
            await until(lambda: all(len(one.isr) == 2 for one in topic().partitions))
            tier = broker.node.remote_log_manager
            await until(lambda: all(tier.manifest_of(one.key) is not None for one in partitions.table.all_led()))
            manifests = DamagedManifests(partitions, monkeypatch)
        await until(lambda: (made.topic_id, index) in manifests.reading)
        assert partitions.table.led("t", index) is not None, "it leads before it has read the manifest"
        let_turns_begin = hold_turns()
        await delete_topic(controller, "t")
        await until(lambda: broker.node.cluster.image.topic("t") is None)
        manifests.let.set()
        await until(lambda: not manifests.reading)
        let_turns_begin()
        await until(lambda: partitions.has_followed(made.topic_id))
        assert not broker.ended.is_set()
        assert [line for line in broker.lines if f"t-{index} is offline" in line] == []
        assert partitions.table.offline == {}
