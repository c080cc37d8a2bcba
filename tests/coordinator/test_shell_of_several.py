"""The shell on partitions of several replicas (ADR 0025, G1 to G6): the test plays the follower."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from app.coordinator.partition import CoordinatedLog
from app.coordinator.shell import Reply, Turn
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import BrokerId, LeaderEpoch
from app.metadata.image.image import ClusterImage, PartitionImage
from app.replication.partition import Partition
from tests.coordinator.bench import NAME, ZERO, Bench, Ledger, bench_over, serving
from tests.groups.bench import image_of
from tests.support.waiting import until

ME, OTHER = BrokerId(1), BrokerId(2)


def image(leader: int, epoch: int, isr: tuple[int, ...] = (1, 2), partition_epoch: int = 0) -> ClusterImage:
    """A cluster in which both brokers have the only partition."""
    found = image_of({NAME: 1})
    topic = found.topics_by_name[NAME]
    partition = PartitionImage(
        ZERO,
        BrokerId(leader),
        LeaderEpoch(epoch),
        partition_epoch,
        (ME, OTHER),
        tuple(BrokerId(each) for each in isr),
    )
    made = replace(topic, partitions=(partition,))
    return ClusterImage(
        sequence=found.sequence, topics_by_name={NAME: made}, topics_by_id={made.topic_id: made}, brokers=found.brokers
    )


class Several:
    """The partition, and what happens to it."""

    def __init__(self, bench: Bench, stored_within_ms: int | None = None) -> None:
        self.bench = bench
        bench.coordinator._stored_within_ms = stored_within_ms
        self.log = bench.manager.create(NAME, image(1, 0).topics_by_name[NAME].topic_id, ZERO, bench.config)
        self.partition: Partition = bench.table.hold(self.log)
        self.bench.table.follow(self.partition, 0)

    def publish(self, now: ClusterImage) -> None:
        """A new image: roles first, then coordinators, as in a broker."""
        table, partition = self.bench.table, self.partition
        of_topic = now.topics_by_name[NAME].partitions[0]
        table.note(partition, of_topic)
        if of_topic.leader == ME:
            table.lead(partition, of_topic.leader_epoch)
        elif partition.leads:
            table.resign(partition)
            table.follow(partition, self.log.high_watermark)
        self.bench.coordinator.follow(now)

    def follower_has(self, end: int) -> None:
        self.partition.note_follower(
            OTHER, 5, fetch_offset=end, stored_end=end, log_end=self.log.log_end_offset, now_ms=0
        )

    def follower_has_all(self) -> None:
        self.follower_has(self.log.log_end_offset)

    @property
    def words(self) -> list[bytes]:
        return self.bench.made[-1].words


async def led(bench: Bench, **settings: Any) -> Several:
    """A partition that is led and loaded."""
    several = Several(bench, **settings)
    several.publish(image(1, 0))
    several.follower_has_all()
    await serving(bench)
    return several


def tell(bench: Bench, word: bytes) -> None:
    bench.coordinator.tell(ZERO, lambda shard, turn: shard.keep(turn, word))


async def code_of(answer: Any) -> ErrorCode:
    try:
        await answer
    except RequestRejected as error:
        return error.code
    return ErrorCode.NONE


async def test_g2_a_coordinator_loads_until_the_start_of_its_epoch_is_committed() -> None:
    async with bench_over() as bench:
        several = await led(bench)
        answer = bench.say(b"one")
        several.publish(image(2, 1))
        assert await code_of(answer) is ErrorCode.NOT_COORDINATOR
        several.publish(image(1, 2))
        await asyncio.sleep(0.05)
        assert bench.code() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        with pytest.raises(RequestRejected) as refused:
            bench.say(b"two")
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert bench.coordinator.being_read
        several.follower_has_all()
        await serving(bench)
        assert several.words == [b"one"]


async def test_g2_what_is_appended_while_a_coordinator_waits_is_read_as_well() -> None:
    async with bench_over() as bench:
        several = await led(bench)
        tell(bench, b"one")
        several.publish(image(2, 1))
        several.publish(image(1, 2))
        await asyncio.sleep(0.01)
        # As a marker is: past the coordinator.
        log = bench.table.led_log(NAME, 0)
        assert log is not None
        CoordinatedLog(several.partition).append([(b"beside", b"")], now_ms=0)
        several.follower_has_all()
        await serving(bench)
        assert several.words == [b"one", b"beside"]


async def test_g3_a_wait_of_an_older_leadership_is_never_called_stored() -> None:
    async with bench_over() as bench:
        several = await led(bench)
        waiting = asyncio.ensure_future(bench.say(b"mine"))
        parked: asyncio.Future[Any] = asyncio.ensure_future(
            bench.coordinator.request(ZERO, lambda shard, turn, reply: turn.answer(reply, "mine"))
        )
        await asyncio.sleep(0)
        # Others write another record at that offset; this broker follows, and then leads again.
        several.publish(image(2, 1))
        several.log.truncate_to(several.log.log_end_offset - 1)
        several.publish(image(1, 2))
        CoordinatedLog(several.partition).append([(b"another", b"")], now_ms=0)
        several.follower_has_all()
        await serving(bench)
        assert several.log.high_watermark == several.log.log_end_offset
        assert await code_of(waiting) is ErrorCode.NOT_COORDINATOR
        assert await code_of(parked) is ErrorCode.NOT_COORDINATOR
        assert several.words == [b"another"]


async def test_g4_an_answer_waits_for_the_replicas_but_not_for_ever() -> None:
    async with bench_over() as bench:
        several = await led(bench, stored_within_ms=30)
        answer = bench.say(b"one")
        reading = bench.coordinator.perform(ZERO, lambda shard, _: list(shard.words))
        asked = bench.coordinator.request(ZERO, lambda shard, turn, reply: turn.answer(reply, "one"))
        codes = await asyncio.gather(code_of(answer), code_of(reading), code_of(asked))
        assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 3
        assert several.words == [b"one"]  # it may still be committed
        several.follower_has_all()
        assert bench.coordinator.perform(ZERO, lambda shard, _: list(shard.words)) == [b"one"]
        assert bench.coordinator.loading is False
        assert len(bench.made) == 1


async def test_g4_later_answers_are_given_after_an_earlier_one_was_refused() -> None:
    async with bench_over() as bench:
        several = await led(bench, stored_within_ms=30)
        replies: list[Reply[str]] = [Reply(), Reply()]

        def first(shard: Ledger, turn: Turn) -> None:
            shard.say(turn, b"one")
            turn.answer(replies[0], "one")

        bench.coordinator.tell(ZERO, first)
        assert await code_of(replies[0].wait()) is ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.coordinator.tell(ZERO, lambda _, turn: turn.answer(replies[1], "two"))
        several.follower_has_all()
        assert await replies[1].wait() == "two"


async def test_g5_a_coordinator_appends_nothing_while_too_few_replicas_are_in_sync() -> None:
    async with bench_over() as bench:
        several = await led(bench)
        several.log.update_config(replace(several.log.config, min_insync_replicas=2))
        several.publish(image(1, 0, isr=(1,), partition_epoch=1))
        end = several.log.log_end_offset
        with pytest.raises(RequestRejected) as refused:
            bench.say(b"one")
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert several.log.log_end_offset == end
        assert several.words == []
        several.publish(image(1, 0, isr=(1, 2), partition_epoch=2))
        answer = bench.say(b"one")
        several.follower_has_all()
        assert await answer == 1


async def test_g6_a_leader_that_leads_on_under_a_higher_epoch_keeps_its_shard_and_its_waits() -> None:
    async with bench_over() as bench:
        several = await led(bench)
        answer = asyncio.ensure_future(bench.say(b"one"))
        await asyncio.sleep(0)
        several.publish(image(1, 3))
        several.follower_has_all()
        assert await answer == 1
        assert len(bench.made) == 1
        assert bench.code() is ErrorCode.NONE


async def test_g1_a_partition_that_goes_offline_and_comes_back_is_read_again() -> None:
    async with bench_over() as bench:
        several = await led(bench)
        waiting = asyncio.ensure_future(bench.say(b"one"))
        await asyncio.sleep(0)
        bench.table.put_offline(several.partition, "its manifest is damaged")
        assert await code_of(waiting) is ErrorCode.NOT_COORDINATOR
        await until(lambda: bench.code() is ErrorCode.NOT_COORDINATOR)
        bench.coordinator.follow(image(1, 0))
        await asyncio.sleep(0.01)
        assert bench.code() is ErrorCode.NOT_COORDINATOR
        bench.table.lead(several.partition, LeaderEpoch(0))
        several.follower_has_all()
        await serving(bench)
        assert several.words == [b"one"]
        assert len(bench.made) == 2


async def test_g1_a_load_begins_when_the_role_has_followed_and_not_with_the_image() -> None:
    async with bench_over() as bench:
        several = Several(bench)
        bench.coordinator.follow(image(1, 0))  # the partition is not opened yet
        await asyncio.sleep(0.02)
        assert bench.code() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert bench.made == []
        several.publish(image(1, 0))
        several.follower_has_all()
        await serving(bench)


async def test_a_load_that_is_overtaken_by_another_leadership_is_given_up() -> None:
    async with bench_over() as bench:
        several = await led(bench)
        for number in range(50):
            tell(bench, b"%d" % number)
        several.follower_has_all()
        several.publish(image(2, 1))
        several.publish(image(1, 2))
        several.follower_has_all()
        for epoch in range(3, 9, 2):  # each time before the load has ended
            await asyncio.sleep(0)
            several.publish(image(2, epoch))
            several.publish(image(1, epoch + 1))
            several.follower_has_all()
        await serving(bench)
        assert several.words == [b"%d" % number for number in range(50)]
