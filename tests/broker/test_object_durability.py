"""Topics with ``firn.durability=object`` on real brokers in one loop: what was acknowledged is in the bucket (ADR 0037)."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from app.broker.peers.control_link import KafkaControlLink
from app.broker.write_ahead import restore as write_ahead_restore
from app.broker.write_ahead import switching as durability_changes
from app.broker.write_ahead import write_ahead
from app.core.errors import BrokerUnavailable, ErrorCode, StorageUnavailable
from app.core.units import BrokerId
from app.hot.log import PartitionLog
from app.metadata.changes.broker_changes import fence_brokers
from app.metadata.image.image import BrokerImage
from app.metadata.image.records import OBJECT_LEVEL
from app.metadata.image.wal_ranges import PartitionDurability, WalId
from app.metadata.membership.member import ClusterMember
from app.metadata.peers.control import Heartbeat, HeartbeatAnswer
from app.wal.trimming import WalNeeds
from app.wire.apikeys import ApiKey
from app.wire.apis.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from tests.broker.object_topics import CONFIGS, alone, alter, create, led, objects, produce_count, records_read
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker
from tests.support.several import member, unfenced
from tests.support.talking import fetch_all, headers, tier_everything
from tests.support.waiting import until

RETRIED = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR)
"""What producers are told while the rule changes: each client tries again."""


async def test_what_is_acknowledged_is_in_the_bucket_and_readers_see_it_then(tmp_path: Path) -> None:
    async with alone(tmp_path) as broker:
        await create(broker, "t")
        assert objects(tmp_path) == []
        async with talk(broker.port) as client:
            assert await produce_count(client, 3) == (ErrorCode.NONE, 0)
            assert len(objects(tmp_path)) == 1
            assert await produce_count(client, 2) == (ErrorCode.NONE, 3)
        image = broker.node.cluster.image.topics_by_name["t"].partitions[0]
        assert image.durability is PartitionDurability.OBJECT
        assert broker.log("t").high_watermark == 5
        assert await records_read(broker, 5) == 5


async def test_requests_that_came_together_are_appended_together_and_an_error_of_one_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    append_run = PartitionLog.append_run

    def counted(log: PartitionLog, run: Any, *, now_ms: int) -> Any:
        results = append_run(log, run, now_ms=now_ms)
        if log.topic == "t":
            runs.append(len(results))
        return results

    monkeypatch.setattr(PartitionLog, "append_run", counted)
    async with alone(tmp_path) as broker:
        await create(broker, "t")
        producer = {"producer_id": 77, "producer_epoch": 0}
        async with talk(broker.port) as client:
            assert await produce_count(client, 2, **producer, base_sequence=0) == (ErrorCode.NONE, 0)
            sent = [batch(3, **producer, base_sequence=2), batch(1), batch(1, **producer, base_sequence=9), batch(4)]
            asked = [client.send_produce(9, [("t", [(0, one)])]) for one in sent]
            answers = [await client.answer(ApiKey.PRODUCE, 9) for _ in asked]
            assert [correlation_id for correlation_id, _ in answers] == asked
            results = [answer.responses[0].partition_responses[0] for _, answer in answers]
            assert [(one.error_code, one.base_offset) for one in results] == [
                (ErrorCode.NONE, 2),
                (ErrorCode.NONE, 5),
                (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
                (ErrorCode.NONE, 6),
            ]
        assert runs == [2]
        assert broker.log("t").high_watermark == 10
        await broker.kill()
    shutil.rmtree(tmp_path / "broker-1")
    async with alone(tmp_path, take_over=True) as broker:
        await led(broker, "t")
        assert broker.log("t").log_end_offset == await records_read(broker, 10) == 10


async def test_a_broker_whose_disk_is_lost_goes_on_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    sequence = 0
    end = 0
    for run in range(3):
        async with alone(tmp_path, take_over=run > 0) as broker:
            await (led(broker, "t", 2) if run else create(broker, "t", 2))
            async with talk(broker.port) as client:
                for _ in range(4):
                    fields = {"producer_id": 77, "producer_epoch": 0, "base_sequence": sequence}
                    assert await produce_count(client, 3, index=1, **fields) == (ErrorCode.NONE, end)
                    sequence, end = sequence + 3, end + 3
                # Whoever was not answered repeats; all five batches are known, also after the loss of the disk.
                repeated = {"producer_id": 77, "producer_epoch": 0, "base_sequence": sequence - 9}
                assert await produce_count(client, 3, index=1, **repeated) == (ErrorCode.NONE, end - 9)
            await broker.kill()
        shutil.rmtree(tmp_path / "broker-1")
    async with alone(tmp_path, take_over=True) as broker:
        await led(broker, "t", 2)
        async with talk(broker.port) as client:
            repeated = {"producer_id": 77, "producer_epoch": 0, "base_sequence": sequence - 12}
            assert await produce_count(client, 3, index=1, **repeated) == (ErrorCode.NONE, end - 12)
        log = broker.log("t", 1)
        assert (log.log_end_offset, log.high_watermark) == (end, end)
        assert log.leader_epochs()[0].epoch == 0


@pytest.mark.parametrize("wiped", [True, False])
async def test_tiered_and_untiered_records_are_one_log_after_a_loss(tmp_path: Path, wiped: bool) -> None:
    async with alone(tmp_path) as broker:
        await create(broker, "t")
        async with talk(broker.port) as client:
            for _ in range(4):
                await produce_count(client, 10, value=bytes(40_000))
            await tier_everything(broker, "t")
            for _ in range(3):
                assert (await produce_count(client, 10, value=bytes(4_000)))[0] is ErrorCode.NONE
        await broker.kill()
    if wiped:
        shutil.rmtree(tmp_path / "broker-1")
    async with alone(tmp_path, take_over=wiped) as broker:
        await led(broker, "t")
        assert broker.log("t").log_end_offset == 70
        assert await records_read(broker, 70) == 70
        async with talk(broker.port) as client:
            assert await produce_count(client, 1) == (ErrorCode.NONE, 70)


async def test_objects_are_deleted_when_everything_in_them_is_tiered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead, "ENDED_KEPT_S", 0.0)
    async with alone(tmp_path) as broker:
        await create(broker, "t")
        async with talk(broker.port) as client:
            for _ in range(70):
                assert (await produce_count(client, 10, value=bytes(1_000)))[0] is ErrorCode.NONE
            before = len(objects(tmp_path))
            assert before == 70
            await tier_everything(broker, "t")
            # Those stay that a taker may have to look at (J13), and the last one with the state of producers.
            await until(lambda: len(objects(tmp_path)) < 12)
            assert (await produce_count(client, 1))[0] is ErrorCode.NONE
        await broker.kill()
    shutil.rmtree(tmp_path / "broker-1")
    async with alone(tmp_path, take_over=True) as broker:
        await led(broker, "t")
        assert broker.log("t").log_end_offset == 701


async def test_logs_that_have_ended_are_deleted_though_partitions_that_go_on_write_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions of coordinators roll after a week. Each would hold back all logs that it was ever in, for takers to read."""
    monkeypatch.setattr(write_ahead, "ENDED_ROLL_S", 0.5)
    monkeypatch.setattr(write_ahead, "ROLLS_AT_ONCE", 2)
    async with alone(tmp_path) as broker:
        await create(broker, "t", 5)
        async with talk(broker.port) as client:
            for index in range(5):
                assert await produce_count(client, 3, index=index) == (ErrorCode.NONE, 0)
        await broker.kill()
    before = objects(tmp_path)
    shutil.rmtree(tmp_path / "broker-1")
    async with alone(tmp_path, take_over=True) as broker:
        await led(broker, "t", 5)
        async with talk(broker.port) as client:
            for index in range(5):
                assert await produce_count(client, 1, index=index) == (ErrorCode.NONE, 3)
        partitions = lambda: broker.node.cluster.image.topics_by_name["t"].partitions  # noqa: E731
        await until(lambda: all(len(one.wal_ranges) == 1 and one.wal_ranges[-1].is_open for one in partitions()))
        assert [broker.log("t", index).log_end_offset for index in range(5)] == [4] * 5
        assert before


