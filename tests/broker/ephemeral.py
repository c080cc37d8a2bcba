"""Brokers without a lasting disk."""

from __future__ import annotations

from app.configs import Durability, TopicConfig
from tests.support.broker import RunningBroker
from tests.support.several import unfenced
from tests.support.waiting import until

SETTINGS = {
    "firn_ephemeral": True,
    "broker_heartbeat_interval_ms": 50,
    "topic_defaults": TopicConfig(firn_durability=Durability.OBJECT, firn_wal_linger_ms=5),
}


async def in_cluster(broker: RunningBroker) -> None:
    await until(lambda: broker.node.config.node_id in unfenced(broker))
