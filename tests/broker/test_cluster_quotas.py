"""Quotas of a whole cluster: three brokers share a Redis, which dies in the middle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.broker.quota_tokens import RedisTokens
from app.core.errors import StorageUnavailable
from app.handlers.policy.quota_leases import Ask
from app.metadata.changes.quotas import QuotaOperation, alter_quotas
from app.metadata.image.records import SECURITY_LEVEL, QuotaEntity
from tests.handlers.conversation import batch, talk
from tests.support.broker import RunningBroker
from tests.support.quotas import CentralBucket
from tests.support.redis_server import RedisServer, redis_running
from tests.support.several import cluster_on
from tests.support.waiting import until

CLIENT = QuotaEntity(None, "test", None)
RATE = 200_000


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_running(tmp_path) as server:
        yield server


def tokens_of(redis: RedisServer) -> RedisTokens:
    return RedisTokens(f"redis://127.0.0.1:{redis.port}/0", namespace=lambda: "test")


async def answers(tokens: RedisTokens) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await tokens.lease([])
            except StorageUnavailable:
                await asyncio.sleep(0.02)
            else:
                return


@asynccontextmanager
async def sharing(path: Path, redis: RedisServer) -> AsyncIterator[Sequence[RunningBroker]]:
    """Three brokers with a topic that each leads a partition of, and a limit of all three."""
    async with cluster_on(
        path, new_level=SECURITY_LEVEL, new_tokens=lambda _: tokens_of(redis), firn_quota_scope="cluster"
    ) as brokers:
        controller = next(one for one in brokers if one.node.membership.controller.active)
        await controller.node.membership.controller.create_topic("t", 3, {"retention.ms": "-1"})
        await controller.node.membership.controller.submit(
            lambda draft, around: alter_quotas(
                draft, around, CLIENT, [QuotaOperation("producer_byte_rate", float(RATE))]
            )
        )
        await until(lambda: all(one.node.context.quotas is not None for one in brokers))
        await until(lambda: all(led(one) for one in brokers))
        await until(lambda: not any(fallback(one) for one in brokers))
        yield brokers


def led(broker: RunningBroker) -> list[int]:
    """The partitions that a broker leads."""
    topic = broker.node.cluster.image.topic("t")
    node_id = broker.node.config.node_id
    return [] if topic is None else [index for index, one in enumerate(topic.partitions) if one.leader == node_id]


def fallback(broker: RunningBroker) -> bool:
    return bool(value(broker, "firn_quota_fallback"))


def value(broker: RunningBroker, name: str) -> float:
    return next(one.value for one in broker.node.registry.samples() if one.name == name)


async def produced(broker: RunningBroker, value_bytes: int, seconds: float) -> int:
    """How many bytes a producer sends in so many seconds, that waits as it is told. The first batch is sent in any case."""
    loop = asyncio.get_running_loop()
    async with talk(broker.port) as client:
        end_s, sent = loop.time() + seconds, 0
        while True:
            answer: Any = await client.produce(9, [("t", [(led(broker)[0], batch(1, value=b"x" * value_bytes))])])
            assert answer.responses[0].partition_responses[0].error_code == 0
            sent += value_bytes
            wait_s = answer.throttle_time_ms / 1000
            if loop.time() + wait_s >= end_s:
                break  # a sleep to the very end may be over a moment before it
            await asyncio.sleep(wait_s)
    return sent


async def test_redis_gives_out_what_the_model_does(redis: RedisServer) -> None:
    tokens = tokens_of(redis)
    try:
        await answers(tokens)
        full, other = ("producer_byte_rate", "a", None), ("producer_byte_rate", None, "b")
        assert await tokens.lease([Ask(full, 0.0, 100.0, 10.0), Ask(other, 0.0, 100.0, 10.0)]) == [0, 0]
        model = CentralBucket(0)
        now_s = 0.0
        for rate, capacity, wanted in ((1e12, 100.0, 30.0), (0.0, 100.0, 50.0), (0.0, 100.0, 50.0), (0.0, 5.0, 9.0)):
            now_s += 1
            ask = Ask(full, rate, capacity, wanted)
            assert await tokens.lease([ask]) == pytest.approx([model.lease(ask, now_s)])
        assert await tokens.lease([Ask(other, 0.0, 100.0, 10.0)]) == [0]
    finally:
        await tokens.close()


@pytest.mark.ci
async def test_brokers_lease_share_and_go_on_without_redis(tmp_path: Path, redis: RedisServer) -> None:
    async with sharing(tmp_path, redis) as brokers:
        for broker in brokers:
            before = value(broker, "firn_quota_leases_total")
            assert await produced(broker, RATE, 0.01) == RATE
            await until(lambda before=before, broker=broker: value(broker, "firn_quota_leases_total") > before)
        redis.stop()
        for broker in brokers:
            await produced(broker, RATE, 0.01)
            await until(lambda broker=broker: fallback(broker))
            assert any("divided by the number of brokers" in line for line in broker.lines)
            quotas: Any = broker.node.context.quotas
            bucket = quotas._buckets["producer_byte_rate", None, "test"]
            assert bucket._told_rate == RATE / 3
        redis.start()
        await until(lambda: not any(fallback(broker) for broker in brokers))
        await produced(brokers[0], RATE, 0.01)


@pytest.mark.slow
@pytest.mark.parametrize("busy", [1, 3])
async def test_a_limit_holds_over_30_seconds(tmp_path: Path, redis: RedisServer, busy: int) -> None:
    async with sharing(tmp_path, redis) as brokers:
        sent = await asyncio.gather(*(produced(broker, 4000, 30) for broker in brokers[:busy]))
        assert sum(sent) == pytest.approx(30 * RATE, rel=0.05), sent


@pytest.mark.slow
async def test_a_limit_holds_while_redis_dies_and_comes_back(tmp_path: Path, redis: RedisServer) -> None:
    async with sharing(tmp_path, redis) as brokers:
        sending = [asyncio.create_task(produced(broker, 4000, 30)) for broker in brokers]
        await asyncio.sleep(10)
        redis.stop()
        await asyncio.sleep(10)
        redis.start()
        sent = sum(await asyncio.gather(*sending))
        assert sent <= 30 * RATE * 1.05
        assert sent >= 26 * RATE, "it takes a moment until brokers know that it is gone, and that it is back"