@pytest.mark.parametrize("is_long", [False, True], ids=["short", "longer than wal.retention.bytes"])
async def test_a_producer_that_heard_no_answer_repeats_its_batches_though_all_is_tiered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_long: bool
) -> None:
    """The known limit (ADR 0037): where the log has to be cut, the footer of the last segment has the last batch only."""

    def batch_of(number: int) -> dict[str, int]:
        return {"producer_id": 77, "producer_epoch": 0, "base_sequence": number}

    looks: list[int] = []
    trim_end = WalNeeds.trim_end
    monkeypatch.setattr(WalNeeds, "trim_end", lambda *at: looks.append(trim_end(*at)) or looks[-1])
    settings = {"wal_retention_bytes": 1} if is_long else {}
    async with alone(tmp_path, **settings) as broker:
        await create(broker, "t")
        await create(broker, "u")
        async with talk(broker.port) as client:
            for number in range(5):
                assert await produce_count(client, 1, **batch_of(number)) == (ErrorCode.NONE, number)
            await tier_everything(broker, "t")
            first = objects(tmp_path)[0]
            for _ in range(20):
                await produce_count(client, 1, topic="u", value=bytes(100))
            await tier_everything(broker, "u")
            before = len(looks)
            await until(lambda: len(looks) > before + 2)
            await until(lambda: first.exists() is not is_long)
        await broker.kill()
    shutil.rmtree(tmp_path / "broker-1")
    async with alone(tmp_path, take_over=True) as broker:
        await led(broker, "t")
        async with talk(broker.port) as client:
            refused = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
            assert await produce_count(client, 1, **batch_of(0)) == (refused if is_long else (ErrorCode.NONE, 0))
            assert await produce_count(client, 1, **batch_of(4)) == (ErrorCode.NONE, 4)
            assert await produce_count(client, 1, **batch_of(5)) == (ErrorCode.NONE, 5)


