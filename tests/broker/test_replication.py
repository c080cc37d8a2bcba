"""Topics with three replicas on three real brokers in one loop (ADR 0024)."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from app.broker.partitions import reading
from app.broker.partitions.partitions import LOGS_AT_ONCE
from app.core.errors import ErrorCode
from app.wire.apikeys import ApiKey
from tests.handlers.conversation import batch, talk
from tests.support.quotas import NotedQuotas
from tests.support.several import cluster_on, member, unfenced
from tests.support.waiting import until

NOW = 1_700_000_000_000


@pytest.mark.ci
async def test_what_is_acknowledged_is_on_all_in_sync(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(tmp_path, node_id)) for node_id in (1, 2, 3)]
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
        await brokers[0].node.membership.controller.create_topic(
            "t", 3, {"min.insync.replicas": "2"}, replication_factor=3
        )
        for broker in brokers:
            await until(lambda broker=broker: broker.node.cluster.image.topic("t") is not None)
        image = brokers[0].node.cluster.image.topics_by_name["t"]
        assert sorted(partition.leader for partition in image.partitions) == [1, 2, 3]
        for partition in image.partitions:
            leader = brokers[partition.leader - 1]
            index = partition.partition_index
            await until(lambda leader=leader, index=index: leader.node.partitions.table.get("t", index) is not None)
            async with talk(leader.port) as client:
                answer = await client.produce(9, [("t", [(index, batch(3))])])
                assert answer.responses[0].partition_responses[0].error_code == 0
            logs = [broker.log("t", index) for broker in brokers]
            assert [log.stored_end_offset for log in logs] == [3, 3, 3]
            assert leader.log("t", index).high_watermark == 3
            for log in logs:  # followers learn the high watermark with their next fetch
                await until(lambda log=log: log.high_watermark == 3)


@pytest.mark.ci
async def test_preferred_leaders_lead_again_when_their_broker_is_back(tmp_path: Path) -> None:
    settings = {"leader_imbalance_check_interval_seconds": 1, "broker_heartbeat_interval_ms": 100}
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(tmp_path, node_id, **settings)) for node_id in (1, 3)]
        async with member(tmp_path, 2, **settings):
            for broker in brokers:
                await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
            await brokers[0].node.membership.controller.create_topic("t", 3, {}, replication_factor=3)
        images = lambda: brokers[1].node.cluster.image.topics_by_name["t"].partitions  # noqa: E731
        await until(lambda: 2 not in {one.leader for one in images()})
        await stack.enter_async_context(member(tmp_path, 2, **settings))
        await until(lambda: [one.leader for one in images()] == [one.replicas[0] for one in images()])
        assert 2 in {one.leader for one in images()}


@pytest.mark.ci
async def test_partitions_whose_logs_are_made_later_are_followed_too(tmp_path: Path) -> None:
    count = 2 * LOGS_AT_ONCE
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(tmp_path, node_id)) for node_id in (1, 2, 3)]
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
        await brokers[0].node.membership.controller.create_topic(
            "t", count, {"min.insync.replicas": "3"}, replication_factor=3
        )
        for broker in brokers:
            table = broker.node.partitions.table
            await until(lambda table=table: all(table.get("t", index) is not None for index in range(count)))
        leader = brokers[0]
        led = [one for one in leader.node.partitions.table.all_led() if one.topic == "t"]
        assert led
        async with talk(leader.port) as client:
            answer = await client.produce(9, [("t", [(one.index, batch(3)) for one in led])])
            codes = [one.error_code for one in answer.responses[0].partition_responses]
        assert codes == [0] * len(led)
        assert all(broker.log("t", one.index).log_end_offset == 3 for broker in brokers for one in led)


@pytest.mark.ci
@pytest.mark.parametrize("priority_s", [3600.0, 0.0])
async def test_partitions_that_are_taken_over_together_take_records_before_their_manifests_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, priority_s: float
) -> None:
    monkeypatch.setattr(reading, "AFTER_TAKE_OVER_S", priority_s)
    count = 2 * reading.TAKEN_OVER_MANY
    async with AsyncExitStack() as stack:
        first, second, _ = [await stack.enter_async_context(member(tmp_path, node_id)) for node_id in (1, 2, 3)]
        await until(lambda: unfenced(first) == [1, 2, 3])
        await first.node.membership.controller.create_topic(
            "t", configs={"min.insync.replicas": "1"}, assignments={index: [2, 1] for index in range(count)}
        )
        for broker in (first, second):
            table = broker.node.partitions.table
            await until(lambda table=table: all(table.get("t", index) is not None for index in range(count)))
        image = lambda: first.node.cluster.image.topics_by_name["t"].partitions  # noqa: E731
        await until(lambda: all(len(one.isr) == 2 for one in image()))
        await second.kill()
        await until(lambda: len(first.node.partitions.table.all_led()) == count)
        async with talk(first.port) as client:
            answer = await client.produce(9, [("t", [(index, batch(3)) for index in range(count)])])
            assert [one.error_code for one in answer.responses[0].partition_responses] == [0] * count
        manager = first.node.remote_log_manager
        known = lambda: [manager.manifest_of(one.key) for one in first.node.partitions.table.all_led()]  # noqa: E731
        if priority_s:
            assert known() == [None] * count
        else:
            await until(lambda: None not in known())


async def test_requests_of_the_usual_kind_wait_for_their_commit_in_order(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        brokers = [await stack.enter_async_context(member(tmp_path, node_id)) for node_id in (1, 2, 3)]
        for broker in brokers:
            await until(lambda broker=broker: unfenced(broker) == [1, 2, 3])
        await brokers[0].node.membership.controller.create_topic(
            "t", 1, {"min.insync.replicas": "2"}, replication_factor=3
        )
        leader = brokers[brokers[0].node.cluster.image.topics_by_name["t"].partitions[0].leader - 1]
        table = leader.node.partitions.table
        await until(lambda: table.led("t", 0) is not None)
        partition = table.led("t", 0)
        assert partition is not None
        async with talk(leader.port) as client, talk(leader.port) as hasty:
            for talker, extra in ((client, {}), (hasty, {"timeout_ms": 1})):  # the shape of what follows is learnt
                while (
                    (await talker.produce(9, [("t", [(0, batch(1))])], **extra))
                    .responses[0]
                    .partition_responses[0]
                    .error_code
                ):
                    pass  # a hasty one may have to try again
            end = partition.log.log_end_offset
            meter = leader.node.context.metrics.meter(ApiKey.PRODUCE)
            before_bytes = meter.request_bytes.value
            quotas = leader.node.context.quotas = NotedQuotas()
            sent = [client.send_produce(9, [("t", [(0, batch(3))])]) for _ in range(5)]
            answers = [await client.answer(0, 9) for _ in sent]
            assert [correlation_id for correlation_id, _ in answers] == sent
            found = [answer.responses[0].partition_responses[0] for _, answer in answers]
            assert [(one.error_code, one.base_offset) for one in found] == [(0, end + 3 * i) for i in range(5)]
            assert partition.log.high_watermark == end + 15
            # Their quota is charged for the whole requests, as on every other way.
            assert (
                sum(size for key, size in quotas.charged if key == ApiKey.PRODUCE)
                == meter.request_bytes.value - before_bytes
            )

            async def nothing(*_: Any) -> Any:
                await asyncio.Event().wait()

            for broker in brokers:
                assert broker.node.followers is not None
                broker.node.followers.link.fetch = nothing  # type: ignore[method-assign]
            # What is under way still comes; then no follower takes anything any more.
            late = await hasty.produce(9, [("t", [(0, batch(3))])], timeout_ms=1)
            while not late.responses[0].partition_responses[0].error_code:
                late = await hasty.produce(9, [("t", [(0, batch(3))])], timeout_ms=1)
            assert late.responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
            waiting = client.send_produce(9, [("t", [(0, batch(3))])])
            end = partition.log.log_end_offset
            await until(lambda: partition.log.log_end_offset == end + 3)
            partition.leave_leadership()
            correlation_id, answer = await client.answer(0, 9)
            assert correlation_id == waiting
            assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.ci
async def test_a_follower_whose_segments_are_compacted_and_copied_is_cut_once_and_is_in_sync_again(
    tmp_path: Path,
) -> None:
    async with cluster_on(tmp_path) as brokers:
        first, third = brokers[0], brokers[2]
        configs = {"min.insync.replicas": "1"}
        await first.node.membership.controller.create_topic("t", configs=configs, assignments={0: [1, 3]})
        await until(lambda: third.node.logs.get("t", 0) is not None)
        leader, follower = first.log("t"), third.log("t")
        leader.append_as_leader(bytearray(batch(5)), now_ms=NOW)
        await until(lambda: follower.high_watermark == 5)
        follower.roll()
        # Nothing ends this work but the log itself.
        ended: list[str] = []
        cleaning = follower.begin_cleaning(lambda: ended.append("compaction"))
        cleaning.add(follower.hold(0))
        below = follower.hold(0, lambda: ended.append("copy below the cut"))
        other = bytearray(batch(3))
        other[:8], other[12:16] = (5).to_bytes(8, "big"), follower.leader_epochs()[-1].epoch.to_bytes(4, "big")
        follower.append_as_follower(memoryview(other), now_ms=NOW)
        follower.hold(5, lambda: ended.append("copy above the cut"))
        await until(lambda: follower.log_end_offset == 5)
        assert sorted(ended) == ["compaction", "copy above the cut"]
        assert not below.ended
        leader.append_as_leader(bytearray(batch(2)), now_ms=NOW)
        await until(lambda: follower.high_watermark == 7)
        await until(lambda: tuple(first.node.cluster.image.topic("t").partitions[0].isr) == (1, 3))
        cut = [line for line in third.lines if "is cut back" in line]
        assert len(cut) == 1, third.lines
        assert "from 8 to 5" in cut[0]
        follower.finish_cleaning(cleaning)
