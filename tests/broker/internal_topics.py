"""A broker whose internal topics are in the bucket."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.broker.object_topics import alone, led
from tests.broker.transactional import (
    Cluster,
)
from tests.support.broker import RunningBroker

SETTINGS: dict[str, Any] = {
    "offsets_topic_num_partitions": 2,
    "transaction_state_log_num_partitions": 2,
    "share_coordinator_state_topic_num_partitions": 1,
    "group_initial_rebalance_delay_ms": 0,
    "group_share_min_record_lock_duration_ms": 1000,
    "log_cleaner_backoff_ms": 10,
}


class One(Cluster):
    """A cluster of one broker, whose disk may be lost."""

    async def up(self, *, again: bool) -> RunningBroker:
        stack = self._stacks[1] = AsyncExitStack()
        broker = self.brokers[1] = await stack.enter_async_context(alone(self.path, take_over=again, **SETTINGS))
        return broker

    async def lose_the_disk(self) -> RunningBroker:
        await self._kill()
        shutil.rmtree(self.path / "broker-1")
        return await self._again(take_over=True)

    async def start_again(self, between: Callable[[], None] = lambda: None) -> RunningBroker:
        """Kill it, and start it on its disk."""
        await self._kill()
        between()
        return await self._again(take_over=False)

    @property
    def recovery_points(self) -> Path:
        (found,) = (self.path / "broker-1").rglob("recovery-point-offset-checkpoint")
        return found

    async def lose_power(self, unsynced: list[str], recovery_points: bytes) -> RunningBroker:
        """Files were never synced, nor was the checkpoint of what was since ``recovery_points``."""
        await self._kill()
        for path in unsynced:
            Path(path).write_bytes(b"")
            for suffix in (".index", ".timeindex"):
                Path(path).with_suffix(suffix).unlink(missing_ok=True)
        self.recovery_points.write_bytes(recovery_points)
        (self.recovery_points.parent / ".kafka_cleanshutdown").unlink(missing_ok=True)
        return await self._again(take_over=False)

    async def _kill(self) -> None:
        await self._talk_stack.aclose()
        self._talks.clear()
        await self.brokers[1].kill()
        await self.stop(1)

    async def _again(self, *, take_over: bool) -> RunningBroker:
        broker = await self.up(again=take_over)
        for topic in broker.node.cluster.image.topics_by_name.values():
            await led(broker, topic.name, len(topic.partitions))
        return broker