async def test_records_that_were_deleted_up_to_an_offset_amid_a_batch_stay_so_after_a_loss(tmp_path: Path) -> None:
    """Kafka Streams deletes what it has read of its repartition topics. The next leader needs the whole batch all the same."""
    end = 0
    for start in (7, 20):
        async with alone(tmp_path, take_over=end > 0) as broker:
            await (led(broker, "t") if end else create(broker, "t"))
            async with talk(broker.port) as client:
                for _ in range(5):
                    assert await produce_count(client, 3) == (ErrorCode.NONE, end)
                    end += 3
                asked = DeleteRecordsTopic("t", [DeleteRecordsPartition(0, start)])
                answer = await client.ask(ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest([asked], 10_000))
                assert answer.topics[0].partitions[0].low_watermark == start
            await broker.kill()
        shutil.rmtree(tmp_path / "broker-1")
    async with alone(tmp_path, take_over=True) as broker:
        await led(broker, "t")
        log = broker.log("t")
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (20, end, end)
        async with talk(broker.port) as client:
            assert sum(header.record_count for header in headers(await fetch_all(client, "t", start=20, end=end))) == 12
            assert await produce_count(client, 1) == (ErrorCode.NONE, end)


async def test_a_clean_stop_and_start_keeps_everything_and_the_old_log_is_swept(tmp_path: Path) -> None:
    async with alone(tmp_path) as broker:
        await create(broker, "t")
        async with talk(broker.port) as client:
            await produce_count(client, 5)
    async with alone(tmp_path) as broker:
        await led(broker, "t")
        assert (broker.log("t").log_end_offset, broker.log("t").high_watermark) == (5, 5)
        async with talk(broker.port) as client:
            assert await produce_count(client, 1) == (ErrorCode.NONE, 5)


class CutLink(KafkaControlLink):
    """The way to the controller, on which no heartbeat comes through while it is cut."""

    cut = False

    async def heartbeat(self, to: BrokerImage, beat: Heartbeat) -> HeartbeatAnswer:
        if self.cut:
            raise BrokerUnavailable("cut off")
        return await super().heartbeat(to, beat)


