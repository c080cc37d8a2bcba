"""Limits of a whole cluster: three broker processes lease them from a Redis that is killed and comes back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import NewTopic
from redis import Redis

from app.metadata.image.records import SECURITY_LEVEL
from tests.interop.throttled import SECONDS, consumed, produced
from tests.support.cluster import NODES, WAIT_S, Brokers, brokers_running, wait_for_brokers
from tests.support.quotas import limit_client
from tests.support.redis_server import RedisServer, redis_running
from tests.support.waiting import block_until

pytestmark = [pytest.mark.faults, pytest.mark.slow]

RATE = 1_200_000
"""Bytes a second of all brokers together."""
CLIENT = "limited"
Load = Callable[[Brokers, str, int], float]


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_running(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, redis: RedisServer) -> Iterator[Brokers]:
    settings = {"new_level": SECURITY_LEVEL, "firn_quota_scope": "cluster"}
    path: Path = tmp_path_factory.mktemp("brokers")
    with brokers_running(path, settings=settings, redis=redis.url) as running:
        admin = running.admin
        wait_for_brokers(admin)
        placed = NewTopic(CLIENT, len(NODES), replica_assignment=[[node] for node in NODES])
        admin.create_topics([placed])[CLIENT].result(WAIT_S)
        limit_client(running.bootstrap, CLIENT, producer_byte_rate=RATE, consumer_byte_rate=RATE)
        yield running


def leases(redis: RedisServer) -> bool:
    """Whether brokers have asked it for tokens."""
    with Redis.from_url(redis.url) as client:
        return bool(client.keys("firn:*:quota:*"))


def test_a_limit_of_all_brokers_holds_within_5_percent_whatever_happens_to_redis(
    brokers: Brokers, redis: RedisServer
) -> None:
    for load in (produced, consumed):  # what is read was written before
        hold(brokers, redis, load)


def hold(brokers: Brokers, redis: RedisServer, load: Load) -> None:
    """30 s with Redis, and 30 s in whose middle it is killed and comes back."""
    rate = load(brokers, CLIENT, len(NODES))
    print(f"{load.__name__}: {rate / RATE:.3f} of the limit with Redis")
    assert RATE * 0.95 < rate < RATE * 1.05, "with Redis"
    assert leases(redis)
    with ThreadPoolExecutor(1) as pool:
        lines = [brokers.lines(node) for node in NODES]
        running = pool.submit(load, brokers, CLIENT, len(NODES))
        time.sleep(SECONDS / 3)
        redis.stop()
        time.sleep(SECONDS / 3)
        said = [brokers.lines(node).removeprefix(old) for node, old in zip(NODES, lines, strict=True)]
        redis.start()
        rate = running.result(4 * SECONDS)
    assert all("divided by the number of brokers" in one for one in said), "each broker allows its part"
    print(f"{load.__name__}: {rate / RATE:.3f} of the limit while it was killed and came back")
    assert RATE * 0.95 < rate < RATE * 1.05, "while it was killed and came back"
    block_until(lambda: leases(redis), "brokers lease again")
