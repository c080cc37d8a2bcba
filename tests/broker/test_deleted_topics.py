"""A topic that is deleted on a cluster: every broker stops to write there, and the controller lets the cluster forget it."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from app.errors import StorageUnavailable
from tests.support.broker import RunningBroker
from tests.support.several import cluster_on, until


async def make_and_delete(brokers: list[RunningBroker]) -> None:
    controller = brokers[0].node.membership.controller
    assert controller.active
    await controller.create_topic("t", 6, {})
    await until(lambda: all(broker.node.cluster.image.topic("t") is not None for broker in brokers))
    await controller.delete_topic("t")


async def test_a_deletion_of_a_topic_is_no_fault_of_any_broker(tmp_path: Path) -> None:
    async with cluster_on(tmp_path) as brokers:
        for _ in range(3):
            await make_and_delete(brokers)
            await until(lambda: not any(broker.node.cluster.image.deleting for broker in brokers))
        assert [line for broker in brokers for line in broker.lines if "delete" in line or "over after" in line] == []


async def test_a_deletion_that_one_controller_has_begun_is_ended_by_the_next(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, broker_session_timeout_ms=1_000) as brokers:
        begun: list[UUID] = []

        async def fails(topic_id: UUID) -> None:
            begun.append(topic_id)
            raise StorageUnavailable("The store is away for this broker.")

        brokers[0].node.membership.controller.finish_topic_deletion = fails  # type: ignore[method-assign]
        await make_and_delete(brokers)
        await until(lambda: begun and all(broker.node.cluster.image.deleting for broker in brokers))
        await brokers[0].kill()
        await until(lambda: not any(broker.node.cluster.image.deleting for broker in brokers[1:]))