@pytest.mark.ci
async def test_a_broker_that_was_silent_begins_a_log_of_its_own_epoch_and_keeps_everything(tmp_path: Path) -> None:
    """Its log is sealed meanwhile, and the numbers of the next one begin at 0 (J14, J19)."""
    settings = {"broker_session_timeout_ms": 1_000, "new_level": OBJECT_LEVEL, "broker_heartbeat_interval_ms": 50}
    link = CutLink()
    async with member(tmp_path, 1, **settings) as one, member(tmp_path, 2, new_link=lambda: link, **settings) as two:
        for broker in (one, two):
            await until(lambda broker=broker: unfenced(broker) == [1, 2])
        await one.node.membership.controller.create_topic("t", 2, CONFIGS)
        leads = lambda: {p.partition_index: p.leader for p in one.node.cluster.image.topics_by_name["t"].partitions}  # noqa: E731
        await until(lambda: one.node.cluster.image.topic("t") is not None and set(leads().values()) == {1, 2})
        ends = {0: 0, 1: 0}
        brokers = {1: one, 2: two}

        async def add(index: int, times: int) -> None:
            leader = brokers[leads()[index]]
            await until(lambda: leader.node.partitions.table.led("t", index) is not None)
            async with talk(leader.port) as client:
                for _ in range(times):
                    assert await produce_count(client, 1, index=index) == (ErrorCode.NONE, ends[index])
                    ends[index] += 1

        for index in ends:
            await add(index, 20)
        member_of_two = two.node.membership.member
        assert member_of_two is not None
        epoch = member_of_two.broker_epoch

        link.cut = True
        await until(lambda: set(leads().values()) == {1})
        link.cut = False
        await until(lambda: member_of_two.broker_epoch > epoch and unfenced(one) == [1, 2])
        for index in ends:
            await add(index, 3)
        await one.node.membership.controller.create_topic("u", 2, CONFIGS)
        await until(lambda: one.node.cluster.image.topic("u") is not None)
        of_two = next(p for p in one.node.cluster.image.topics_by_name["u"].partitions if p.leader == 2)
        assert of_two.wal_ranges[-1].first == 0
        assert of_two.wal_ranges[-1].broker_epoch == member_of_two.broker_epoch


@pytest.mark.ci
async def test_durability_is_altered_both_ways_while_producers_write(tmp_path: Path) -> None:
    async with alone(tmp_path) as broker:
        await create(broker, "t", firn_durability="memory")
        image = lambda: broker.node.cluster.image.topics_by_name["t"].partitions[0]  # noqa: E731
        written = 0
        stop = asyncio.Event()

        async def write() -> None:
            nonlocal written
            async with talk(broker.port) as client:
                while not stop.is_set():
                    error, offset = await produce_count(
                        client, 1, producer_id=7, producer_epoch=0, base_sequence=written
                    )
                    if error is ErrorCode.NONE:
                        assert offset == written
                        written += 1
                    else:
                        assert error in RETRIED, broker.lines
                        await asyncio.sleep(0.01)

        writing = asyncio.create_task(write())
        async with talk(broker.port) as client:
            for durability, state in (
                ("object", PartitionDurability.OBJECT),
                ("disk", PartitionDurability.REPLICAS),
                ("object", PartitionDurability.OBJECT),
            ):
                before = written
                await until(lambda before=before: written > before + 20)
                await alter(client, "t", durability)
                await until(lambda state=state: image().durability is state or writing.done())
                before = written
                await until(lambda before=before: written > before + 20 or writing.done())
                if state is PartitionDurability.REPLICAS:
                    # What was in the log of before is tiered, and nothing names it any more.
                    broker.log("t").roll()
                    broker.node.remote_log_manager.kick()
                    await until(lambda: image().wal_ranges == () or writing.done())
        stop.set()
        await writing
        assert await records_read(broker, written) == written
        await broker.kill()
    shutil.rmtree(tmp_path / "broker-1")
    async with alone(tmp_path, take_over=True) as broker:
        await led(broker, "t")
        assert broker.log("t").log_end_offset == written


