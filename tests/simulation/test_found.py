"""What the simulation has found, each as the shortest story that shows it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from app.core.errors import ErrorCode, FencedError, StorageUnavailable
from app.machine.files import replace_file
from app.metadata.log import layout
from app.objectstore.memory import Fault, FaultKind
from app.wire.apikeys import ApiKey
from app.wire.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from tests.sim.machine import Unreachable
from tests.simulation.small import SMALL, Client, move
from tests.simulation.transactions import CommittedReader, TransactionalProducer
from tests.simulation.world import World, run_seed
from tests.support.changing import delete_topic


def play(script: Callable[[World], Awaitable[None]], *, times: int = 1) -> None:
    """Tell a story to its end, with every invariant watched; more than once where it takes chance to show."""
    for seed in range(1, 1 + times):
        outcome = run_seed(seed, script=script, topic_defaults=SMALL)
        assert outcome.violation is None, outcome.violation


async def restart(world: World, how: str) -> None:
    world.owner.crash(how)
    world.owner.start()
    await world.until(lambda: world.owner.up, 30, "the start")


def test_a_full_disk_is_told_as_such_to_a_producer_whose_requests_look_all_the_same() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        for _ in range(3):
            assert await client.produce() is ErrorCode.NONE
        world.owner.disk.capacity_bytes = world.owner.disk.used
        assert await client.produce() is ErrorCode.KAFKA_STORAGE_ERROR
        world.owner.disk.capacity_bytes = 1 << 40
        assert await client.produce() is ErrorCode.NONE

    play(story)


def test_a_search_by_time_sees_segments_that_leave_the_disk_while_it_runs() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        first = int(world.clock.now_ms())
        for number in range(12):
            assert await client.produce(size=200, timestamp=first + number) is ErrorCode.NONE
        await world.until(lambda: client.tiered_end > 6, 30, "the tier")
        world._pool_latency_s = (0.5, 0.5)
        world.owner.disk.cold_rate = 1.0
        asked = ListOffsetsPartition(partition_index=0, timestamp=first + 3)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])])
        answer = asyncio.ensure_future(client.ask(ApiKey.LIST_OFFSETS, 9, request))
        await asyncio.sleep(0.1)
        client.log.delete_local_before(client.tiered_end)
        assert (await answer).topics[0].partitions[0].offset == 3

    play(story)


def test_a_search_by_time_sees_records_that_were_deleted_while_it_runs() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        first = int(world.clock.now_ms())
        for number in range(12):
            assert await client.produce(size=200, timestamp=first + number) is ErrorCode.NONE
        await world.until(lambda: client.tiered_end > 6, 30, "the tier")
        client.log.delete_local_before(client.tiered_end)
        world.bucket.faults = [Fault(FaultKind.LATENCY, "get_range", layout.DATA_PREFIX, latency_ms=(400, 400))]
        asked = ListOffsetsPartition(partition_index=0, timestamp=first)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])])
        answer = asyncio.ensure_future(client.ask(ApiKey.LIST_OFFSETS, 9, request))
        await asyncio.sleep(0.2)
        (history,) = world.histories.values()
        history.log_start_asked = 3
        node = world.owner.node
        assert node is not None
        await node.remote_log_manager.advance_log_start(client.log.topic_id, client.log.partition, 3)  # type: ignore[arg-type]
        assert (await answer).topics[0].partitions[0].offset == 3

    play(story)


def test_an_empty_directory_never_gives_an_epoch_and_offset_again_even_if_nothing_was_tiered() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        assert await client.produce() is ErrorCode.NONE
        epoch = client.log.leader_epoch
        world.owner.crash("kill")
        await move(world)
        assert client.log.log_end_offset == 0
        assert client.log.leader_epoch > epoch

    play(story)


def test_a_broker_that_was_replaced_cannot_finish_a_copy_over_the_end_that_its_successor_goes_on_from() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        old = world.owner
        # Nothing was tiered yet, so the old broker has never sealed the manifest and knows of no other.
        old_client = Client(world, "old")
        old_client.topic_id = client.topic_id
        old_client.connect()
        world.brokers_cut_apart = True  # it is not told
        await move(world)
        for _ in range(8):
            assert await old_client.produce(size=300) is ErrorCode.NONE
        assert old_client.machine is old
        await asyncio.sleep(4.0)
        assert client.tiered_end <= client.log.log_end_offset

    play(story)


def test_a_copy_that_its_uploader_did_not_finish_is_settled_before_the_log_goes_on() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        prefix = layout.log_prefix(layout.manifest_prefix(client.topic_id, 0))
        # The seal and COPY_STARTED pass.
        world.bucket.faults = [Fault(FaultKind.UNAVAILABLE, "put_if_absent", prefix, skip=2)]
        for _ in range(5):
            assert await client.produce(size=300) is ErrorCode.NONE
        await world.until(lambda: bool(world.bucket.keys_from(layout.DATA_PREFIX)), 30, "the upload")
        world.owner.crash("kill")
        world.bucket.faults = []
        await move(world)
        await asyncio.sleep(3.0)
        assert client.log.log_end_offset >= client.tiered_end

    play(story)


def test_what_comes_after_a_loss_is_not_taken_for_records_that_were_deleted_before_it() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        for _ in range(5):
            assert await client.produce() is ErrorCode.NONE
        (history,) = world.histories.values()
        history.log_start_asked = history.high_watermark = 4
        history.log_start_acked = 4
        node = world.owner.node
        assert node is not None
        await node.remote_log_manager.advance_log_start(client.log.topic_id, client.log.partition, 4)  # type: ignore[arg-type]
        await restart(world, "power")
        assert client.log.log_start_offset == 4
        assert client.log.log_end_offset >= 4
        before = client.log.log_end_offset
        assert await client.produce() is ErrorCode.NONE
        await asyncio.sleep(3.0)
        assert client.log.log_start_offset <= before

    play(story)


def test_records_past_a_log_start_beyond_the_tier_are_kept_when_their_segment_was_held() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        held = client.log.hold(0)
        for _ in range(6):
            assert await client.produce(size=300) is ErrorCode.NONE
        await world.until(lambda: client.tiered_end > 0, 30, "the tier")
        for _ in range(3):
            assert await client.produce() is ErrorCode.NONE
        end = client.log.log_end_offset
        (history,) = world.histories.values()
        history.log_start_asked = history.log_start_acked = end - 1
        node = world.owner.node
        assert node is not None
        assert client.tiered_end < end - 1
        await node.remote_log_manager.advance_log_start(client.log.topic_id, client.log.partition, end - 1)
        assert not held.segment.deleted
        await restart(world, "kill")
        assert client.log.log_end_offset == end

    play(story)


def test_a_topic_that_is_deleted_while_its_turn_to_be_swept_comes_does_no_harm() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        for _ in range(6):
            assert await client.produce(size=300) is ErrorCode.NONE
        await world.until(lambda: client.tiered_end > 0, 30, "the tier")
        node = world.owner.node
        assert node is not None
        manager = node.remote_log_manager
        (partition,) = manager._partitions.values()
        for _ in range(2):
            assert await client.produce(size=300) is ErrorCode.NONE
        world.bucket.faults = [Fault(FaultKind.LATENCY, latency_ms=(900, 900))]
        partition.due.sweep_at_s = 0.0
        await world.until(lambda: partition.busy, 10, "a round")
        (history,) = world.histories.values()
        history.deleting = True
        await delete_topic(node.membership.controller, "t")
        await asyncio.sleep(20.0)
        assert world.owner.up

    play(story)


def test_a_connection_that_comes_while_the_broker_closes_is_not_served() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        client.hang_up()
        node = world.owner.node
        assert node is not None
        await node.server.close()
        with pytest.raises((Unreachable, ConnectionResetError)):
            await client.produce()
        assert client.log.log_end_offset == 0

    play(story)


def test_a_log_that_is_being_synced_when_it_has_to_be_emptied_is_waited_for() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        first = world.owner
        for _ in range(6):
            assert await client.produce(size=300) is ErrorCode.NONE
        first.crash("kill")
        second = await move(world)
        for _ in range(12):
            assert await client.produce(size=300) is ErrorCode.NONE
        await world.until(lambda: client.tiered_end > 8, 30, "the tier")
        second.crash("kill")
        world._pool_latency_s = (0.05, 0.4)
        first.start(take_over=True)
        await world.until(lambda: first.up or first.ended.is_set(), 30, "the start")
        assert first.exit is None

    play(story, times=8)


def test_what_recovery_finds_of_a_topic_on_disk_is_made_durable_before_it_is_served() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create("disk")
        assert await client.produce() is ErrorCode.NONE
        world._pool_latency_s = (3.0, 3.0)
        unanswered = asyncio.ensure_future(client.produce())
        await asyncio.sleep(0.1)
        assert client.log.log_end_offset == 2
        world.owner.crash("kill")
        with pytest.raises(ConnectionResetError):
            await unanswered
        world._pool_latency_s = (0.1, 0.1)
        world.owner.start()
        while not world.owner.up:
            await asyncio.sleep(0.001)
        assert client.log.high_watermark == 2
        assert client.log.synced_end_offset == 2

    play(story)


def test_the_log_of_a_deleted_topic_does_not_touch_the_files_of_its_successor() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        for _ in range(6):
            assert await client.produce(size=300) is ErrorCode.NONE
        old = client.log
        await client.delete()
        await client.create()
        for _ in range(6):
            assert await client.produce(size=300) is ErrorCode.NONE
        new = client.log
        assert new.path == old.path
        # As a round of the tier does that was under way when the topic was deleted.
        with pytest.raises(StorageUnavailable):
            old.delete_local_before(old.log_end_offset)
        with pytest.raises(StorageUnavailable):
            old.advance_log_start(old.log_end_offset)
        await asyncio.sleep(2.0)
        assert all(world.owner.disk.exists(segment.path) for segment in new.segments())

    play(story)


def test_a_topic_may_be_deleted_and_made_again_while_its_log_is_synced() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create("disk")
        assert await client.produce() is ErrorCode.NONE
        await asyncio.sleep(1.0)
        world._pool_latency_s = (1.0, 1.0)
        unanswered = asyncio.ensure_future(client.produce())
        await asyncio.sleep(0.1)
        other = Client(world, "other")
        other.topic_id = client.topic_id
        await other.delete()
        await other.create("disk")
        node = world.owner.node
        assert node is not None
        await asyncio.sleep(0.5)
        assert node.logs.get("t", 0) is None, "made while the old one is being synced"
        await asyncio.wait([unanswered])
        await asyncio.sleep(4.0)
        assert node.logs.offline_reason is None
        assert await other.produce() is ErrorCode.NONE

    play(story)


def test_a_topic_made_again_does_not_begin_where_the_one_before_it_was_truncated() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        for _ in range(6):
            assert await client.produce() is ErrorCode.NONE
        (history,) = world.histories.values()
        history.log_start_asked = 5
        node = world.owner.node
        assert node is not None
        await node.remote_log_manager.advance_log_start(client.log.topic_id, client.log.partition, 5)  # type: ignore[arg-type]
        await node.logs.checkpoint()
        await client.delete()
        await client.create()
        for _ in range(3):
            assert await client.produce() is ErrorCode.NONE
        await restart(world, "kill")
        assert (client.log.log_start_offset, client.log.log_end_offset) == (0, 3)

    play(story)


def test_records_of_a_deleted_topic_are_not_taken_for_those_of_its_successor_after_a_loss_of_power() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        for _ in range(4):
            assert await client.produce(size=300) is ErrorCode.NONE
        await asyncio.sleep(3.0)
        await client.delete()
        await client.create()
        world.owner.disk.rng = _Worst()  # type: ignore[assignment]
        await restart(world, "power")
        assert client.log.log_end_offset == 0

    play(story)


def test_copies_go_on_although_a_look_for_orphans_is_never_answered() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        for _ in range(6):
            assert await client.produce(size=300) is ErrorCode.NONE
        await world.until(lambda: client.tiered_end > 0, 30, "the tier")
        node = world.owner.node
        assert node is not None
        world.bucket.faults = [Fault(FaultKind.HANG, "list_objects", layout.DATA_PREFIX, times=1)]
        (partition,) = node.remote_log_manager._partitions.values()
        partition.due.sweep_at_s = 0.0
        await asyncio.sleep(3.0)
        for _ in range(6):
            assert await client.produce(size=300) is ErrorCode.NONE
        await world.until(lambda: client.tiered_end >= 10, 300, "the tier")

    play(story)


def test_a_broker_whose_signs_of_life_hang_still_hears_of_its_replacement() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        old = world.owner
        await move(world)
        world.bucket.faults = [Fault(FaultKind.HANG, "put", layout.HEARTBEAT_PREFIX)]
        await world.until(lambda: not old.up, 30, "the end of the old broker")
        assert isinstance(old.exit, FencedError)

    play(story)


def test_a_broker_stops_although_the_store_does_not_answer_its_farewell() -> None:
    async def story(world: World) -> None:
        world.bucket.faults = [Fault(FaultKind.HANG, "delete")]
        world.owner.stop()
        await asyncio.wait_for(world.owner.ended.wait(), 20)
        assert world.owner.exit is None

    play(story)


def _refuse_new_files(world: World, number: int) -> None:
    """Kill the owner, take what its log can make again, and answer `number` to every file that it creates."""
    world.owner.crash("kill")
    disk, real = world.owner.disk, world.owner.disk.open

    def refusing(path: str, **how: Any) -> Any:
        if how.get("create") and "/t-0/" in path:
            raise OSError(number, os.strerror(number), path)
        return real(path, **how)

    disk.open = refusing  # type: ignore[method-assign]
    for name in disk.list_dir("/data/t-0"):
        if name.endswith((".snapshot", ".index", "checkpoint")):
            disk.unlink(f"/data/t-0/{name}")


def test_a_disk_that_fails_while_the_logs_are_opened_is_told_in_one_sentence() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        for _ in range(6):
            assert await client.produce(size=300) is ErrorCode.NONE
        _refuse_new_files(world, errno.EIO)
        world.owner.start()
        await asyncio.wait_for(world.owner.ended.wait(), 20)
        assert isinstance(world.owner.exit, StorageUnavailable)

    play(story)


def test_a_disk_that_is_full_while_the_logs_are_opened_does_not_keep_the_broker_from_reads() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        for _ in range(6):
            assert await client.produce(size=300) is ErrorCode.NONE
        _refuse_new_files(world, errno.ENOSPC)
        world.owner.start()
        await world.until(lambda: world.owner.up, 30, "the start")
        assert client.log.log_end_offset == 6

    play(story)


def test_the_name_of_a_new_data_directory_outlives_a_loss_of_power() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create("disk")
        assert await client.produce() is ErrorCode.NONE
        disk = world.owner.disk
        disk.rng = _Worst()  # type: ignore[assignment]
        await restart(world, "power")
        assert client.log.log_end_offset == 1

    play(story)


def test_no_flipped_bit_in_the_leader_epochs_costs_a_record_or_changes_the_lineage() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        for _ in range(3):
            for _ in range(4):
                assert await client.produce(size=300) is ErrorCode.NONE
            await restart(world, "kill")
        assert await client.produce() is ErrorCode.NONE
        await world.until(lambda: client.tiered_end > 8, 30, "the tier")
        log = client.log
        log.delete_local_before(8)
        lineage, end = log.leader_epochs(), log.log_end_offset
        assert log.local_log_start_offset == 8
        assert len(lineage) == 4
        path = f"{log.path}/leader-epoch-checkpoint"
        content = bytes(world.owner.disk._file(path).current)
        for position in range(len(content)):
            for bit in (0, 1, 2):
                world.owner.crash("kill")
                replace_file(world.owner.disk, path, content, durable=True)
                world.owner.disk.flip_bit(path, position, bit)
                world.owner.start()
                await world.until(lambda: world.owner.up, 30, "the start")
                # The epoch of this start has no records yet, and is not in the file.
                assert client.log.leader_epochs()[:-1] == lineage
                assert client.log.log_end_offset == end

    play(story)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_whose_marker_was_not_tiered_is_ended_where_the_log_goes_on(commit: bool) -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        producer = TransactionalProducer(world, "x", "x", second_protocol=True)
        while world.transactions.newest_of("x") is None:
            await producer.identify()
        producer.begin()
        await producer.produce()
        for _ in range(2):
            assert await client.produce(size=500) is ErrorCode.NONE
        await producer.end(commit=commit)
        await world.until(lambda: client.log.last_stable_offset == client.log.high_watermark, 10, "the marker")
        await world.until(lambda: client.tiered_end > 0, 30, "the tier")
        end, tiered_end = client.log.log_end_offset, client.tiered_end
        assert tiered_end < end, "the marker is not in the tier"
        world.owner.crash("kill")
        await move(world)
        assert client.log.last_stable_offset == client.log.high_watermark == tiered_end + 1
        reader = CommittedReader(world, "r")
        seen = await reader.read_all()
        assert seen is not None
        (history,) = world.histories.values()
        ours = [batch for batch in history.sent.values() if batch.idempotent]
        assert len(ours) == 1
        assert ((client.topic_id, 0, ours[0].number) in seen) is commit

    play(story)


class _Worst:
    """Chance that keeps nothing that was not made durable."""

    def randint(self, low: int, high: int) -> int:
        return low

    def choice(self, of: tuple[float, ...]) -> float:
        return of[0]

    def random(self) -> float:
        return 0.5


def test_a_partition_whose_manifest_has_lost_its_last_entries_with_the_disk_is_not_led_until_they_are_back() -> None:
    async def story(world: World) -> None:
        client = Client(world, "c")
        await client.create()
        for _ in range(12):
            assert await client.produce(size=300) is ErrorCode.NONE
        await world.until(lambda: client.tiered_end > 8, 30, "the tier")
        assert await world.lose_entries_and_disk() == 1
        assert client.log.log_end_offset == client.tiered_end > 8

    play(story)
