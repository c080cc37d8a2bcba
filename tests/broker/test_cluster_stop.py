"""Brokers of a cluster stop in order (M13): others lead first, in one change, and the last one waits for nobody."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from app.broker.partitions.tier_views import TierViews
from app.core.errors import ErrorCode
from app.core.units import PartitionIndex, TopicIdPartition
from app.metadata.image.image import ClusterImage, ImageDelta
from app.metadata.membership.member import ClusterMember
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker
from tests.support.ports import free_port
from tests.support.several import broker_on, cluster_on, unfenced
from tests.support.waiting import until

NOT_LET = "has not let this broker stop"
NOBODY_TOLD = "will notice by themselves"


def complaints(broker: RunningBroker) -> list[str]:
    return [line for line in broker.lines if NOT_LET in line or NOBODY_TOLD in line]


async def test_a_cluster_of_one_stops_without_waiting(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, 1) as (only,):
        await only.node.membership.controller.create_topic("t", 3)
    assert complaints(only) == []


@pytest.mark.ci
@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 1, 3)])
async def test_brokers_that_stop_one_after_another_wait_for_nobody_at_last(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    stacks = [AsyncExitStack() for _ in range(3)]
    brokers = [await stack.enter_async_context(broker_on(tmp_path, f"b{one}")) for one, stack in enumerate(stacks)]
    await until(lambda: all(len(unfenced(one)) == 3 for one in brokers))
    await brokers[0].node.membership.controller.create_topic("t", 6, {}, 3)
    await until(lambda: all(one.node.cluster.image.topic("t") for one in brokers))
    for node_id in order:
        await stacks[node_id - 1].aclose()
    assert [complaints(one) for one in brokers] == [[], [], []]


async def test_brokers_that_stop_together_wait_for_nobody(tmp_path: Path) -> None:
    stacks = [AsyncExitStack() for _ in range(3)]
    brokers = [await stack.enter_async_context(broker_on(tmp_path, f"b{one}")) for one, stack in enumerate(stacks)]
    await until(lambda: all(len(unfenced(one)) == 3 for one in brokers))
    await asyncio.gather(*(stack.aclose() for stack in stacks))
    assert [line for one in brokers for line in one.lines if NOT_LET in line] == []


@pytest.mark.ci
async def test_a_broker_whose_controller_was_killed_waits_for_no_other(tmp_path: Path) -> None:
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.cluster_process", str(tmp_path), "1", str(free_port())),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert killed.stdout is not None
        while b"ready" not in (line := await killed.stdout.readline()):
            assert line, "it has ended"
        async with broker_on(tmp_path, "b2", node_id=2) as last:
            await until(lambda: unfenced(last) == [1, 2])
            killed.kill()
            await killed.wait()
        assert complaints(last) == []
        assert last.node.cluster.image.controller.broker_id == 1, "it did not have to become the controller"
    finally:
        if killed.returncode is None:
            killed.kill()
        await killed.wait()


class Writing:
    """A thread that writes numbers to all partitions of ``t``, idempotent and ``acks=all``."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged = 0
        self.refused: list[str] = []
        self._stop = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2})
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        def done(error: Any, message: Any) -> None:
            if error is None:
                self.acknowledged += 1
            else:
                self.refused.append(str(error))

        number = 0
        while not self._stop.is_set():
            self._producer.produce("t", b"%d" % number, partition=number % 6, on_delivery=done)
            number += 1
            self._producer.poll(0.002)
        self._producer.flush(60)

    async def finish(self) -> None:
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 90)


