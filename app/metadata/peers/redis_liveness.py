"""Heartbeats in Redis: a key for each broker and directory. It lives for 30 s, and is set again every 10 s.

Redis may lose all data at any moment. So a missing key means silence only if Redis has been up for longer than a key lives. If
Redis does not respond, no broker can be declared dead. This module is imported only if there is a Redis.

Tests: ``tests/metadata/test_liveness.py``.
"""

from __future__ import annotations

from uuid import UUID

from redis.asyncio import Redis
from redis.exceptions import RedisError

from app.core.errors import StorageUnavailable, clause
from app.core.units import BrokerId, DurationMs
from app.metadata.peers.liveness import SILENCE_MS_MAX, Identity


class RedisLiveness:
    """Liveness on a Redis server. ``namespace`` separates clusters that share a server."""

    def __init__(self, client: Redis, *, namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def _key(self, broker_id: int, directory_id: UUID) -> str:
        return f"{self._namespace}:alive:{broker_id}:{directory_id}"

    async def beat(self, identity: Identity) -> None:
        try:
            await self._client.set(
                self._key(identity.broker_id, identity.directory_id), str(identity.incarnation), px=SILENCE_MS_MAX
            )
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error

    async def age_ms(self, broker_id: BrokerId, directory_id: UUID) -> DurationMs | None:
        try:
            left_ms = int(await self._client.pttl(self._key(broker_id, directory_id)))
            server = await self._client.info("server")
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error
        if left_ms >= 0:
            return DurationMs(max(SILENCE_MS_MAX - left_ms, 0))
        up_ms = int(server["uptime_in_seconds"]) * 1000
        if up_ms <= SILENCE_MS_MAX:
            raise StorageUnavailable(
                f"Redis has been up for {up_ms // 1000} s only, so it cannot tell whether broker {broker_id} lives; wait"
                f" {(SILENCE_MS_MAX - up_ms) // 1000 + 1} s."
            )
        return None

    async def leave(self, identity: Identity) -> None:
        try:
            await self._client.delete(self._key(identity.broker_id, identity.directory_id))
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error


def _unavailable(error: Exception) -> StorageUnavailable:
    return StorageUnavailable(f"Redis does not answer: {clause(error)}.")
