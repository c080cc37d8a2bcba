"""Signs of life, by objects and by a real Redis server."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError

from app.core.errors import StorageUnavailable
from app.core.units import BrokerId
from app.metadata.log import layout
from app.metadata.peers.liveness import SILENCE_MS_MAX, Identity, Liveness, ObjectLiveness
from app.metadata.peers.redis_liveness import RedisLiveness
from app.objectstore.directory import DirectoryStore
from app.objectstore.memory import MemoryStore
from tests.metadata.support import FixedClock, requests_of, uuid_of
from tests.support.redis_server import RedisServer, redis_running

ONE = Identity(BrokerId(1), uuid_of(10), uuid_of(11))
RIVAL = Identity(BrokerId(1), uuid_of(20), uuid_of(21))


async def test_an_object_is_as_old_as_the_stores_clock_says() -> None:
    clock, unrelated = FixedClock(5_000), FixedClock(999_999_999)
    store = MemoryStore(clock, random.Random(1))
    liveness = ObjectLiveness(store, rng=random.Random(1), clock=unrelated)
    assert await liveness.age_ms(ONE.broker_id, ONE.directory_id) is None
    await liveness.beat(ONE)
    clock.time_ms += 31_000
    unrelated.time_ms = 0
    assert await liveness.age_ms(ONE.broker_id, ONE.directory_id) == 31_000
    await liveness.beat(RIVAL)
    assert await liveness.age_ms(ONE.broker_id, ONE.directory_id) == 31_000, "a rival's beat is not ours"
    await liveness.beat(ONE)
    assert await liveness.age_ms(ONE.broker_id, ONE.directory_id) == 0
    assert [key for key in store.contents() if "probe" in key] == []
    content = store.contents()[layout.heartbeat_key(1, ONE.directory_id)]
    assert msgspec.msgpack.decode(content)[4:] == [3, 0], "the count and the beater's time, for people"
    start = len(store.history)
    await liveness.age_ms(ONE.broker_id, ONE.directory_id)
    assert dict(requests_of(store, start)) == {"put": 1, "head": 2, "delete": 1}
    await liveness.leave(ONE)
    assert await liveness.age_ms(ONE.broker_id, ONE.directory_id) is None


async def test_a_directory_store_tells_ages_too(tmp_path: Path) -> None:
    liveness = ObjectLiveness(DirectoryStore(tmp_path), rng=random.Random(1), clock=FixedClock())
    await liveness.beat(ONE)
    age_ms = await liveness.age_ms(ONE.broker_id, ONE.directory_id)
    assert age_ms is not None
    assert 0 <= age_ms < SILENCE_MS_MAX


# --- Redis ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_running(tmp_path) as server:
        yield server


@contextlib.asynccontextmanager
async def connected(server: RedisServer) -> AsyncIterator[Redis]:
    client = Redis(port=server.port, retry=Retry(NoBackoff(), 0))
    async with asyncio.timeout(60):
        while True:
            try:
                await client.ping()
                break
            except RedisConnectionError:
                await asyncio.sleep(0.01)
    yield client
    await client.aclose()


class UpLongEnough:
    """The client, on a server that claims to have been up for so many seconds."""

    def __init__(self, client: Redis, up_s: int) -> None:
        self._client = client
        self._up_s = up_s

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    async def info(self, section: str) -> dict[str, object]:
        return {**await self._client.info(section), "uptime_in_seconds": self._up_s}


async def test_redis_keeps_signs_of_life(server: RedisServer) -> None:
    async with connected(server) as client:
        liveness: Liveness = RedisLiveness(UpLongEnough(client, 31), namespace="firn:c")  # type: ignore[arg-type]
        assert await liveness.age_ms(ONE.broker_id, ONE.directory_id) is None
        await liveness.beat(ONE)
        assert await client.get(f"firn:c:alive:1:{ONE.directory_id}") == str(ONE.incarnation).encode()
        age_ms = await liveness.age_ms(ONE.broker_id, ONE.directory_id)
        assert age_ms is not None
        assert 0 <= age_ms < SILENCE_MS_MAX
        assert await liveness.age_ms(RIVAL.broker_id, RIVAL.directory_id) is None
        await client.pexpire(f"firn:c:alive:1:{ONE.directory_id}", 5_000)
        age_ms = await liveness.age_ms(ONE.broker_id, ONE.directory_id)
        assert age_ms is not None
        assert 25_000 <= age_ms <= 30_000
        await liveness.leave(ONE)
        assert await liveness.age_ms(ONE.broker_id, ONE.directory_id) is None


async def test_a_redis_that_has_just_come_up_declares_nobody_dead(server: RedisServer) -> None:
    async with connected(server) as client:
        with pytest.raises(StorageUnavailable, match="cannot tell whether broker 1 lives"):
            await RedisLiveness(client, namespace="c").age_ms(ONE.broker_id, ONE.directory_id)


async def test_a_redis_that_is_away_declares_nobody_dead(server: RedisServer) -> None:
    async with connected(server) as client:
        liveness = RedisLiveness(client, namespace="c")
        await liveness.beat(ONE)
        server.stop()
        for ask in (liveness.beat(ONE), liveness.leave(ONE), liveness.age_ms(ONE.broker_id, ONE.directory_id)):
            with pytest.raises(StorageUnavailable, match="Redis does not answer"):
                await ask
        server.start()
        async with connected(server):
            await liveness.beat(ONE)