@pytest.mark.ci
async def test_leaders_move_in_one_change_before_their_broker_stops(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        first, third = [await stack.enter_async_context(broker_on(tmp_path, name)) for name in ("a", "c")]
        stopping = AsyncExitStack()
        second = await stopping.enter_async_context(broker_on(tmp_path, "b"))
        node_id = second.node.config.node_id
        await until(lambda: all(len(unfenced(one)) == 3 for one in (first, second, third)))
        await first.node.membership.controller.create_topic("t", 6, {}, 3)

        def led(image: ClusterImage) -> int:
            topic = image.topic("t")
            return 0 if topic is None else sum(one.leader == node_id for one in topic.partitions)

        def in_sync() -> bool:
            topic = first.node.cluster.image.topic("t")
            return topic is not None and all(len(one.isr) == 3 for one in topic.partitions)

        await until(in_sync)
        assert led(first.node.cluster.image) == 2
        steps: list[tuple[int, bool]] = []

        def note(image: ClusterImage, delta: ImageDelta) -> None:
            if not steps or steps[-1][0] != led(image):
                steps.append((led(image), image.brokers[node_id].fenced))

        first.node.cluster.on_change(note)
        writing = Writing(first.bootstrap)
        await until(lambda: writing.acknowledged > 50)
        await stopping.aclose()
        before = writing.acknowledged
        await until(lambda: writing.acknowledged > before + 50)
        await writing.finish()
        assert writing.refused == []
        assert [one for one in steps if one[0] < 2] == [(0, False)], "all at once, while the broker still answers"
        assert complaints(second) == []


async def test_a_broker_that_stops_tells_its_clients_who_leads_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lingers, answered = asyncio.Event(), asyncio.Event()
    linger = ClusterMember.linger

    async def until_answered(member: ClusterMember) -> None:
        lingers.set()
        await answered.wait()
        await linger(member)

    monkeypatch.setattr(ClusterMember, "linger", until_answered)
    async with broker_on(tmp_path, "a") as first, AsyncExitStack() as stopping:
        second = await stopping.enter_async_context(broker_on(tmp_path, "b"))
        await until(lambda: len(unfenced(first)) == len(unfenced(second)) == 2)
        await first.node.membership.controller.create_topic("t", 2, {}, 2)

        def led() -> list[int]:
            topic = first.node.cluster.image.topic("t")
            mine = second.node.config.node_id
            return [] if topic is None else [index for index, one in enumerate(topic.partitions) if one.leader == mine]

        await until(lambda: led() and second.node.partitions.table.get("t", led()[0]))
        (index,) = led()
        async with talk(second.port) as client:

            async def written() -> Any:
                answer = await client.produce(10, [("t", [(index, batch())])])
                return answer.responses[0].partition_responses[0]

            assert (await written()).error_code == ErrorCode.NONE
            stop = asyncio.create_task(stopping.aclose())
            await until(lambda: not led())
            while (answer := await written()).error_code == ErrorCode.NONE:
                await asyncio.sleep(0)  # it has not heard of it yet
            await until(lingers.is_set)  # it may stop
            answer = await written()
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert answer.current_leader.leader_id == first.node.config.node_id
            answered.set()
            assert await client.closed()
            await stop


async def test_a_broker_follows_a_leader_that_changes_while_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker_on(tmp_path, "a") as first:
        controller = first.node.membership.controller
        async with broker_on(tmp_path, "b") as second:
            await until(lambda: unfenced(first) == unfenced(second) == [1, 2])
            await controller.create_topic("t", 1, {}, 2)
            await until(lambda: second.node.partitions.table.get("t", 0))
        topic = first.node.cluster.image.topic("t")
        assert topic is not None
        key = TopicIdPartition(topic.topic_id, PartitionIndex(0))

        def epoch_of(broker: RunningBroker) -> int:
            image = broker.node.cluster.image.topic("t")
            return -1 if image is None else image.partitions[0].leader_epoch

        restore = TierViews.restore
        seen: list[int] = []

        async def while_it_starts(views: TierViews) -> None:
            await restore(views)
            (epoch,) = (await controller.bump_leader_epochs([key])).values()

            def has_it() -> bool:
                image = views.image().partition(key.topic_id, key.partition)
                return image is not None and image.leader_epoch == epoch

            await until(has_it)
            seen.append(epoch)

        monkeypatch.setattr(TierViews, "restore", while_it_starts)
        async with broker_on(tmp_path, "b") as second:
            assert seen == [epoch_of(first)]
            partition = second.node.partitions.table.get("t", 0)
            assert partition is not None
            assert partition.leader_epoch == seen[0]

            def in_sync() -> list[int]:
                image = first.node.cluster.image.topic("t")
                return [] if image is None else sorted(image.partitions[0].isr)

            await until(lambda: in_sync() == [1, 2])