async def test_a_change_that_nobody_answers_and_that_is_taken_back_leaves_the_partition_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def unanswered(*_: Any) -> Any:
        asked.set()
        raise BrokerUnavailable("no answer")

    monkeypatch.setattr(ClusterMember, "switch", unanswered)
    monkeypatch.setattr(durability_changes, "ANSWER_S", 0)  # an attempt is over as soon as it would wait
    async with alone(tmp_path) as broker:
        await create(broker, "t", firn_durability="memory")
        async with talk(broker.port) as client:
            assert await produce_count(client, 1) == (ErrorCode.NONE, 0)
            await alter(client, "t", "object")
            await asked.wait()
            await alter(client, "t", "memory")

            async def written() -> None:
                while (await produce_count(client, 1))[0] is not ErrorCode.NONE:
                    await asyncio.sleep(0.05)

            async with asyncio.timeout(60):
                await written()


async def test_a_partition_takes_records_again_when_nobody_wants_it_to_stop_any_more(tmp_path: Path) -> None:
    """A release may be under way for one reason, and another one be over: its last number must stay the last (J18)."""
    async with alone(tmp_path) as broker:
        await create(broker, "t")
        wal = broker.node.write_ahead
        assert wal is not None
        [key] = wal.led_partitions
        async with talk(broker.port) as client:
            for reason in ("stop", "balance"):
                wal.stop_taking([key], reason)
            wal.take_again(key, "balance")
            assert (await produce_count(client, 1))[0] is ErrorCode.NOT_LEADER_OR_FOLLOWER
            wal.take_again(key, "stop")
            assert await produce_count(client, 1) == (ErrorCode.NONE, 0)


async def test_topics_of_three_durabilities_are_served_side_by_side_in_one_request(tmp_path: Path) -> None:
    async with alone(tmp_path) as broker:
        await create(broker, "object")
        await create(broker, "disk", firn_durability="disk")
        await create(broker, "memory", firn_durability="memory")
        async with talk(broker.port) as client:
            answer = await client.produce(9, [(name, [(0, batch(2))]) for name in ("object", "disk", "memory")])
            assert [one.partition_responses[0].error_code for one in answer.responses] == [0, 0, 0]
        assert [broker.log(name).high_watermark for name in ("object", "disk", "memory")] == [2, 2, 2]


@pytest.mark.ci
async def test_another_broker_goes_on_where_a_killed_one_was(tmp_path: Path) -> None:
    settings = {
        "broker_heartbeat_interval_ms": 50,
        "broker_session_timeout_ms": 1_000,
        "new_level": OBJECT_LEVEL,
    }
    async with AsyncExitStack() as stack:
        brokers = {}
        for node_id in (1, 2, 3):
            brokers[node_id] = await stack.enter_async_context(member(tmp_path, node_id, **settings))
        for broker in brokers.values():
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
        await brokers[1].node.membership.controller.create_topic("t", 3, CONFIGS, replication_factor=3)
        for broker in brokers.values():
            await until(lambda broker=broker: broker.node.cluster.image.topic("t") is not None)
        leaders = {
            one.partition_index: one.leader for one in brokers[1].node.cluster.image.topics_by_name["t"].partitions
        }
        assert sorted(leaders.values()) == [1, 2, 3]
        for index, leader in leaders.items():
            await until(
                lambda index=index, leader=leader: brokers[leader].node.partitions.table.led("t", index) is not None
            )
            async with talk(brokers[leader].port) as client:
                for _ in range(3):
                    assert (await produce_count(client, 4, index=index))[0] is ErrorCode.NONE
        lost = next(index for index, leader in leaders.items() if leader == 3)
        await brokers[3].kill()
        new = lambda: brokers[1].node.cluster.image.topics_by_name["t"].partitions[lost].leader  # noqa: E731
        await until(lambda: new() in (1, 2))
        successor = brokers[new()]
        await until(lambda: successor.node.partitions.table.led("t", lost) is not None)
        async with talk(successor.port) as client:
            assert await produce_count(client, 1, index=lost) == (ErrorCode.NONE, 12)
        await asyncio.sleep(0)


async def test_a_broker_that_was_fenced_while_it_was_idle_goes_on_in_its_next_log(tmp_path: Path) -> None:
    """Nothing tells it by a put that its log has ended: it has to leave the writer of that log by itself."""
    async with alone(tmp_path) as broker:
        await create(broker, "t")
        async with talk(broker.port) as client:
            assert await produce_count(client, 3) == (ErrorCode.NONE, 0)
            epoch = broker.node.cluster.image.brokers[BrokerId(1)].broker_epoch
            await broker.node.membership.controller.submit(
                lambda draft, around: fence_brokers(draft, around, [WalId(1, epoch)])
            )
            await until(lambda: broker.node.cluster.image.topics_by_name["t"].partitions[0].leader_epoch > 0)
            await until(lambda: unfenced(broker) == [1])
            await led(broker, "t")
            assert await produce_count(client, 2, timeout_ms=5_000) == (ErrorCode.NONE, 3)
        assert await records_read(broker, 5) == 5


async def test_a_section_names_no_state_that_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a partition had written was tiered and deleted, among much of another one: its next section brings its state anew."""
    monkeypatch.setattr(write_ahead, "ENDED_KEPT_S", 0.0)
    async with alone(tmp_path) as broker:
        await create(broker, "t", 2)
        async with talk(broker.port) as client:
            fields = {"producer_id": 7, "producer_epoch": 0}
            for number in range(45):
                assert (await produce_count(client, 1))[0] is ErrorCode.NONE
                if number == 19:
                    assert await produce_count(client, 3, index=1, base_sequence=0, **fields) == (ErrorCode.NONE, 0)
            await tier_everything(broker, "t", 0)
            await tier_everything(broker, "t", 1)
            await until(lambda: len(objects(tmp_path)) < 16)  # from the newest state of the other partition on
            assert await produce_count(client, 2, index=1, base_sequence=3, **fields) == (ErrorCode.NONE, 3)
        await broker.kill()
    shutil.rmtree(tmp_path / "broker-1")
    async with alone(tmp_path, take_over=True) as broker:
        await led(broker, "t", 2)
        async with talk(broker.port) as client:
            assert await produce_count(client, 2, index=1, base_sequence=3, **fields) == (ErrorCode.NONE, 3)
            assert await produce_count(client, 2, index=1, base_sequence=5, **fields) == (ErrorCode.NONE, 5)


async def test_what_was_read_of_ended_logs_before_a_partition_was_named_again_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions of large topics follow images in turns. Who is named twice may have missed that another broker led in between."""
    calls: list[tuple[int, float]] = []
    waits = asyncio.Event()

    async def continue_log(log: Any, manifest: Any, partition: Any, *rest: Any, since_s: float, **more: Any) -> Any:
        calls.append((partition.leader_epoch, since_s))
        if len(calls) == 1:
            await waits.wait()
            raise StorageUnavailable("try again")
        return await continues(log, manifest, partition, *rest, since_s=since_s, **more)

    async def fence(broker: RunningBroker) -> int:
        cluster = broker.node.cluster
        before = cluster.image.topics_by_name["t"].partitions[0].leader_epoch
        wal = WalId(1, cluster.image.brokers[BrokerId(1)].broker_epoch)
        await broker.node.membership.controller.submit(lambda draft, around: fence_brokers(draft, around, [wal]))
        await until(lambda: cluster.image.topics_by_name["t"].partitions[0].leader_epoch > before)
        await until(lambda: cluster.image.topics_by_name["t"].partitions[0].leader == 1)
        return int(cluster.image.topics_by_name["t"].partitions[0].leader_epoch)

    continues = write_ahead_restore.continue_log
    async with alone(tmp_path) as broker:
        await create(broker, "t")
        async with talk(broker.port) as client:
            assert await produce_count(client, 3) == (ErrorCode.NONE, 0)
        monkeypatch.setattr(write_ahead_restore, "continue_log", continue_log)
        first = await fence(broker)
        await until(lambda: calls)
        with monkeypatch.context() as patch:
            patch.setattr(broker.node.partitions, "bring_one", lambda *_, **__: False)
            second = await fence(broker)
            waits.set()
            await until(lambda: len(calls) > 1)
        await led(broker, "t")
    assert [epoch for epoch, _ in calls[:2]] == [first, second]
    assert calls[1][1] > calls[0][1]
